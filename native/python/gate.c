/* Python binding of the grant page: functions on any buffer, mapped or not. */
#include "gate/grant.h"
#include "python/module.h"

#include <string.h>

static int raise_on_error(int result)
{
    switch (result) {
    case CT_GRANT_OK:
        return 0;
    case CT_GRANT_TOO_SMALL:
        PyErr_Format(PyExc_ValueError, "the buffer is smaller than a grant page (%d bytes)", (int)CT_GRANT_BYTES);
        return -1;
    case CT_GRANT_OTHER_VERSION:
        PyErr_Format(PyExc_ValueError, "the grant page does not have version %d", (int)CT_GRANT_VERSION);
        return -1;
    case CT_GRANT_BUSY:
        PyErr_SetString(PyExc_BlockingIOError, "the grant page was rewritten during every attempt to read it");
        return -1;
    default:
        PyErr_SetString(PyExc_ValueError, "the buffer is not a grant page");
        return -1;
    }
}

/* Atomic accesses to a misaligned buffer would be undefined behaviour; mappings and allocations are aligned. */
static int check_aligned(const Py_buffer *view)
{
    if (((uintptr_t)view->buf) % sizeof(uint64_t) == 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a grant page must be aligned to 8 bytes");
    return -1;
}

static PyObject *grant_init(PyObject *module, PyObject *args)
{
    Py_buffer view;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*:grant_init", &view))
        return NULL;
    int failed = check_aligned(&view) || raise_on_error(ct_grant_init(view.buf, (size_t)view.len));
    PyBuffer_Release(&view);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *grant_write(PyObject *module, PyObject *args)
{
    Py_buffer view;
    unsigned long long word[CT_GRANT_WORDS];
    struct ct_grant grant;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*(KKKKKKKKKK):grant_write", &view, &word[0], &word[1], &word[2], &word[3], &word[4],
                          &word[5], &word[6], &word[7], &word[8], &word[9]))
        return NULL;
    int failed = check_aligned(&view) || raise_on_error(ct_grant_check(view.buf, (size_t)view.len));
    if (!failed) {
        _Static_assert(sizeof word == sizeof grant, "one Python integer per word");
        memcpy(&grant, word, sizeof grant);
        ct_grant_write(view.buf, &grant);
    }
    PyBuffer_Release(&view);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *grant_read(PyObject *module, PyObject *args)
{
    Py_buffer view;
    struct ct_grant grant;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*:grant_read", &view))
        return NULL;
    int failed = check_aligned(&view) || raise_on_error(ct_grant_check(view.buf, (size_t)view.len)) ||
                 raise_on_error(ct_grant_read(view.buf, &grant));
    PyBuffer_Release(&view);
    if (failed)
        return NULL;
    return Py_BuildValue("(KKKKKKKKKK)", (unsigned long long)grant.state, (unsigned long long)grant.slot,
                         (unsigned long long)grant.generation, (unsigned long long)grant.online,
                         (unsigned long long)grant.priority, (unsigned long long)grant.share_ppm,
                         (unsigned long long)grant.memory_bytes, (unsigned long long)grant.slo_ns,
                             (unsigned long long)grant.gpu,
                         (unsigned long long)grant.neighbours);
}

static PyMethodDef methods[] = {
    {"grant_init", grant_init, METH_VARARGS, "grant_init(buffer): initialize a grant page, unless it is one already"},
    {"grant_write", grant_write, METH_VARARGS, "grant_write(buffer, words): replace the grant"},
    {"grant_read", grant_read, METH_VARARGS,
        "grant_read(buffer): return the words of the page, from one complete write"},
    {NULL, NULL, 0, NULL},
};

int ct_add_gate(PyObject *module)
{
    if (PyModule_AddFunctions(module, methods) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "GRANT_BYTES", CT_GRANT_BYTES) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "GRANT_VERSION", CT_GRANT_VERSION);
}
