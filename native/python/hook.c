/* What does the hook cost? Calls through it beside the same calls past it, in one process, burst by burst. */
#include "python/module.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int (*call_init)(unsigned);
typedef int (*call_retain)(void **, int);
typedef int (*call_set)(void *);
typedef int (*call_load)(void **, const void *);
typedef int (*call_function)(void **, void *, const char *);
typedef int (*call_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                           void **);
typedef int (*call_allocate)(unsigned long long *, size_t);
typedef int (*call_free)(unsigned long long);
typedef int (*call_synchronize)(void);

struct way {
    call_launch launch;
    call_allocate allocate;
    call_free release;
};

enum { SHAPES = 8 }; /* as many kernels in turn, so that a look-up is one */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static const char *open_way(struct way *way, void *library)
{
    way->launch = library ? (call_launch)dlsym(library, "cuLaunchKernel") : NULL;
    way->allocate = library ? (call_allocate)dlsym(library, "cuMemAlloc_v2") : NULL;
    way->release = library ? (call_free)dlsym(library, "cuMemFree_v2") : NULL;
    return way->launch && way->allocate && way->release ? NULL : "libcuda.so.1 lacks a core function";
}

static const char *open_function(void *library, const char *image, const char *kernel, void **function)
{
    void *context, *module;
    call_init init = (call_init)dlsym(library, "cuInit");
    call_retain retain = (call_retain)dlsym(library, "cuDevicePrimaryCtxRetain");
    call_set set = (call_set)dlsym(library, "cuCtxSetCurrent");
    call_load load = (call_load)dlsym(library, "cuModuleLoadData");
    call_function get = (call_function)dlsym(library, "cuModuleGetFunction");
    if (!init || !retain || !set || !load || !get)
        return "libcuda.so.1 lacks a core function";
    if (init(0) || retain(&context, 0) || set(context) || load(&module, image) || get(function, module, kernel))
        return "the driver gives no kernel";
    return NULL;
}

/* Nanoseconds per launch, and per allocation with its free. */
static double time_launches(const struct way *way, void *function, int calls)
{
    uint64_t before = now_ns();
    for (int i = 0; i < calls; i++)
        way->launch(function, 1 + (unsigned)i % SHAPES, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL);
    return (double)(now_ns() - before) / calls;
}

static double time_allocations(const struct way *way, int calls)
{
    unsigned long long pointer = 0;
    uint64_t before = now_ns();
    for (int i = 0; i < calls; i++) {
        way->allocate(&pointer, 64);
        way->release(pointer);
    }
    return (double)(now_ns() - before) / calls / 2;
}

/* -1 where the machine or its owner does not let us count. */
static double count_instructions(const struct way *way, void *function, int calls)
{
    struct perf_event_attr what = {.type = PERF_TYPE_HARDWARE, .size = sizeof what,
                                   .config = PERF_COUNT_HW_INSTRUCTIONS, .exclude_kernel = 1, .exclude_hv = 1};
    uint64_t before = 0, after = 0;
    int counter = (int)syscall(SYS_perf_event_open, &what, 0, -1, -1, 0);
    if (counter < 0)
        return -1;
    int failed = read(counter, &before, sizeof before) != (ssize_t)sizeof before;
    time_launches(way, function, calls);
    failed |= read(counter, &after, sizeof after) != (ssize_t)sizeof after;
    close(counter);
    return failed || after <= before ? -1 : (double)(after - before) / calls;
}

