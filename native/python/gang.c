/* Python binding of the agreement between the ranks of a job: the node frees entries of its page, and tests run it. */
#include "gate/gang.h"

#include "python/module.h"

#include <string.h>

typedef unsigned long long ull;

struct py_gang {
    PyObject_HEAD Py_buffer view;
    struct ct_gang gang;
};

static struct ct_gang *gang_of(PyObject *self)
{
    return &((struct py_gang *)self)->gang;
}

struct ct_gang_page *ct_gang_page_of(Py_buffer *view)
{
    if (((uintptr_t)view->buf) % 64 == 0 && (size_t)view->len >= CT_GANG_BYTES)
        return view->buf;
    PyErr_Format(PyExc_ValueError, "the page of a gang has %d bytes and is aligned to 64", (int)CT_GANG_BYTES);
    return NULL;
}

static PyObject *gang_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *buffer;
    unsigned int rank_count, generation;
    if (keywords && PyDict_Size(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Gang takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OII:Gang", &buffer, &rank_count, &generation))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct py_gang *self = (struct py_gang *)alloc(type, 0);
    if (!self)
        return NULL;
    if (PyObject_GetBuffer(buffer, &self->view, PyBUF_WRITABLE) < 0) {
        self->view.obj = NULL;
        Py_DECREF(self);
        return NULL;
    }
    struct ct_gang_page *page = ct_gang_page_of(&self->view);
    if (page)
        ct_gang_join(&self->gang, page, rank_count, generation);
    if (page && !self->gang.page)
        PyErr_Format(PyExc_ValueError, "a gang has 2 to %d ranks, and a process a generation", (int)CT_GANG_RANKS);
    if (!self->gang.page) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void gang_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyBuffer_Release(&((struct py_gang *)self)->view);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *begin(PyObject *self, PyObject *args)
{
    int is_contended;
    ull now_ns;
    if (!PyArg_ParseTuple(args, "pK:begin", &is_contended, &now_ns))
        return NULL;
    return PyBool_FromLong(ct_gang_begin(gang_of(self), is_contended, now_ns));
}

static PyObject *is_uncontended(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(ct_gang_is_uncontended(gang_of(self)));
}

static PyObject *is_agreed(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(ct_gang_is_agreed(gang_of(self)));
}

static PyObject *gang_open(PyObject *self, PyObject *args)
{
    ull now_ns;
    if (!PyArg_ParseTuple(args, "K:open", &now_ns))
        return NULL;
    return PyBool_FromLong(ct_gang_open(gang_of(self), now_ns));
}

static PyObject *gang_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(ct_gang_close(gang_of(self)));
}

static PyObject *passed(PyObject *self, PyObject *unused)
{
    (void)unused;
    ct_gang_passed(gang_of(self));
    return PyLong_FromUnsignedLong(gang_of(self)->passed);
}

static PyObject *held(PyObject *self, PyObject *args)
{
    ull now_ns;
    if (!PyArg_ParseTuple(args, "K:held", &now_ns))
        return NULL;
    ct_gang_held(gang_of(self), now_ns);
    Py_RETURN_NONE;
}

static PyObject *recheck_at(PyObject *self, PyObject *args)
{
    ull now_ns;
    if (!PyArg_ParseTuple(args, "K:recheck_at", &now_ns))
        return NULL;
    return PyLong_FromUnsignedLongLong(ct_gang_recheck_at(gang_of(self), now_ns));
}

#define METHOD(name, flags) {#name, name, flags, NULL}
static PyMethodDef gang_methods[] = {
    METHOD(begin, METH_VARARGS),
    METHOD(is_uncontended, METH_NOARGS),
    METHOD(is_agreed, METH_NOARGS),
    {"open", gang_open, METH_VARARGS, NULL},
    {"close", gang_close, METH_NOARGS, NULL},
    METHOD(passed, METH_NOARGS),
    METHOD(held, METH_VARARGS),
    METHOD(recheck_at, METH_VARARGS),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot gang_slots[] = {
    {Py_tp_new, gang_new}, {Py_tp_dealloc, gang_dealloc}, {Py_tp_methods, gang_methods}, {0, NULL}};
static PyType_Spec gang_spec = {"cotenant._native.Gang", sizeof(struct py_gang), 0, Py_TPFLAGS_DEFAULT, gang_slots};

static PyObject *gang_leave(PyObject *module, PyObject *args)
{
    Py_buffer view;
    unsigned int generation;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*I:gang_leave", &view, &generation))
        return NULL;
    struct ct_gang_page *page = ct_gang_page_of(&view);
    if (page)
        ct_gang_leave(page, generation);
    PyBuffer_Release(&view);
    if (!page)
        return NULL;
    Py_RETURN_NONE;
}

/* Returns, for each rank, its generation, the number of its latest collective, when it was last held by its gate, and
 * whether it has to ask one. */
static PyObject *gang_ranks(PyObject *module, PyObject *args)
{
    Py_buffer view;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*:gang_ranks", &view))
        return NULL;
    const struct ct_gang_page *page = ct_gang_page_of(&view);
    PyObject *ranks = page ? PyList_New(0) : NULL;
    for (int i = 0; ranks && i < CT_GANG_RANKS; i++) {
        const struct ct_gang_rank *rank = &page->ranks[i];
        PyObject *item =
            Py_BuildValue("(KKKK)", (ull)load_acquire(&rank->generation), (ull)load_acquire(&rank->passed),
                          (ull)load_acquire(&rank->asked_ns), (ull)load_acquire(&rank->is_contended));
        if (!item || PyList_Append(ranks, item) < 0)
            Py_CLEAR(ranks);
        Py_XDECREF(item);
    }
    PyBuffer_Release(&view);
    return ranks;
}

static PyMethodDef functions[] = {
    {"gang_leave", gang_leave, METH_VARARGS, "gang_leave(page, generation): free the entry of a process that left"},
    {"gang_ranks", gang_ranks, METH_VARARGS, "gang_ranks(page): return the entries of a page"},
    {NULL, NULL, 0, NULL},
};

int ct_add_gang(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0 ||
        PyModule_AddIntConstant(module, "GANG_BYTES", CT_GANG_BYTES) < 0 ||
        PyModule_AddIntConstant(module, "GANG_RANKS", CT_GANG_RANKS) < 0 ||
        PyModule_AddIntConstant(module, "GANG_PATIENCE_MAX_NS", CT_GANG_PATIENCE_MAX_NS) < 0 ||
        PyModule_AddIntConstant(module, "GANG_HELD_NS", CT_GANG_HELD_NS) < 0)
        return -1;
    PyObject *type = PyType_FromSpec(&gang_spec);
    const int failed = !type || PyModule_AddObjectRef(module, "Gang", type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}
