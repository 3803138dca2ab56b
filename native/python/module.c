/* The extension module cotenant._native. */
#include "python/module.h"

static int execute(PyObject *module)
{
    if (ct_add_gate(module) < 0 || ct_add_gate_pages(module) < 0 || ct_add_gate_type(module) < 0 ||
        ct_add_device(module) < 0 || ct_add_softgpu(module) < 0 || ct_add_hook(module) < 0 ||
        ct_add_player(module) < 0 || ct_add_ledger(module) < 0 || ct_add_requests(module) < 0 ||
        ct_add_match(module) < 0 || ct_add_slice(module) < 0 || ct_add_gang(module) < 0)
        return -1;
    return ct_add_probe(module);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "cotenant._native",
    .m_doc = "The C parts of cotenant for Python.",
    .m_slots = slots,
};

__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
