/* Python binding of the request detection: takes the calls of a program's threads, and returns the latencies of the
 * detected requests. */
#include "hook/launch/bursts.h"
#include "python/module.h"

#include <stdlib.h>

typedef unsigned long long ull;

struct py_bursts {
    PyObject_HEAD struct ct_bursts *bursts;
};

static struct ct_bursts *bursts_of(PyObject *self)
{
    return ((struct py_bursts *)self)->bursts;
}

static PyObject *bursts_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    if (!PyArg_ParseTuple(args, ":Bursts") || (keywords && PyDict_Size(keywords)))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct py_bursts *self = (struct py_bursts *)alloc(type, 0);
    if (!self)
        return NULL;
    self->bursts = malloc(sizeof *self->bursts);
    if (!self->bursts) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    ct_bursts_open(self->bursts);
    return (PyObject *)self;
}

static void bursts_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free(bursts_of(self));
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *launch(PyObject *self, PyObject *args)
{
    ull thread, now_ns;
    unsigned int number;
    struct ct_burst_ends ends = {.count = 0};
    if (!PyArg_ParseTuple(args, "KIK:launch", &thread, &number, &now_ns))
        return NULL;
    if (bursts_of(self)->current->thread != (uintptr_t)thread || !bursts_of(self)->count)
        ct_bursts_switch_thread(bursts_of(self), (uintptr_t)thread);
    if (!ct_burst_continues(bursts_of(self), number))
        ct_burst_resume(bursts_of(self), number, now_ns, &ends);
    PyObject *list = PyList_New((Py_ssize_t)ends.count);
    for (uint32_t i = 0; list && i < ends.count; i++) {
        PyObject *item = PyLong_FromUnsignedLongLong(ends.latency_ns[i]);
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *waited(PyObject *self, PyObject *args)
{
    ull thread, took_ns, now_ns;
    if (!PyArg_ParseTuple(args, "KKK:waited", &thread, &took_ns, &now_ns))
        return NULL;
    ct_burst_waited(bursts_of(self), (uintptr_t)thread, took_ns, now_ns);
    Py_RETURN_NONE;
}

static PyObject *polled(PyObject *self, PyObject *args)
{
    ull thread, now_ns;
    int is_done;
    if (!PyArg_ParseTuple(args, "KpK:polled", &thread, &is_done, &now_ns))
        return NULL;
    ct_burst_polled(bursts_of(self), (uintptr_t)thread, is_done, now_ns);
    Py_RETURN_NONE;
}

static PyObject *oldest(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ct_bursts_oldest(bursts_of(self)));
}

static PyMethodDef methods[] = {
    {"launch", launch, METH_VARARGS,
        "launch(thread, number, now_ns): record a launch; return the latencies of the requests that ended before it"},
    {"waited", waited, METH_VARARGS,
        "waited(thread, took_ns, now_ns): record that a thread returned from a call that waited"},
    {"polled", polled, METH_VARARGS, "polled(thread, is_done, now_ns): record that a thread polled the device"},
    {"oldest", oldest, METH_NOARGS, "oldest(): return when the oldest request in progress began; 0: none"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, bursts_new}, {Py_tp_dealloc, bursts_dealloc}, {Py_tp_methods, methods}, {0, NULL}};
static PyType_Spec spec = {"cotenant._native.Bursts", sizeof(struct py_bursts), 0, Py_TPFLAGS_DEFAULT, slots};

int ct_add_requests(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    int failed = !type || PyModule_AddObjectRef(module, "Bursts", type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : PyModule_AddIntConstant(module, "FIRST_BURSTS", CT_BURST_WARMUP);
}
