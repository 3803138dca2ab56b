/* Measures the cost of driver calls from C: loads the libcuda that the process finds, and times launches, waits and
 * queries. */
#include "python/module.h"

#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

/* Only what is called here; types and values are the driver API's. */
typedef int (*call_init)(unsigned);
typedef int (*call_retain)(void **, int);
typedef int (*call_set)(void *);
typedef int (*call_load)(void **, const void *);
typedef int (*call_function)(void **, void *, const char *);
typedef int (*call_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                           void **,
                           void **);
typedef int (*call_synchronize)(void);
typedef int (*call_create)(void **, unsigned);
typedef int (*call_record)(void *, void *);
typedef int (*call_query)(void *);

enum { NOT_READY = 600, IN_FLIGHT = 8, CONFIRMED = 64, NON_BLOCKING = 1 };

struct driver {
    call_launch launch;
    call_synchronize synchronize;
    call_record record;
    call_query query;
    void *function;
    void *streams[2], *events[IN_FLIGHT];
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static const char *open_events(struct driver *driver, void *library)
{
    call_create stream = (call_create)dlsym(library, "cuStreamCreate"),
        event = (call_create)dlsym(library, "cuEventCreate");
    driver->record = (call_record)dlsym(library, "cuEventRecord");
    driver->query = (call_query)dlsym(library, "cuEventQuery");
    if (!stream || !event || !driver->record || !driver->query)
        return "libcuda.so.1 lacks a required function";
    int failed = stream(&driver->streams[0], NON_BLOCKING) | stream(&driver->streams[1], NON_BLOCKING);
    for (int i = 0; i < IN_FLIGHT; i++)
        failed |= event(&driver->events[i], 0);
    return failed ? "the driver could not create streams or events" : NULL;
}

static const char *open_driver(struct driver *driver, const char *image, const char *kernel)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *context, *module;
    if (!library)
        return "libcuda.so.1 was not found";
    call_init init = (call_init)dlsym(library, "cuInit");
    call_retain retain = (call_retain)dlsym(library, "cuDevicePrimaryCtxRetain");
    call_set set = (call_set)dlsym(library, "cuCtxSetCurrent");
    call_load load = (call_load)dlsym(library, "cuModuleLoadData");
    call_function function = (call_function)dlsym(library, "cuModuleGetFunction");
    driver->launch = (call_launch)dlsym(library, "cuLaunchKernel");
    driver->synchronize = (call_synchronize)dlsym(library, "cuCtxSynchronize");
    if (!init || !retain || !set || !load || !function || !driver->launch || !driver->synchronize)
        return "libcuda.so.1 lacks a required function";
    if (init(0) || retain(&context, 0) || set(context))
        return "the driver could not create a context";
    if (load(&module, image) || function(&driver->function, module, kernel))
        return "the driver could not load the kernel image";
    return open_events(driver, library);
}

