/* Benchmark of the hook: times calls through it and the same calls without it, in one process, in alternating
 * bursts. */
#include "atomics.h"
#include "python/module.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <linux/perf_event.h>
#include <pthread.h>
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
typedef int (*call_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                           void **,
                           void **);
typedef int (*call_allocate)(unsigned long long *, size_t);
typedef int (*call_free)(unsigned long long);
typedef int (*call_synchronize)(void);

struct path {
    call_launch launch;
    call_allocate allocate;
    call_free release;
};

enum { SHAPES = 8 }; /* kernels launched in turn, so that a lookup is realistic */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static const char *open_path(struct path *path, void *library)
{
    path->launch = library ? (call_launch)dlsym(library, "cuLaunchKernel") : NULL;
    path->allocate = library ? (call_allocate)dlsym(library, "cuMemAlloc_v2") : NULL;
    path->release = library ? (call_free)dlsym(library, "cuMemFree_v2") : NULL;
    return path->launch && path->allocate && path->release ? NULL : "libcuda.so.1 lacks a required function";
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
        return "libcuda.so.1 lacks a required function";
    if (init(0) || retain(&context, 0) || set(context) || load(&module, image) || get(function, module, kernel))
        return "the driver could not load the kernel";
    return NULL;
}

/* Return nanoseconds per launch, and per allocation with its free. */
static double time_launches(const struct path *path, void *function, int calls)
{
    uint64_t before = now_ns();
    for (int i = 0; i < calls; i++)
        path->launch(function, 1 + (unsigned)i % SHAPES, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL);
    return (double)(now_ns() - before) / calls;
}

static double time_allocations(const struct path *path, int calls)
{
    unsigned long long pointer = 0;
    uint64_t before = now_ns();
    for (int i = 0; i < calls; i++) {
        path->allocate(&pointer, 64);
        path->release(pointer);
    }
    return (double)(now_ns() - before) / calls / 2;
}

/* Returns -1 if performance counters are not available. */
static double count_instructions(const struct path *path, void *function, int calls)
{
    struct perf_event_attr attributes = {.type = PERF_TYPE_HARDWARE, .size = sizeof attributes,
                                         .config = PERF_COUNT_HW_INSTRUCTIONS, .exclude_kernel = 1, .exclude_hv = 1};
    uint64_t before = 0, after = 0;
    int counter = (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0);
    if (counter < 0)
        return -1;
    int failed = read(counter, &before, sizeof before) != (ssize_t)sizeof before;
    time_launches(path, function, calls);
    failed |= read(counter, &after, sizeof after) != (ssize_t)sizeof after;
    close(counter);
    return failed || after <= before ? -1 : (double)(after - before) / calls;
}

