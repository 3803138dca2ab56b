/* What each part of native/ adds to the extension module: one function per part, called by module.c. */
#ifndef COTENANT_PYTHON_MODULE_H
#define COTENANT_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int ct_add_gate(PyObject *module);
int ct_add_gate_pages(PyObject *module);
int ct_add_gate_type(PyObject *module);
int ct_add_device(PyObject *module);
int ct_add_softgpu(PyObject *module);
int ct_add_probe(PyObject *module);
int ct_add_hook(PyObject *module);
int ct_add_player(PyObject *module);
int ct_add_ledger(PyObject *module);
int ct_add_requests(PyObject *module);
int ct_add_match(PyObject *module);
int ct_add_slice(PyObject *module);
int ct_add_gang(PyObject *module);

/* Returns the page of a gang in a buffer, or NULL with an exception. */
struct ct_gang_page *ct_gang_page_of(Py_buffer *view);

#endif
