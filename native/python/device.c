/* Python binding of the device model: presets as dicts, the type Device, and the exception of each result. */
#include "python/device.h"

#include <stdlib.h>
#include <string.h>

int ct_py_device_raise(int result)
{
    switch (result) {
    case CT_DEVICE_OK:
        return 0;
    case CT_DEVICE_STALE:
        PyErr_SetString(PyExc_LookupError,
                        "the client, context, stream, event or op does not exist or exists no longer");
        return -1;
    case CT_DEVICE_FULL:
        PyErr_SetString(PyExc_BufferError, "a limit of this device is reached");
        return -1;
    case CT_DEVICE_NO_MEMORY:
        PyErr_SetString(PyExc_MemoryError, "the device does not have enough free memory");
        return -1;
    case CT_DEVICE_NO_FIT:
        PyErr_SetString(PyExc_ValueError, "one block of this kernel does not fit an empty SM");
        return -1;
    case CT_DEVICE_NOT_READY:
        PyErr_SetString(PyExc_BlockingIOError, "the op is not ready");
        return -1;
    default:
        PyErr_SetString(PyExc_ValueError, "an argument is invalid");
        return -1;
    }
}

PyObject *ct_py_device_instant(uint64_t instant_ns)
{
    if (instant_ns == CT_DEVICE_NEVER)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(instant_ns);
}

/* ---- structs as dicts --------------------------------------------------------------------------------------------- */

enum field_kind { FIELD_U32, FIELD_I32, FIELD_U64 };

struct field {
    const char *name;
    size_t offset;
    enum field_kind kind;
};

#define U32(member) {#member, offsetof(struct ct_device_config, member), FIELD_U32}
#define I32(member) {#member, offsetof(struct ct_device_config, member), FIELD_I32}
#define U64(member) {#member, offsetof(struct ct_device_config, member), FIELD_U64}
#define COUNT(member) {#member, offsetof(struct ct_device_counters, member), FIELD_U64}

static const struct field config_fields[] = {
    U32(compute_major), U32(compute_minor), U32(sm_count), U32(threads_per_sm), U32(blocks_per_sm),
    U32(registers_per_sm), U32(shared_bytes_per_sm), U32(threads_per_block), U32(registers_per_thread),
    U32(shared_bytes_per_block), U32(shared_bytes_per_block_optin), U32(shared_reserved_bytes),
    U32(shared_granularity_bytes), U32(register_granularity), U32(resident_kernels), U32(clock_khz),
    U32(memory_clock_khz), U32(memory_bus_bits), U32(l2_bytes), U32(copy_engines), U64(memory_bytes),
    U64(memory_bytes_per_s), U64(host_bytes_per_s), I32(priority_least), I32(priority_greatest), U64(slice_ns),
    U64(switch_ns), U64(copy_latency_ns), U64(context_bytes), U64(launch_ns), U32(issue_full_ppm), U32(cache_contention_ppm),
    U32(dram_contention_ppm), U32(clock_drop_ppm), U32(priority_effect_ppm), {NULL, 0, FIELD_U32},
};

static const struct field counter_fields[] = {
    COUNT(kernels), COUNT(blocks), COUNT(copies), COUNT(memsets), COUNT(host_functions), COUNT(killed_ops),
    COUNT(busy_ns), COUNT(sm_ns), COUNT(thread_ns), COUNT(traffic_bytes), COUNT(host_bytes), COUNT(delayed_ns),
    COUNT(memory_bytes), COUNT(memory_peak_bytes), COUNT(switches), COUNT(late_calls), COUNT(dropped_records),
    COUNT(merged_chunks), {NULL, 0, FIELD_U64},
};

static PyObject *field_get(const struct field *field, const void *record)
{
    const char *address = (const char *)record + field->offset;
    uint32_t u32;
    int32_t i32;
    uint64_t u64;
    switch (field->kind) {
    case FIELD_U32:
        memcpy(&u32, address, sizeof u32);
        return PyLong_FromUnsignedLong(u32);
    case FIELD_I32:
        memcpy(&i32, address, sizeof i32);
        return PyLong_FromLong(i32);
    default:
        memcpy(&u64, address, sizeof u64);
        return PyLong_FromUnsignedLongLong(u64);
    }
}

static int field_set(const struct field *field, void *record, PyObject *value)
{
    char *address = (char *)record + field->offset;
    if (field->kind == FIELD_I32) {
        long number = PyLong_AsLong(value);
        int32_t i32 = (int32_t)number;
        if (number == -1 && PyErr_Occurred())
            return -1;
        memcpy(address, &i32, sizeof i32);
        return 0;
    }
    uint64_t u64 = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred())
        return -1;
    if (field->kind == FIELD_U64) {
        memcpy(address, &u64, sizeof u64);
        return 0;
    }
    if (u64 > UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%s does not fit into 32 bits", field->name);
        return -1;
    }
    uint32_t u32 = (uint32_t)u64;
    memcpy(address, &u32, sizeof u32);
    return 0;
}

