/* Python binding of the player: creates a context, plays without the GIL, and returns every request. */
#include "python/module.h"

#include "player/player.h"

#include <signal.h>
#include <string.h>

static const char CAPSULE[] = "cotenant.player";

struct player {
    struct pl_script script;
    struct pl_context context;
};

static void free_player(PyObject *capsule)
{
    struct player *player = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!player)
        return;
    pl_context_free(&player->context);
    pl_script_free(&player->script);
    PyMem_Free(player);
}

static PyObject *player_open(PyObject *module, PyObject *args)
{
    const char *script, *image;
    Py_ssize_t length;
    int priority, graph, error;
    (void)module;
    if (!PyArg_ParseTuple(args, "s#sii:player_open", &script, &length, &image, &priority, &graph))
        return NULL;
    struct player *player = PyMem_Calloc(1, sizeof *player);
    PyObject *capsule = player ? PyCapsule_New(player, CAPSULE, free_player) : NULL;
    if (!capsule) {
        PyMem_Free(player);
        return PyErr_NoMemory();
    }
    long line = pl_script_read(&player->script, script, (size_t)length);
    if (line) {
        Py_DECREF(capsule);
        return line < 0 ? PyErr_NoMemory() : PyErr_Format(PyExc_ValueError, "%ld", line);
    }
    const char *problem = pl_context_open(&player->context, &player->script, image, priority, graph, &error);
    if (problem) {
        Py_DECREF(capsule);
        return PyErr_Format(PyExc_OSError, error ? "%s (CUDA error %d)" : "%s", problem, error);
    }
    return capsule;
}

static void on_signal(int number)
{
    (void)number;
    pl_stop();
}

static PyObject *player_play(PyObject *module, PyObject *args)
{
    PyObject *capsule;
    struct pl_plan plan;
    struct pl_result result;
    struct sigaction handler = {.sa_handler = on_signal}, previous_int, previous_term;
    int arrival, reports_requests;
    unsigned long long period_ns, seed, requests, limit_ns;
    const char *instants;
    Py_ssize_t instants_bytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "OiKKKKy#p:player_play", &capsule, &arrival, &period_ns, &seed, &requests, &limit_ns,
                          &instants,
                          &instants_bytes, &reports_requests))
        return NULL;
    if (arrival == PL_INSTANTS && (!requests || requests > (size_t)instants_bytes / sizeof(uint64_t))) {
        PyErr_SetString(PyExc_ValueError, "there must be an instant for every request");
        return NULL;
    }
    struct player *player = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!player)
        return NULL;
    plan = (struct pl_plan){.arrival = (enum pl_arrival)arrival, .period_ns = period_ns, .seed = seed,
                            .requests = requests,
                            .limit_ns = limit_ns, .reports_requests = reports_requests};
    if (arrival == PL_INSTANTS) { /* copied, because bytes need not be aligned */
        uint64_t *copy = PyMem_Malloc((size_t)requests * sizeof *copy);
        if (!copy)
            return PyErr_NoMemory();
        memcpy(copy, instants, (size_t)requests * sizeof *copy);
        plan.instants_ns = copy;
    }
    sigaction(SIGINT, &handler, &previous_int);
    sigaction(SIGTERM, &handler, &previous_term);
    Py_BEGIN_ALLOW_THREADS;
    pl_play(&player->context, &player->script, &plan, &result);
    Py_END_ALLOW_THREADS;
    sigaction(SIGINT, &previous_int, NULL);
    sigaction(SIGTERM, &previous_term, NULL);
    PyMem_Free((void *)plan.instants_ns);
    PyObject *answer = NULL;
    if (result.no_memory)
        PyErr_NoMemory();
    else if (result.failed)
        PyErr_Format(PyExc_OSError, "a driver call failed (CUDA error %d)", result.failed);
    else
        answer = Py_BuildValue("y#K", result.count ? (const char *)result.requests : "",
                               (Py_ssize_t)(result.count * sizeof *result.requests),
                                   (unsigned long long)result.launches);
    pl_result_free(&result);
    return answer;
}

static PyObject *player_part(PyObject *module, PyObject *args)
{
    PyObject *capsule;
    unsigned long long first, count, due_ns;
    (void)module;
    if (!PyArg_ParseTuple(args, "OKKK:player_part", &capsule, &first, &count, &due_ns))
        return NULL;
    struct player *player = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!player)
        return NULL;
    if (first > player->script.count || count > player->script.count - first) {
        PyErr_SetString(PyExc_ValueError, "the script has no such steps");
        return NULL;
    }
    struct pl_request request = {.due_ns = due_ns};
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = pl_play_part(&player->context, &player->script, (size_t)first, (size_t)count, &request);
    Py_END_ALLOW_THREADS;
    if (failed)
        return PyErr_Format(PyExc_OSError, "a driver call failed (CUDA error %d)", failed);
    return PyLong_FromUnsignedLongLong(request.end_ns - request.begin_ns);
}

static PyMethodDef methods[] = {
    {"player_open", player_open, METH_VARARGS,
     "player_open(script, image, priority, graph): return a context with the script's kernels; ValueError has the "
     "number of an invalid line"},
    {"player_play", player_play, METH_VARARGS,
     "player_play(player, arrival, period_ns, seed, requests, limit_ns, instants, reports_requests): return (due, "
     "begin, end) of each request, and the number of launches"},
    {"player_part", player_part, METH_VARARGS,
     "player_part(player, first, count, due_ns): play some steps as one request, which is reported to cotenant; return its latency in nanoseconds"},
    {NULL, NULL, 0, NULL},
};

int ct_add_player(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
