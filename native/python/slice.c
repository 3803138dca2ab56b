/* Python binding of the rewriting of PTX. */
#include "python/module.h"

#include "hook/slice/ptx.h"

static PyObject *kernels_of(const struct ct_ptx_module *module)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < module->count; i++) {
        const struct ct_ptx_kernel *kernel = &module->kernels[i];
        PyObject *item = Py_BuildValue("(yszII)", kernel->name, kernel->reason ? ct_ptx_reason(kernel->reason) : "",
                                       kernel->reason ? NULL : kernel->variant, kernel->parameter_count,
                                       kernel->parameter_bytes);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* Returns the text with variants, or None, and for each kernel its name, why it has no variant, the variant's name, and the
 * number and bytes of its parameters. */
static PyObject *ptx_rewrite(PyObject *module, PyObject *text)
{
    struct ct_ptx_module rewritten;
    char *bytes;
    Py_ssize_t count;
    (void)module;
    if (PyBytes_AsStringAndSize(text, &bytes, &count) < 0)
        return NULL;
    if (!ct_ptx_rewrite(bytes, (size_t)count, &rewritten))
        return PyErr_NoMemory();
    PyObject *kernels = kernels_of(&rewritten);
    PyObject *result = kernels ? Py_BuildValue("(y#N)", rewritten.text, (Py_ssize_t)rewritten.bytes, kernels) : NULL;
    ct_ptx_free(&rewritten);
    return result;
}

/* Returns the last parameter of a variant, for the blocks of a grid from this one on. */
static PyObject *ptx_part(PyObject *module, PyObject *args)
{
    uint32_t grid[3], first;
    (void)module;
    if (!PyArg_ParseTuple(args, "(III)I:ptx_part", &grid[0], &grid[1], &grid[2], &first))
        return NULL;
    if (!grid[0] || !grid[1] || !grid[2]) {
        PyErr_SetString(PyExc_ValueError, "a grid has at least one block");
        return NULL;
    }
    const struct ct_ptx_part part = ct_ptx_part(grid, first);
    return PyBytes_FromStringAndSize((const char *)&part, sizeof part);
}

int ct_add_slice(PyObject *module)
{
    static PyMethodDef functions[] = {{"ptx_rewrite", ptx_rewrite, METH_O, NULL},
                                      {"ptx_part", ptx_part, METH_VARARGS, NULL},
                                      {NULL, NULL, 0, NULL}};
    return PyModule_AddFunctions(module, functions);
}