static PyObject *to_dict(const struct field *fields, const void *record)
{
    PyObject *dict = PyDict_New();
    for (const struct field *field = fields; dict && field->name; field++) {
        PyObject *value = field_get(field, record);
        if (!value || PyDict_SetItemString(dict, field->name, value) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

PyObject *ct_py_device_counters(const struct ct_device_counters *counters)
{
    return to_dict(counter_fields, counters);
}

static PyObject *device_preset(PyObject *module, PyObject *args)
{
    const char *key;
    (void)module;
    if (!PyArg_ParseTuple(args, "s:device_preset", &key))
        return NULL;
    const struct ct_device_config *config = ct_device_preset(key);
    if (!config)
        return PyErr_Format(PyExc_LookupError, "there is no device preset %s", key);
    PyObject *dict = to_dict(config_fields, config);
    PyObject *name = PyUnicode_FromString(config->name), *full_key = PyUnicode_FromString(config->key);
    if (!dict || !name || !full_key || PyDict_SetItemString(dict, "name", name) < 0 ||
        PyDict_SetItemString(dict, "key", full_key) < 0)
        Py_CLEAR(dict);
    Py_XDECREF(name);
    Py_XDECREF(full_key);
    return dict;
}

static PyObject *device_preset_keys(PyObject *module, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    (void)module;
    (void)unused;
    for (uint32_t i = 0; list && ct_device_preset_at(i); i++) {
        PyObject *key = PyUnicode_FromString(ct_device_preset_at(i)->key);
        if (!key || PyList_Append(list, key) < 0)
            Py_CLEAR(list);
        Py_XDECREF(key);
    }
    return list;
}

static int parse_config(PyObject *dict, struct ct_device_config *config)
{
    memset(config, 0, sizeof *config);
    for (const struct field *field = config_fields; field->name; field++) {
        PyObject *value = PyDict_GetItemString(dict, field->name);
        if (!value) {
            PyErr_Format(PyExc_KeyError, "%s", field->name);
            return -1;
        }
        if (field_set(field, config, value) < 0)
            return -1;
    }
    return 0;
}

static PyObject *device_occupancy(PyObject *module, PyObject *args)
{
    PyObject *dict;
    struct ct_device_config config;
    unsigned int threads, registers, shared;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!III:device_occupancy", &PyDict_Type, &dict, &threads, &registers, &shared) ||
        parse_config(dict, &config) < 0)
        return NULL;
    return PyLong_FromUnsignedLong(ct_device_occupancy(&config, threads, registers, shared));
}

/* ---- the type ----------------------------------------------------------------------------------------------------- */

static PyObject *device_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *dict;
    struct ct_device_config config;
    struct ct_device_limits limits;
    unsigned long long now_ns;
    if (kwargs && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Device takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!(IIIIII)K:Device", &PyDict_Type, &dict, &limits.clients, &limits.contexts,
                          &limits.streams, &limits.events, &limits.ops, &limits.records, &now_ns) ||
        parse_config(dict, &config) < 0)
        return NULL;
    size_t bytes = (ct_device_bytes(&limits) + 63) / 64 * 64;
    if (bytes == 0) {
        PyErr_SetString(PyExc_ValueError, "the limits are out of range");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct ct_py_device *self = (struct ct_py_device *)allocate(type, 0);
    if (!self)
        return NULL;
    self->memory = aligned_alloc(64, bytes);
    if (!self->memory || ct_device_init(self->memory, bytes, &config, &limits, now_ns, &self->device)) {
        if (self->memory)
            PyErr_SetString(PyExc_ValueError, "the device configuration is invalid");
        else
            PyErr_NoMemory();
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void device_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free(((struct ct_py_device *)self)->memory);
    release(self);
    Py_DECREF(type);
}

static PyType_Slot type_slots[] = {
    {Py_tp_new, (void *)device_new},
    {Py_tp_dealloc, (void *)device_dealloc},
    {Py_tp_methods, ct_py_device_methods},
    {Py_tp_doc, "Device(config, limits, now_ns): a model of one GPU"},
    {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "cotenant._native.Device",
    .basicsize = sizeof(struct ct_py_device),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = type_slots,
};

static PyMethodDef methods[] = {
    {"device_preset", device_preset, METH_VARARGS,
        "device_preset(key): return the configuration of a preset as a dict"},
    {"device_preset_keys", device_preset_keys, METH_NOARGS, "device_preset_keys(): return the keys of all presets"},
    {"device_occupancy", device_occupancy, METH_VARARGS,
     "device_occupancy(config, threads, registers, shared_bytes): return how many blocks of this shape fit on an SM"},
    {NULL, NULL, 0, NULL},
};

int ct_add_device(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&type_spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Device", type);
    Py_DECREF(type);
    return failed < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
