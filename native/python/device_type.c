/* The methods of Device, one for each function of the model. */
#include "python/device.h"

typedef unsigned long long ull;

static struct ct_device *device_of(PyObject *self)
{
    return ((struct ct_py_device *)self)->device;
}

static PyObject *none_or_error(int result)
{
    if (ct_py_device_raise(result) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *handle_or_error(int result, uint32_t handle)
{
    return ct_py_device_raise(result) < 0 ? NULL : PyLong_FromUnsignedLong(handle);
}

static PyObject *op_or_error(int result, uint64_t op)
{
    return ct_py_device_raise(result) < 0 ? NULL : PyLong_FromUnsignedLongLong(op);
}

static PyObject *client_add(PyObject *self, PyObject *args)
{
    ull now_ns;
    unsigned int label;
    uint32_t client = 0;
    if (!PyArg_ParseTuple(args, "KI:client_add", &now_ns, &label))
        return NULL;
    int result = ct_device_client_add(device_of(self), now_ns, label, &client);
    return handle_or_error(result, client);
}

static PyObject *client_kill(PyObject *self, PyObject *args)
{
    ull now_ns;
    unsigned int client;
    if (!PyArg_ParseTuple(args, "KI:client_kill", &now_ns, &client))
        return NULL;
    return none_or_error(ct_device_client_kill(device_of(self), now_ns, client));
}

static PyObject *client_stop(PyObject *self, PyObject *args)
{
    ull now_ns;
    unsigned int client;
    if (!PyArg_ParseTuple(args, "KI:client_stop", &now_ns, &client))
        return NULL;
    return none_or_error(ct_device_client_stop(device_of(self), now_ns, client));
}

static PyObject *op_cut(PyObject *self, PyObject *args)
{
    ull now_ns, op;
    if (!PyArg_ParseTuple(args, "KK:op_cut", &now_ns, &op))
        return NULL;
    return none_or_error(ct_device_op_cut(device_of(self), now_ns, op));
}

static PyObject *set_speed(PyObject *self, PyObject *args)
{
    ull now_ns;
    unsigned int speed;
    if (!PyArg_ParseTuple(args, "KI:set_speed", &now_ns, &speed))
        return NULL;
    return none_or_error(ct_device_set_speed(device_of(self), now_ns, speed));
}

static PyObject *set_slice(PyObject *self, PyObject *args)
{
    ull now_ns, slice_ns;
    if (!PyArg_ParseTuple(args, "KK:set_slice", &now_ns, &slice_ns))
        return NULL;
    return none_or_error(ct_device_set_slice(device_of(self), now_ns, slice_ns));
}

static PyObject *slice_ns(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLongLong(ct_device_slice_ns(device_of(self)));
}

static PyObject *context_create(PyObject *self, PyObject *args)
{
    ull now_ns;
    unsigned int client, sm_cap;
    uint32_t context = 0;
    if (!PyArg_ParseTuple(args, "KII:context_create", &now_ns, &client, &sm_cap))
        return NULL;
    int result = ct_device_context_create(device_of(self), now_ns, client, sm_cap, &context);
    return handle_or_error(result, context);
}

static PyObject *context_destroy(PyObject *self, PyObject *args)
{
    ull now_ns;
    unsigned int context;
    if (!PyArg_ParseTuple(args, "KI:context_destroy", &now_ns, &context))
        return NULL;
    return none_or_error(ct_device_context_destroy(device_of(self), now_ns, context));
}

static PyObject *client_cap(PyObject *self, PyObject *args)
{
    ull now_ns;
    unsigned int client, sm_cap;
    if (!PyArg_ParseTuple(args, "KII:client_cap", &now_ns, &client, &sm_cap))
        return NULL;
    return none_or_error(ct_device_client_cap(device_of(self), now_ns, client, sm_cap));
}

static PyObject *context_cap(PyObject *self, PyObject *args)
{
    ull now_ns;
    unsigned int context, sm_cap;
    if (!PyArg_ParseTuple(args, "KII:context_cap", &now_ns, &context, &sm_cap))
        return NULL;
    return none_or_error(ct_device_context_cap(device_of(self), now_ns, context, sm_cap));
}

static PyObject *memory_take(PyObject *self, PyObject *args)
{
    ull bytes;
    unsigned int context;
    if (!PyArg_ParseTuple(args, "IK:memory_take", &context, &bytes))
        return NULL;
    return none_or_error(ct_device_memory_take(device_of(self), context, bytes));
}

static PyObject *memory_give(PyObject *self, PyObject *args)
{
    ull bytes;
    unsigned int context;
    if (!PyArg_ParseTuple(args, "IK:memory_give", &context, &bytes))
        return NULL;
    return none_or_error(ct_device_memory_give(device_of(self), context, bytes));
}

static PyObject *stream_create(PyObject *self, PyObject *args)
{
    ull now_ns;
    unsigned int context;
    int kind, priority;
    uint32_t stream = 0;
    if (!PyArg_ParseTuple(args, "KIii:stream_create", &now_ns, &context, &kind, &priority))
        return NULL;
    int result = ct_device_stream_create(device_of(self), now_ns, context, kind, priority, &stream);
    return handle_or_error(result, stream);
}

static PyObject *stream_destroy(PyObject *self, PyObject *args)
{
    ull now_ns;
    unsigned int stream;
    if (!PyArg_ParseTuple(args, "KI:stream_destroy", &now_ns, &stream))
        return NULL;
    return none_or_error(ct_device_stream_destroy(device_of(self), now_ns, stream));
}

static PyObject *event_create(PyObject *self, PyObject *args)
{
    unsigned int context;
    uint32_t event = 0;
    if (!PyArg_ParseTuple(args, "I:event_create", &context))
        return NULL;
    int result = ct_device_event_create(device_of(self), context, &event);
    return handle_or_error(result, event);
}

static PyObject *event_destroy(PyObject *self, PyObject *args)
{
    unsigned int event;
    if (!PyArg_ParseTuple(args, "I:event_destroy", &event))
        return NULL;
    return none_or_error(ct_device_event_destroy(device_of(self), event));
}

static PyObject *launch(PyObject *self, PyObject *args)
{
    ull now_ns, tag, blocks, block_ns, bytes;
    unsigned int stream, threads, registers, shared, per_sm, sm_cap;
    uint64_t op = 0;
    if (!PyArg_ParseTuple(args, "KI(KKKIIII)KI:launch", &now_ns, &stream, &blocks, &block_ns, &bytes, &threads,
                          &registers, &shared, &per_sm, &tag, &sm_cap))
        return NULL;
    struct ct_kernel kernel = {blocks, block_ns, bytes, threads, registers, shared, per_sm, sm_cap, 0};
    int result = ct_device_launch(device_of(self), now_ns, stream, &kernel, tag, &op);
    return op_or_error(result, op);
}

static PyObject *copy(PyObject *self, PyObject *args)
{
    ull now_ns, bytes, tag;
    unsigned int stream;
    int kind;
    uint64_t op = 0;
    if (!PyArg_ParseTuple(args, "KIiKK:copy", &now_ns, &stream, &kind, &bytes, &tag))
        return NULL;
    int result = ct_device_copy(device_of(self), now_ns, stream, kind, bytes, tag, &op);
    return op_or_error(result, op);
}

static PyObject *marker(PyObject *self, PyObject *args)
{
    ull now_ns, tag;
    unsigned int stream;
    uint64_t op = 0;
    if (!PyArg_ParseTuple(args, "KIK:marker", &now_ns, &stream, &tag))
        return NULL;
    int result = ct_device_marker(device_of(self), now_ns, stream, tag, &op);
    return op_or_error(result, op);
}

static PyObject *host(PyObject *self, PyObject *args)
{
    ull now_ns, tag;
    unsigned int stream;
    uint64_t op = 0;
    if (!PyArg_ParseTuple(args, "KIK:host", &now_ns, &stream, &tag))
        return NULL;
    int result = ct_device_host(device_of(self), now_ns, stream, tag, &op);
    return op_or_error(result, op);
}

static PyObject *host_done(PyObject *self, PyObject *args)
{
    ull now_ns, op;
    if (!PyArg_ParseTuple(args, "KK:host_done", &now_ns, &op))
        return NULL;
    return none_or_error(ct_device_host_done(device_of(self), now_ns, op));
}

static PyObject *event_record(PyObject *self, PyObject *args)
{
    ull now_ns, tag;
    unsigned int stream, event;
    uint64_t op = 0;
    if (!PyArg_ParseTuple(args, "KIIK:event_record", &now_ns, &stream, &event, &tag))
        return NULL;
    int result = ct_device_event_record(device_of(self), now_ns, stream, event, tag, &op);
    return op_or_error(result, op);
}

static PyObject *event_wait(PyObject *self, PyObject *args)
{
    ull now_ns, tag;
    unsigned int stream, event;
    uint64_t op = 0;
    if (!PyArg_ParseTuple(args, "KIIK:event_wait", &now_ns, &stream, &event, &tag))
        return NULL;
    int result = ct_device_event_wait(device_of(self), now_ns, stream, event, tag, &op);
    return op_or_error(result, op);
}

static PyObject *event_time(PyObject *self, PyObject *args)
{
    unsigned int event;
    uint64_t instant_ns = 0;
    if (!PyArg_ParseTuple(args, "I:event_time", &event))
        return NULL;
    int result = ct_device_event_time(device_of(self), event, &instant_ns);
    if (result == CT_DEVICE_NOT_READY || result == CT_DEVICE_INVALID)
        Py_RETURN_NONE;
    return op_or_error(result, instant_ns);
}

static PyObject *advance(PyObject *self, PyObject *args)
{
    ull now_ns;
    if (!PyArg_ParseTuple(args, "K:advance", &now_ns))
        return NULL;
    ct_device_advance(device_of(self), now_ns);
    Py_RETURN_NONE;
}

static PyObject *op_done(PyObject *self, PyObject *args)
{
    ull op;
    if (!PyArg_ParseTuple(args, "K:op_done", &op))
        return NULL;
    return PyBool_FromLong(ct_device_op_query(device_of(self), op) == CT_DEVICE_OK);
}

static PyObject *project_op(PyObject *self, PyObject *args)
{
    ull op;
    if (!PyArg_ParseTuple(args, "K:project_op", &op))
        return NULL;
    return ct_py_device_instant(ct_device_project_op(device_of(self), op));
}

static PyObject *project_context(PyObject *self, PyObject *args)
{
    unsigned int context;
    if (!PyArg_ParseTuple(args, "I:project_context", &context))
        return NULL;
    return ct_py_device_instant(ct_device_project_context(device_of(self), context));
}

static PyObject *next_change(PyObject *self, PyObject *unused)
{
    (void)unused;
    return ct_py_device_instant(ct_device_next_change(device_of(self)));
}

static PyObject *now(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ct_device_now(device_of(self)));
}

static PyObject *memory_free(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ct_device_memory_free(device_of(self)));
}