static PyObject *hook_compare(PyObject *module, PyObject *args)
{
    int bursts, calls;
    void *function = NULL;
    struct path hooked, direct;
    (void)module;
    if (!PyArg_ParseTuple(args, "ii:hook_compare", &bursts, &calls))
        return NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const char *problem = open_path(&hooked, library);
    if (!problem)
        problem = open_path(&direct, dlopen("libcuda-real.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD));
    if (!problem)
        problem = open_function(library, "", "kernel", &function);
    if (!problem && (calls < 1 || hooked.launch == direct.launch))
        problem = "the hook is not loaded, so there is nothing to compare";
    if (problem) {
        PyErr_SetString(PyExc_OSError, problem);
        return NULL;
    }
    call_synchronize synchronize = (call_synchronize)dlsym(library, "cuCtxSynchronize");
    PyObject *rows = PyList_New(0);
    for (int i = 0; rows && i < bursts; i++) {
        double launch_direct = time_launches(&direct, function, calls),
            launch = time_launches(&hooked, function, calls);
        double allocation_direct = time_allocations(&direct, calls), allocation = time_allocations(&hooked, calls);
        PyObject *row = Py_BuildValue("(dddddd)", launch_direct, launch, allocation_direct, allocation,
                                      count_instructions(&direct, function, calls),
                                      count_instructions(&hooked, function, calls));
        if (!row || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    if (synchronize)
        synchronize(); /* the work is seen to have completed: this process does not count as active from here on */
    return rows;
}

/* Times a program that launches kernels of one length in batches and waits after each. */
static PyObject *hook_spend(PyObject *module, PyObject *args)
{
    const char *image, *kernel;
    int batches, batch;
    unsigned long long duration_ns;
    void *function = NULL;
    struct path path;
    (void)module;
    if (!PyArg_ParseTuple(args, "ssiiK:hook_spend", &image, &kernel, &batches, &batch, &duration_ns))
        return NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *parameters[] = {&duration_ns};
    const char *problem = open_path(&path, library);
    call_synchronize synchronize = library ? (call_synchronize)dlsym(library, "cuCtxSynchronize") : NULL;
    if (!problem)
        problem = synchronize ? open_function(library, image, kernel, &function)
            : "libcuda.so.1 lacks a required function";
    int failed = 0;
    uint64_t before = now_ns();
    for (int i = 0; !problem && i < batches; i++) {
        for (int j = 0; j < batch; j++)
            failed |= path.launch(function, 1 + (unsigned)j % SHAPES, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL);
        failed |= synchronize();
        if (i == 0)
            before = now_ns(); /* the first batch launches every kernel for the first time */
    }
    if (problem || failed) {
        PyErr_SetString(PyExc_OSError, problem ? problem : "a driver call failed");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(now_ns() - before);
}

/* Plays requests of some launches and a wait, with a pause after each; returns the instants of the last launch and of
 * the end of the wait. */
static PyObject *hook_requests(PyObject *module, PyObject *args)
{
    const char *image, *kernel;
    int requests, launches;
    unsigned long long duration_ns, pause_ns;
    void *function = NULL;
    struct path path;
    (void)module;
    if (!PyArg_ParseTuple(args, "ssiiKK:hook_requests", &image, &kernel, &requests, &launches, &duration_ns, &pause_ns))
        return NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *parameters[] = {&duration_ns};
    const char *problem = open_path(&path, library);
    call_synchronize synchronize = library ? (call_synchronize)dlsym(library, "cuCtxSynchronize") : NULL;
    if (!problem)
        problem = synchronize ? open_function(library, image, kernel, &function)
            : "libcuda.so.1 lacks a required function";
    PyObject *rows = PyList_New(0);
    for (int i = 0; rows && !problem && i < requests; i++) {
        int failed = 0;
        for (int j = 0; j < launches; j++)
            failed |= path.launch(function, 1 + (unsigned)j % SHAPES, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL);
        uint64_t launched_ns = now_ns();
        failed |= synchronize();
        PyObject *row = failed ? NULL : Py_BuildValue("(KK)", (unsigned long long)launched_ns,
                                                      (unsigned long long)now_ns());
        if (failed)
            problem = "a driver call failed";
        else if (!row || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
        const struct timespec pause = {(time_t)(pause_ns / 1000000000), (long)(pause_ns % 1000000000)};
        if (pause_ns)
            nanosleep(&pause, NULL);
    }
    if (problem) {
        PyErr_SetString(PyExc_OSError, problem);
        Py_CLEAR(rows);
    }
    return rows;
}

/* ---- wake-up latency ---------------------------------------------------------------------------------------------- */

struct sleeper {
    _Atomic uint32_t wake_word;
    _Atomic uint64_t woken_ns; /* instant of the wake call */
    uint32_t rounds;
    uint64_t *late_ns;
};

static void *record_wakeups(void *argument)
{
    struct sleeper *sleeper = argument;
    for (uint32_t i = 0; i < sleeper->rounds; i++) {
        while (sleeper->wake_word == i)
            syscall(SYS_futex, &sleeper->wake_word, FUTEX_WAIT, i, NULL, NULL, 0);
        sleeper->late_ns[i] = now_ns() - sleeper->woken_ns;
    }
    return NULL;
}

/* Measures the time from a futex wake to the sleeper's return: the minimum of any wait across processes. */
static PyObject *hook_baseline(PyObject *module, PyObject *args)
{
    enum { ROUNDS_MAX = 100000, INTERVAL_NS = 1000 * 1000 };
    int rounds;
    pthread_t thread;
    (void)module;
    if (!PyArg_ParseTuple(args, "i:hook_baseline", &rounds))
        return NULL;
    if (rounds < 1 || rounds > ROUNDS_MAX)
        return PyErr_Format(PyExc_ValueError, "%d rounds: must be 1 to %d", rounds, ROUNDS_MAX);
    struct sleeper sleeper = {.rounds = (uint32_t)rounds, .late_ns = calloc((size_t)rounds, sizeof(uint64_t))};
    if (!sleeper.late_ns || pthread_create(&thread, NULL, record_wakeups, &sleeper) != 0) {
        free(sleeper.late_ns);
        return PyErr_NoMemory();
    }
    const struct timespec pause = {0, INTERVAL_NS};
    Py_BEGIN_ALLOW_THREADS
    for (int i = 0; i < rounds; i++) {
        nanosleep(&pause, NULL);
        sleeper.woken_ns = now_ns();
        sleeper.wake_word++;
        syscall(SYS_futex, &sleeper.wake_word, FUTEX_WAKE, 1, NULL, NULL, 0);
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
     "hook_requests(image, kernel, requests, launches, duration_ns, pause_ns): return for each request the instants of "
     "the last launch and of the end of the wait"},
    {"hook_baseline", hook_baseline, METH_VARARGS,
        "hook_baseline(rounds): return for each round the ns from a futex wake to the sleeper's return"},
    {"hook_compare", hook_compare, METH_VARARGS,
     "hook_compare(bursts, calls): return for each burst the ns per launch and per allocation or free, and the "
     "instructions per launch, each without and with the hook"},
    {"hook_spend", hook_spend, METH_VARARGS,
     "hook_spend(image, kernel, batches, batch, duration_ns): return the ns that all batches but the first took"},
    {NULL, NULL, 0, NULL},
};

int ct_add_hook(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
