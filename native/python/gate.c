/* The gate for Python: functions over any buffer, mapped or not. */
#include "gate/terms.h"
#include "python/module.h"

#include <string.h>

static int refuse(int result)
{
    switch (result) {
    case CT_TERMS_OK:
        return 0;
    case CT_TERMS_SMALL:
        PyErr_Format(PyExc_ValueError, "a terms page has %d bytes, this buffer has fewer", (int)CT_TERMS_BYTES);
        return -1;
    case CT_TERMS_OTHER:
        PyErr_Format(PyExc_ValueError, "this terms page is of another version than %d", (int)CT_TERMS_VERSION);
        return -1;
    case CT_TERMS_BUSY:
        PyErr_SetString(PyExc_BlockingIOError, "the terms page is being rewritten without pause");
        return -1;
    default:
        PyErr_SetString(PyExc_ValueError, "this buffer is not a terms page");
        return -1;
    }
}

/* A misaligned buffer would make the atomic words undefined behaviour; mappings and allocations are aligned. */
static int aligned(const Py_buffer *view)
{
    if (((uintptr_t)view->buf) % sizeof(uint64_t) == 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a terms page must be aligned to 8 bytes");
    return -1;
}

static PyObject *terms_init(PyObject *module, PyObject *args)
{
    Py_buffer view;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*:terms_init", &view))
        return NULL;
    int failed = aligned(&view) || refuse(ct_terms_init(view.buf, (size_t)view.len));
    PyBuffer_Release(&view);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *terms_write(PyObject *module, PyObject *args)
{
    Py_buffer view;
    unsigned long long word[CT_TERMS_WORDS];
    struct ct_terms terms;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*(KKKKKKKKKK):terms_write", &view, &word[0], &word[1], &word[2], &word[3], &word[4],
                          &word[5], &word[6], &word[7], &word[8], &word[9]))
        return NULL;
    int failed = aligned(&view) || refuse(ct_terms_check(view.buf, (size_t)view.len));
    if (!failed) {
        _Static_assert(sizeof word == sizeof terms, "one Python integer per word");
        memcpy(&terms, word, sizeof terms);
        ct_terms_write(view.buf, &terms);
    }
    PyBuffer_Release(&view);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *terms_read(PyObject *module, PyObject *args)
{
    Py_buffer view;
    struct ct_terms t;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*:terms_read", &view))
        return NULL;
    int failed = aligned(&view) || refuse(ct_terms_check(view.buf, (size_t)view.len)) ||
                 refuse(ct_terms_read(view.buf, &t));
    PyBuffer_Release(&view);
    if (failed)
        return NULL;
    return Py_BuildValue("(KKKKKKKKKK)", (unsigned long long)t.state, (unsigned long long)t.slot,
                         (unsigned long long)t.generation, (unsigned long long)t.online,
                         (unsigned long long)t.priority, (unsigned long long)t.share_ppm,
                         (unsigned long long)t.memory_bytes, (unsigned long long)t.slo_ns, (unsigned long long)t.gpu,
                         (unsigned long long)t.neighbours);
}

static PyMethodDef methods[] = {
    {"terms_init", terms_init, METH_VARARGS, "terms_init(buffer): make it a terms page, free unless it is one already"},
    {"terms_write", terms_write, METH_VARARGS, "terms_write(buffer, words): replace what the page says"},
    {"terms_read", terms_read, METH_VARARGS, "terms_read(buffer): the words of the page, never half of a write"},
    {NULL, NULL, 0, NULL},
};

int ct_add_gate(PyObject *module)
{
    if (PyModule_AddFunctions(module, methods) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "TERMS_BYTES", CT_TERMS_BYTES) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "TERMS_VERSION", CT_TERMS_VERSION);
}
