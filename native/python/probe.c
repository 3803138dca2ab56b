/* What does a driver call cost from C? Loads whatever libcuda the process finds, and times launches and waits. */
#include "python/module.h"

#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

/* Only what is called here; the numbers and shapes are the driver API's. */
typedef int (*call_init)(unsigned);
typedef int (*call_retain)(void **, int);
typedef int (*call_set)(void *);
typedef int (*call_load)(void **, const void *);
typedef int (*call_function)(void **, void *, const char *);
typedef int (*call_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                           void **);
typedef int (*call_synchronize)(void);

struct driver {
    call_launch launch;
    call_synchronize synchronize;
    void *function;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static const char *open_driver(struct driver *driver, const char *image, const char *kernel)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *context, *module;
    if (!library)
        return "libcuda.so.1 is not found";
    call_init init = (call_init)dlsym(library, "cuInit");
    call_retain retain = (call_retain)dlsym(library, "cuDevicePrimaryCtxRetain");
    call_set set = (call_set)dlsym(library, "cuCtxSetCurrent");
    call_load load = (call_load)dlsym(library, "cuModuleLoadData");
    call_function function = (call_function)dlsym(library, "cuModuleGetFunction");
    driver->launch = (call_launch)dlsym(library, "cuLaunchKernel");
    driver->synchronize = (call_synchronize)dlsym(library, "cuCtxSynchronize");
    if (!init || !retain || !set || !load || !function || !driver->launch || !driver->synchronize)
        return "libcuda.so.1 lacks a core function";
    if (init(0) || retain(&context, 0) || set(context))
        return "the device gives no context";
    if (load(&module, image) || function(&driver->function, module, kernel))
        return "the kernel image does not load";
    return NULL;
}

static int launch(const struct driver *driver, uint64_t *duration_ns)
{
    void *parameters[] = {duration_ns};
    return driver->launch(driver->function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
}

/* Appends one number to a list; -1 with a Python error set. */
static int append(PyObject *list, int64_t value)
{
    PyObject *number = PyLong_FromLongLong(value);
    int failed = !number || PyList_Append(list, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

/* One round: a burst of launches timed as a whole, then one kernel alone whose end is known in advance. */
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
    PyObject *launches = PyList_New(0), *lates = PyList_New(0);
    for (int i = 0; launches && lates && i < rounds; i++) {
        uint64_t launch_ns = 0;
        int64_t late_ns = 0;
        int failed;
        Py_BEGIN_ALLOW_THREADS;
        failed = measure(&driver, burst > 0 ? burst : 1, duration_ns, &launch_ns, &late_ns);
        Py_END_ALLOW_THREADS;
        if (failed)
            PyErr_SetString(PyExc_OSError, "a driver call failed");
        if (failed || append(launches, (int64_t)launch_ns) < 0 || append(lates, late_ns) < 0) {
            Py_CLEAR(launches);
            break;
        }
    }
    PyObject *both = launches && lates ? PyTuple_Pack(2, launches, lates) : NULL;
    Py_XDECREF(launches);
    Py_XDECREF(lates);
    return both;
}

static PyMethodDef methods[] = {
    {"probe_driver", probe_driver, METH_VARARGS,
     "probe_driver(image, kernel, rounds, burst, duration_ns): ns per launch in each burst; ns each wait came late (early: negative)"},
    {NULL, NULL, 0, NULL},
};

int ct_add_probe(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
