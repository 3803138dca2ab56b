/* Python binding of the request detection: takes the calls of a program's threads, and returns the latencies of the
 * detected requests. */
#include "hook/launch/bursts.h"
#include "python/module.h"

#include <stdlib.h>

typedef unsigned long long ull;

struct py_bursts {
    PyObject_HEAD struct ct_bursts *bursts;
};

static struct ct_bursts *of(PyObject *self)
{
    return ((struct py_bursts *)self)->bursts;
}

static PyObject *bursts_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    if (!PyArg_ParseTuple(args, ":Bursts") || (keywords && PyDict_Size(keywords)))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct py_bursts *made = (struct py_bursts *)alloc(type, 0);
    if (!made)
        return NULL;
    made->bursts = malloc(sizeof *made->bursts);
    if (!made->bursts) {
        Py_DECREF(made);
        return PyErr_NoMemory();
    }
    ct_bursts_open(made->bursts);
    return (PyObject *)made;
}

static void bursts_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free(of(self));
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
    if (of(self)->current->thread != (uintptr_t)thread || !of(self)->count)
        ct_bursts_switch_thread(of(self), (uintptr_t)thread);
    if (!ct_burst_continues(of(self), number))
        ct_burst_resume(of(self), number, now_ns, &ends);
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
    ct_burst_waited(of(self), (uintptr_t)thread, took_ns, now_ns);
    Py_RETURN_NONE;
}

static PyObject *polled(PyObject *self, PyObject *args)
{
    ull thread, now_ns;
    int is_done;
    if (!PyArg_ParseTuple(args, "KpK:polled", &thread, &is_done, &now_ns))
        return NULL;
    ct_burst_polled(of(self), (uintptr_t)thread, is_done, now_ns);
    Py_RETURN_NONE;
}

static PyObject *oldest(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ct_bursts_oldest(of(self)));
}

static PyMethodDef methods[] = {
    {"launch", launch, METH_VARARGS, "launch(thread, what, now_ns): how long the requests took that are over by it"},
    {"waited", waited, METH_VARARGS, "waited(thread, took_ns, now_ns): it comes out of a call that waited"},
    {"polled", polled, METH_VARARGS, "polled(thread, is_done, now_ns): it has asked the device"},
    {"oldest", oldest, METH_NOARGS, "oldest(): when the oldest request under way began; 0: none is"},
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