static PyObject *hook_compare(PyObject *module, PyObject *args)
{
    int bursts, calls;
    void *function = NULL;
    struct way hooked, plain;
    (void)module;
    if (!PyArg_ParseTuple(args, "ii:hook_compare", &bursts, &calls))
        return NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const char *problem = open_way(&hooked, library);
    if (!problem)
        problem = open_way(&plain, dlopen("libcuda-real.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD));
    if (!problem)
        problem = open_function(library, "", "kernel", &function);
    if (!problem && (calls < 1 || hooked.launch == plain.launch))
        problem = "there is no hook to compare with";
    if (problem) {
        PyErr_SetString(PyExc_OSError, problem);
        return NULL;
    }
    PyObject *rows = PyList_New(0);
    for (int i = 0; rows && i < bursts; i++) {
        double launch_plain = time_launches(&plain, function, calls), launch = time_launches(&hooked, function, calls);
        double other_plain = time_allocations(&plain, calls), other = time_allocations(&hooked, calls);
        PyObject *row = Py_BuildValue("(dddddd)", launch_plain, launch, other_plain, other,
                                      count_instructions(&plain, function, calls),
                                      count_instructions(&hooked, function, calls));
        if (!row || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    return rows;
}

/* How long does a program take that launches kernels of one length in batches and waits after each? */
static PyObject *hook_spend(PyObject *module, PyObject *args)
{
    const char *image, *kernel;
    int batches, batch;
    unsigned long long duration_ns;
    void *function = NULL;
    struct way way;
    (void)module;
    if (!PyArg_ParseTuple(args, "ssiiK:hook_spend", &image, &kernel, &batches, &batch, &duration_ns))
        return NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *parameters[] = {&duration_ns};
    const char *problem = open_way(&way, library);
    call_synchronize synchronize = library ? (call_synchronize)dlsym(library, "cuCtxSynchronize") : NULL;
    if (!problem)
        problem = synchronize ? open_function(library, image, kernel, &function) : "libcuda.so.1 lacks a core function";
    int failed = 0;
    uint64_t before = now_ns();
    for (int i = 0; !problem && i < batches; i++) {
        for (int j = 0; j < batch; j++)
            failed |= way.launch(function, 1 + (unsigned)j % SHAPES, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL);
        failed |= synchronize();
        if (i == 0)
            before = now_ns(); /* the first batch meets every kernel for the first time */
    }
    if (problem || failed) {
        PyErr_SetString(PyExc_OSError, problem ? problem : "a driver call failed");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(now_ns() - before);
}

/* Requests of some launches and a wait, with a pause after each: the instants of the last launch, and of the wait's end. */
static PyObject *hook_requests(PyObject *module, PyObject *args)
{
    const char *image, *kernel;
    int requests, launches;
    unsigned long long duration_ns, pause_ns;
    void *function = NULL;
    struct way way;
    (void)module;
    if (!PyArg_ParseTuple(args, "ssiiKK:hook_requests", &image, &kernel, &requests, &launches, &duration_ns, &pause_ns))
        return NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *parameters[] = {&duration_ns};
    const char *problem = open_way(&way, library);
    call_synchronize synchronize = library ? (call_synchronize)dlsym(library, "cuCtxSynchronize") : NULL;
    if (!problem)
        problem = synchronize ? open_function(library, image, kernel, &function) : "libcuda.so.1 lacks a core function";
    PyObject *rows = PyList_New(0);
    for (int i = 0; rows && !problem && i < requests; i++) {
        int failed = 0;
        for (int j = 0; j < launches; j++)
            failed |= way.launch(function, 1 + (unsigned)j % SHAPES, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL);
        uint64_t launched_ns = now_ns();
        failed |= synchronize();
        PyObject *row = failed ? NULL : Py_BuildValue("(KK)", (unsigned long long)launched_ns, (unsigned long long)now_ns());
        if (failed)
            problem = "a driver call failed";
        else if (!row || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
        const struct timespec rest = {(time_t)(pause_ns / 1000000000), (long)(pause_ns % 1000000000)};
        if (pause_ns)
            nanosleep(&rest, NULL);
    }
    if (problem) {
        PyErr_SetString(PyExc_OSError, problem);
        Py_CLEAR(rows);
    }
    return rows;
}

/* ---- how late does anybody wake up who sleeps? ------------------------------------------------------------------- */

struct sleeper {
    _Atomic uint32_t bell;
    _Atomic uint64_t rung_ns;
    uint32_t rounds;
    uint64_t *late_ns;
};

static void *sleep_and_look(void *given)
{
    struct sleeper *sleeper = given;
    for (uint32_t i = 0; i < sleeper->rounds; i++) {
        while (sleeper->bell == i)
            syscall(SYS_futex, &sleeper->bell, FUTEX_WAIT, i, NULL, NULL, 0);
        sleeper->late_ns[i] = now_ns() - sleeper->rung_ns;
    }
    return NULL;
}

/* From the ring of a bell to whoever slept on it, as often as told: the least that a wait across processes takes. */
static PyObject *hook_floor(PyObject *module, PyObject *args)
{
    enum { MOST = 100000, APART_NS = 1000 * 1000 };
    int rounds;
    pthread_t thread;
    (void)module;
    if (!PyArg_ParseTuple(args, "i:hook_floor", &rounds))
        return NULL;
    if (rounds < 1 || rounds > MOST)
        return PyErr_Format(PyExc_ValueError, "%d rounds: choose 1 to %d", rounds, MOST);
    struct sleeper sleeper = {.rounds = (uint32_t)rounds, .late_ns = calloc((size_t)rounds, sizeof(uint64_t))};
    if (!sleeper.late_ns || pthread_create(&thread, NULL, sleep_and_look, &sleeper) != 0) {
        free(sleeper.late_ns);
        return PyErr_NoMemory();
    }
    const struct timespec rest = {0, APART_NS};
    Py_BEGIN_ALLOW_THREADS
    for (int i = 0; i < rounds; i++) {
        nanosleep(&rest, NULL);
        sleeper.rung_ns = now_ns();
        sleeper.bell++;
        syscall(SYS_futex, &sleeper.bell, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS
    PyObject *list = PyList_New(rounds);
    for (int i = 0; list && i < rounds; i++)
        PyList_SetItem(list, i, PyLong_FromUnsignedLongLong(sleeper.late_ns[i]));
    free(sleeper.late_ns);
    return list;
}

static PyMethodDef methods[] = {
    {"hook_requests", hook_requests, METH_VARARGS,
     "hook_requests(image, kernel, requests, launches, duration_ns, pause_ns): per request the instants of the last "
     "launch and of the wait's end"},
    {"hook_floor", hook_floor, METH_VARARGS, "hook_floor(rounds): ns from a futex's wake to the sleeper, each time"},
    {"hook_compare", hook_compare, METH_VARARGS,
     "hook_compare(bursts, calls): per burst ns per launch plain and hooked, per allocation or free, and instructions"},
    {"hook_spend", hook_spend, METH_VARARGS,
     "hook_spend(image, kernel, batches, batch, duration_ns): ns that all batches but the first took"},
    {NULL, NULL, 0, NULL},
};

int ct_add_hook(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