static int launch_into(const struct driver *driver, void *stream, uint64_t *duration_ns)
{
    void *parameters[] = {duration_ns};
    return driver->launch(driver->function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static int launch(const struct driver *driver, uint64_t *duration_ns)
{
    return launch_into(driver, NULL, duration_ns);
}

/* Appends a number to a list; returns -1 with an exception set. */
static int append(PyObject *list, int64_t value)
{
    PyObject *number = PyLong_FromLongLong(value);
    int failed = !number || PyList_Append(list, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

/* One round: a burst of launches timed as a whole, then a single kernel whose end is known in advance. */
static int measure(const struct driver *driver, int burst, uint64_t duration_ns, uint64_t *launch_ns, int64_t *late_ns)
{
    uint64_t brief_ns = 1000, before, after;
    int failed = 0;
    before = now_ns();
    for (int i = 0; i < burst; i++)
        failed |= launch(driver, &brief_ns);
    after = now_ns();
    failed |= driver->synchronize();
    *launch_ns = (after - before) / (uint64_t)burst;
    before = now_ns();
    failed |= launch(driver, &duration_ns);
    failed |= driver->synchronize();
    *late_ns = (int64_t)(now_ns() - before) - (int64_t)duration_ns;
    return failed ? -1 : 0;
}

static int until_complete(const struct driver *driver, void *event)
{
    int result;
    do
        result = driver->query(event);
    while (result == NOT_READY);
    return result;
}

/* One round: a query of a completed event after a launch into another stream; then launches of which a fixed number is
 * in flight, each confirmed by queries. */
static int measure_events(const struct driver *driver, uint64_t duration_ns, uint64_t *query_ns, uint64_t *confirmed_ns)
{
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        failed |= launch_into(driver, driver->streams[i], &duration_ns);
        failed |= driver->record(driver->events[i], driver->streams[i]);
    }
    failed |= until_complete(driver, driver->events[1]);
    uint64_t before = now_ns();
    failed |= driver->query(driver->events[0]);
    *query_ns = now_ns() - before;
    before = now_ns();
    for (int i = 0; i < CONFIRMED + IN_FLIGHT; i++) {
        void *event = driver->events[i % IN_FLIGHT];
        failed |= i >= IN_FLIGHT && until_complete(driver, event);
        if (i < CONFIRMED)
            failed |= launch_into(driver, driver->streams[0], &duration_ns) | driver->record(event, driver->streams[0]);
    }
    *confirmed_ns = (now_ns() - before) / CONFIRMED;
    return failed ? -1 : 0;
}

static PyObject *probe_events(PyObject *module, PyObject *args)
{
    const char *image, *kernel;
    int rounds;
    unsigned long long duration_ns;
    struct driver driver;
    (void)module;
    if (!PyArg_ParseTuple(args, "ssiK:probe_events", &image, &kernel, &rounds, &duration_ns))
        return NULL;
    const char *problem = open_driver(&driver, image, kernel);
    PyObject *queries = PyList_New(0), *confirmed = PyList_New(0);
    for (int i = 0; !problem && queries && confirmed && i < rounds; i++) {
        uint64_t query_ns = 0, confirmed_ns = 0;
        int failed;
        Py_BEGIN_ALLOW_THREADS;
        failed = measure_events(&driver, duration_ns, &query_ns, &confirmed_ns);
        Py_END_ALLOW_THREADS;
        if (failed)
            problem = "a driver call failed";
        else if (append(queries, (int64_t)query_ns) < 0 || append(confirmed, (int64_t)confirmed_ns) < 0)
            Py_CLEAR(queries);
    }
    if (problem)
        PyErr_SetString(PyExc_OSError, problem);
    PyObject *results = !problem && queries && confirmed ? PyTuple_Pack(2, queries, confirmed) : NULL;
    Py_XDECREF(queries);
    Py_XDECREF(confirmed);
    return results;
}

static PyObject *probe_driver(PyObject *module, PyObject *args)
{
    const char *image, *kernel;
    int rounds, burst;
    unsigned long long duration_ns;
    struct driver driver;
    (void)module;
    if (!PyArg_ParseTuple(args, "ssiiK:probe_driver", &image, &kernel, &rounds, &burst, &duration_ns))
        return NULL;
    const char *problem = open_driver(&driver, image, kernel);
    if (problem) {
        PyErr_SetString(PyExc_OSError, problem);
        return NULL;
    }
    PyObject *launches = PyList_New(0), *delays = PyList_New(0);
    for (int i = 0; launches && delays && i < rounds; i++) {
        uint64_t launch_ns = 0;
        int64_t late_ns = 0;
        int failed;
        Py_BEGIN_ALLOW_THREADS;
        failed = measure(&driver, burst > 0 ? burst : 1, duration_ns, &launch_ns, &late_ns);
        Py_END_ALLOW_THREADS;
        if (failed)
            PyErr_SetString(PyExc_OSError, "a driver call failed");
        if (failed || append(launches, (int64_t)launch_ns) < 0 || append(delays, late_ns) < 0) {
            Py_CLEAR(launches);
            break;
        }
    }
    PyObject *results = launches && delays ? PyTuple_Pack(2, launches, delays) : NULL;
    Py_XDECREF(launches);
    Py_XDECREF(delays);
    return results;
}

static PyMethodDef methods[] = {
    {"probe_driver", probe_driver, METH_VARARGS,
     "probe_driver(image, kernel, rounds, burst, duration_ns): return the ns per launch of each burst, and the ns "
     "by which each wait ended late (negative: early)"},
    {"probe_events", probe_events, METH_VARARGS,
     "probe_events(image, kernel, rounds, duration_ns): return the ns per query of a completed event, and the ns per "
     "launch confirmed by queries"},
    {NULL, NULL, 0, NULL},
};

int ct_add_probe(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
