/* Python binding of the batch driver: takes buffers of steps and fills buffers of instants, without a call per
 * kernel. */
#include "device/script.h"
#include "python/device.h"

#include <string.h>

enum { STEPS, ARRIVALS, STREAMS, STARTS, ENDS, DELAYS, REPEAT_ENDS, BUFFERS };

struct job {
    struct ct_script_client clients[CT_SCRIPT_MAX_CLIENTS];
    Py_buffer views[CT_SCRIPT_MAX_CLIENTS][BUFFERS];
    Py_buffer kernels;
};

/* None means no buffer; any other object must consist of whole, aligned elements, and be writable if it receives
 * results. */
static int get_view(PyObject *object, Py_buffer *view, size_t element_bytes, int writable)
{
    memset(view, 0, sizeof *view);
    if (object == Py_None)
        return 0;
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return -1;
    if (view->len == 0 || ((size_t)view->len % element_bytes == 0 && (uintptr_t)view->buf % sizeof(uint64_t) == 0))
        return 0;
    PyErr_SetString(PyExc_ValueError, "a buffer of the script does not consist of whole, aligned elements");
    return -1;
}

static int lengths_agree(const struct ct_script_client *client, const Py_buffer *views)
{
    for (int k = STARTS; k <= DELAYS; k++)
        if (views[k].buf && (size_t)views[k].len != client->launch_capacity * sizeof(uint64_t))
            return 0;
    return !views[ARRIVALS].buf || (size_t)views[ARRIVALS].len == client->repeats * sizeof(uint64_t);
}

static int parse_client(PyObject *tuple, struct ct_script_client *client, Py_buffer *views)
{
    PyObject *objects[BUFFERS];
    unsigned long long repeats, start_ns;
    static const size_t element_bytes[BUFFERS] = {
        sizeof(struct ct_script_step), sizeof(uint64_t), sizeof(struct ct_script_stream), sizeof(uint64_t),
        sizeof(uint64_t), sizeof(uint64_t), sizeof(uint64_t),
    };
    if (!PyArg_ParseTuple(tuple, "OKOOIIIKOOOO", &objects[STEPS], &repeats, &objects[ARRIVALS], &objects[STREAMS],
                          &client->group_label, &client->sm_cap, &client->ahead_limit, &start_ns, &objects[STARTS],
                          &objects[ENDS], &objects[DELAYS], &objects[REPEAT_ENDS]))
        return -1;
    for (int k = 0; k < BUFFERS; k++)
        if (get_view(objects[k], &views[k], element_bytes[k], k >= STARTS) < 0)
            return -1;
    client->steps = views[STEPS].buf;
    client->step_count = (size_t)views[STEPS].len / sizeof(struct ct_script_step);
    client->repeats = repeats;
    client->start_ns = start_ns;
    client->arrivals_ns = views[ARRIVALS].buf;
    client->streams = views[STREAMS].buf;
    client->stream_count = (uint32_t)((size_t)views[STREAMS].len / sizeof(struct ct_script_stream));
    client->starts_ns = views[STARTS].buf;
    client->ends_ns = views[ENDS].buf;
    client->delays_ns = views[DELAYS].buf;
    for (int k = STARTS; k <= DELAYS; k++)
        if (views[k].buf)
            client->launch_capacity = (size_t)views[k].len / sizeof(uint64_t);
    client->repeat_ends_ns = views[REPEAT_ENDS].buf;
    client->repeat_capacity = (size_t)views[REPEAT_ENDS].len / sizeof(uint64_t);
    if (lengths_agree(client, views))
        return 0;
    PyErr_SetString(PyExc_ValueError, "the buffers of a script client differ in length");
    return -1;
}

static PyObject *build_results(const struct job *job, Py_ssize_t count)
{
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        const struct ct_script_client *client = &job->clients[i];
        PyObject *item = Py_BuildValue("(KKNKI)", (unsigned long long)client->launches,
                                       (unsigned long long)client->completions,
                                       ct_py_device_instant(client->finished_ns),
                                       (unsigned long long)client->blocked_ns, client->client);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

PyObject *ct_py_device_run_script(PyObject *self, PyObject *args)
{
    PyObject *kernels, *sequence, *list = NULL;
    unsigned long long until_ns;
    Py_ssize_t count = 0;
    if (!PyArg_ParseTuple(args, "OOK:run_script", &kernels, &sequence, &until_ns))
        return NULL;
    PyObject *tuples = PySequence_List(sequence);
    struct job *job = tuples ? PyMem_Calloc(1, sizeof *job) : NULL;
    if (!job || PyList_Size(tuples) > CT_SCRIPT_MAX_CLIENTS) {
        if (tuples)
            PyErr_SetString(PyExc_ValueError, job ? "too many clients" : "out of memory");
        PyMem_Free(job);
        Py_XDECREF(tuples);
        return NULL;
    }
    int failed = get_view(kernels, &job->kernels, sizeof(struct ct_kernel), 0);
    while (!failed && count < PyList_Size(tuples)) {
        failed = parse_client(PyList_GetItem(tuples, count), &job->clients[count], job->views[count]);
        count++;
    }
    if (!failed) {
        size_t kernel_count = (size_t)job->kernels.len / sizeof(struct ct_kernel);
        int result = ct_script_run(((struct ct_py_device *)self)->device, job->kernels.buf, kernel_count, job->clients,
                                   (size_t)count, until_ns);
        if (ct_py_device_raise(result) == 0)
            list = build_results(job, count);
    }
    PyBuffer_Release(&job->kernels);
    for (Py_ssize_t i = 0; i < count; i++)
        for (int k = 0; k < BUFFERS; k++)
            PyBuffer_Release(&job->views[i][k]);
    PyMem_Free(job);
    Py_DECREF(tuples);
    return list;
}
