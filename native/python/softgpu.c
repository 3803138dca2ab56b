/* The device server for Python: one function that serves a software GPU until it is stopped. */
#include "python/module.h"
#include "softgpu/server/server.h"

#include <string.h>

/* Costs are 64-bit words: those of the device in this order, then struct sg_costs. cotenant.softgpu.costs packs them. */
enum { DEVICE_COSTS = 8, COSTS = DEVICE_COSTS + sizeof(struct sg_costs) / sizeof(uint64_t) };

static void apply_costs(const uint64_t costs[COSTS], struct ct_device_config *config)
{
    config->switch_ns = costs[0];
    config->slice_ns = costs[1];
    config->launch_ns = costs[2];
    config->issue_full_ppm = (uint32_t)costs[3];
    config->cache_contention_ppm = (uint32_t)costs[4];
    config->dram_contention_ppm = (uint32_t)costs[5];
    config->clock_drop_ppm = (uint32_t)costs[6];
    config->priority_effect_ppm = (uint32_t)costs[7];
}

static PyObject *serve(PyObject *module, PyObject *args)
{
    int listener;
    const char *key;
    unsigned int ordinal;
    Py_buffer uuid, packed;
    unsigned long long memory_bytes, context_bytes;
    int counts_code;
    (void)module;
    if (!PyArg_ParseTuple(args, "isIy*KKpy*:softgpu_serve", &listener, &key, &ordinal, &uuid, &memory_bytes,
                          &context_bytes, &counts_code, &packed))
        return NULL;
    uint64_t costs[COSTS];
    int is_complete = packed.len == sizeof costs;
    if (is_complete)
        memcpy(costs, packed.buf, sizeof costs);
    PyBuffer_Release(&packed);
    const struct ct_device_config *preset = ct_device_preset(key);
    if (!preset || uuid.len != 16 || !is_complete) {
        PyBuffer_Release(&uuid);
        if (preset && !is_complete)
            return PyErr_Format(PyExc_ValueError, "there are %d costs", COSTS);
        return PyErr_Format(PyExc_ValueError, preset ? "a uuid has 16 bytes" : "there is no device preset %s", key);
    }
    struct ct_device_config config = *preset;
    uint8_t identity[16];
    memcpy(identity, uuid.buf, sizeof identity);
    PyBuffer_Release(&uuid);
    if (memory_bytes)
        config.memory_bytes = memory_bytes;
    apply_costs(costs, &config);
    struct sg_costs driver_costs;
    memcpy(&driver_costs, costs + DEVICE_COSTS, sizeof driver_costs);
    config.context_bytes = context_bytes;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = sg_serve(listener, &config, &driver_costs, ordinal, identity, counts_code);
    Py_END_ALLOW_THREADS
    if (failed) {
        PyErr_Format(PyExc_OSError, "the software GPU cannot be served: %s", strerror(failed));
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"softgpu_serve", serve, METH_VARARGS,
     "softgpu_serve(listener, preset, ordinal, uuid, memory_bytes, context_bytes, counts_code, costs): serve until "
     "stopped; 0 bytes of memory keep the preset's value"},
    {NULL, NULL, 0, NULL},
};

int ct_add_softgpu(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