static PyObject *drain(PyObject *self, PyObject *unused)
{
    struct ct_device_record r;
    PyObject *list = PyList_New(0);
    (void)unused;
    while (list && ct_device_drain(device_of(self), &r, 1) == 1) {
        PyObject *item = Py_BuildValue("(KKIIIIIKKKKK)", (ull)r.op, (ull)r.tag, r.client, r.context, r.stream,
                                       (unsigned int)r.kind, (unsigned int)r.what, (ull)r.submit_ns, (ull)r.ready_ns,
                                       (ull)r.start_ns, (ull)r.end_ns, (ull)r.delayed_ns);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *count(PyObject *self, PyObject *unused)
{
    struct ct_device_counters counters;
    (void)unused;
    ct_device_count(device_of(self), &counters);
    return ct_py_device_counters(&counters);
}

static PyObject *count_client(PyObject *self, PyObject *args)
{
    struct ct_device_counters counters;
    unsigned int client;
    if (!PyArg_ParseTuple(args, "I:count_client", &client) ||
        ct_py_device_raise(ct_device_count_client(device_of(self), client, &counters)) < 0)
        return NULL;
    return ct_py_device_counters(&counters);
}

static PyObject *count_context(PyObject *self, PyObject *args)
{
    struct ct_device_counters counters;
    unsigned int context;
    if (!PyArg_ParseTuple(args, "I:count_context", &context) ||
        ct_py_device_raise(ct_device_count_context(device_of(self), context, &counters)) < 0)
        return NULL;
    return ct_py_device_counters(&counters);
}

static PyObject *delay(PyObject *self, PyObject *args)
{
    unsigned int waiter, culprit;
    if (!PyArg_ParseTuple(args, "II:delay", &waiter, &culprit))
        return NULL;
    return PyLong_FromUnsignedLongLong(ct_device_delay(device_of(self), waiter, culprit));
}

static PyObject *check(PyObject *self, PyObject *unused)
{
    const char *violation = ct_device_check(device_of(self));
    (void)unused;
    if (!violation)
        Py_RETURN_NONE;
    return PyUnicode_FromString(violation);
}

#define METHOD(name, flags) {#name, name, flags, NULL}
PyMethodDef ct_py_device_methods[] = {
    METHOD(client_add, METH_VARARGS), METHOD(client_kill, METH_VARARGS), METHOD(client_stop, METH_VARARGS),
    METHOD(op_cut, METH_VARARGS), METHOD(set_speed, METH_VARARGS), METHOD(set_slice, METH_VARARGS),
    METHOD(slice_ns, METH_NOARGS), METHOD(context_create, METH_VARARGS),
    METHOD(context_destroy, METH_VARARGS), METHOD(context_cap, METH_VARARGS), METHOD(client_cap, METH_VARARGS),
        METHOD(memory_take, METH_VARARGS),
    METHOD(memory_give, METH_VARARGS), METHOD(memory_free, METH_NOARGS), METHOD(stream_create, METH_VARARGS),
    METHOD(stream_destroy, METH_VARARGS), METHOD(event_create, METH_VARARGS), METHOD(event_destroy, METH_VARARGS),
    METHOD(launch, METH_VARARGS), METHOD(copy, METH_VARARGS), METHOD(marker, METH_VARARGS), METHOD(host, METH_VARARGS),
    METHOD(host_done, METH_VARARGS), METHOD(event_record, METH_VARARGS), METHOD(event_wait, METH_VARARGS),
    METHOD(event_time, METH_VARARGS), METHOD(advance, METH_VARARGS), METHOD(op_done, METH_VARARGS),
    METHOD(project_op, METH_VARARGS), METHOD(project_context, METH_VARARGS), METHOD(next_change, METH_NOARGS),
    METHOD(now, METH_NOARGS), METHOD(drain, METH_NOARGS), METHOD(count, METH_NOARGS),
    METHOD(count_client, METH_VARARGS), METHOD(count_context, METH_VARARGS), METHOD(delay, METH_VARARGS),
    METHOD(check, METH_NOARGS), {"run_script", ct_py_device_run_script, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL},
};
