/* The device server for Python: one function that serves a software GPU until it is stopped. */
#include "python/module.h"
#include "softgpu/server/server.h"

#include <string.h>

static PyObject *serve(PyObject *module, PyObject *args)
{
    int listener;
    const char *key;
    unsigned int ordinal;
    Py_buffer uuid;
    unsigned long long memory_bytes, slice_ns, context_bytes;
    int counts_code;
    (void)module;
    if (!PyArg_ParseTuple(args, "isIy*KKKp:softgpu_serve", &listener, &key, &ordinal, &uuid, &memory_bytes, &slice_ns,
                          &context_bytes, &counts_code))
        return NULL;
    const struct ct_device_config *preset = ct_device_preset(key);
    if (!preset || uuid.len != 16) {
        PyBuffer_Release(&uuid);
        return PyErr_Format(PyExc_ValueError, preset ? "a uuid has 16 bytes" : "there is no device preset %s", key);
    }
    struct ct_device_config config = *preset;
    uint8_t identity[16];
    memcpy(identity, uuid.buf, sizeof identity);
    PyBuffer_Release(&uuid);
    if (memory_bytes)
        config.memory_bytes = memory_bytes;
    if (slice_ns)
        config.slice_ns = slice_ns;
    config.context_bytes = context_bytes;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = sg_serve(listener, &config, ordinal, identity, counts_code);
    Py_END_ALLOW_THREADS
    if (failed) {
        PyErr_Format(PyExc_OSError, "the software GPU cannot be served: %s", strerror(failed));
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"softgpu_serve", serve, METH_VARARGS,
     "softgpu_serve(listener, preset, ordinal, uuid, memory_bytes, slice_ns, context_bytes, counts_code): serve until "
     "stopped; 0 bytes of memory or a slice of 0 keeps the preset's value"},
    {NULL, NULL, 0, NULL},
};

int ct_add_softgpu(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
