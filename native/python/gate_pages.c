/* The gate's pages for Python: the node writes rosters, whoever shows them reads pages. */
#include "gate/request.h"
#include "python/module.h"

#include <string.h>

#define U(value) ((unsigned long long)(value))
#define LOAD(place) U(atomic_load_explicit(&(place), memory_order_acquire))

/* The view of a buffer that is large and aligned enough, or -1 with the complaint set. */
static int view_of(PyObject *object, int flags, size_t least, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    if ((size_t)view->len >= least && ((uintptr_t)view->buf) % sizeof(uint64_t) == 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "a gate page has %d bytes and is aligned to 8", (int)CT_GATE_PAGE_BYTES);
    PyBuffer_Release(view);
    return -1;
}

static PyObject *roster_init(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    Py_buffer view;
    unsigned long long slots;
    (void)module;
    if (!PyArg_ParseTuple(args, "OK:roster_init", &buffer, &slots) ||
        view_of(buffer, PyBUF_WRITABLE, CT_GATE_PAGE_BYTES, &view) < 0)
        return NULL;
    ct_roster_init(view.buf, (size_t)view.len, slots);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static int read_seat(PyObject *item, struct ct_gate_seat *seat)
{
    unsigned long slot, generation, priority, flags;
    unsigned long least, limit;
    if (!PyArg_ParseTuple(item, "kkkkkk:seat", &slot, &generation, &priority, &flags, &least, &limit))
        return -1;
    *seat = (struct ct_gate_seat){.generation = (uint32_t)generation,
                                  .slot = (uint16_t)slot,
                                  .priority = (uint8_t)priority,
                                  .flags = (uint8_t)flags,
                                  .least_ppm = (uint32_t)least,
                                  .limit_ppm = (uint32_t)limit};
    return 0;
}

static int read_rules(PyObject *header, PyObject *seats, struct ct_gate_rules *rules)
{
    unsigned long long policy, bound, delay, patience, switching, spin;
    if (!PyArg_ParseTuple(header, "KKKKKK:rules", &policy, &bound, &delay, &patience, &switching, &spin))
        return -1;
    *rules = (struct ct_gate_rules){policy, bound, delay, patience, switching, spin, 0, 0, {{0, 0, 0, 0, 0, 0}}};
    Py_ssize_t count = PySequence_Size(seats);
    if (count < 0)
        return -1;
    if (count > CT_GATE_SEATS) {
        PyErr_Format(PyExc_ValueError, "a roster has room for %d seats, not for %zd", (int)CT_GATE_SEATS, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(seats, i);
        int failed = !item || read_seat(item, &rules->seat[i]) < 0;
        Py_XDECREF(item);
        if (failed)
            return -1;
    }
    rules->seats = (uint64_t)count;
    return 0;
}

static int refuse_no_roster(const Py_buffer *view)
{
    if (ct_roster_check(view->buf, (size_t)view->len) == 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "this buffer is not a roster of this version");
    return -1;
}

static PyObject *roster_write(PyObject *module, PyObject *args)
{
    PyObject *buffer, *header, *seats;
    Py_buffer view;
    struct ct_gate_rules rules;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:roster_write", &buffer, &header, &seats) || read_rules(header, seats, &rules) < 0 ||
        view_of(buffer, PyBUF_WRITABLE, CT_GATE_PAGE_BYTES, &view) < 0)
        return NULL;
    int failed = refuse_no_roster(&view);
    if (!failed)
        ct_roster_write(view.buf, &rules);
    PyBuffer_Release(&view);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *roster_read(PyObject *module, PyObject *buffer)
{
    Py_buffer view;
    struct ct_gate_rules rules;
    uint64_t writes;
    (void)module;
    if (view_of(buffer, PyBUF_SIMPLE, CT_GATE_PAGE_BYTES, &view) < 0)
        return NULL;
    int failed = refuse_no_roster(&view);
    if (!failed && ct_roster_read(view.buf, &rules, &writes) < 0) {
        PyErr_SetString(PyExc_BlockingIOError, "the roster is being rewritten without pause");
        failed = 1;
    }
    PyBuffer_Release(&view);
    PyObject *seats = failed ? NULL : PyList_New((Py_ssize_t)rules.seats);
    for (uint64_t i = 0; seats && i < rules.seats; i++) {
        const struct ct_gate_seat *seat = &rules.seat[i];
        PyObject *item = Py_BuildValue("(kkkkkk)", (unsigned long)seat->slot, (unsigned long)seat->generation,
                                       (unsigned long)seat->priority, (unsigned long)seat->flags, (unsigned long)seat->least_ppm,
                                       (unsigned long)seat->limit_ppm);
        if (!item || PyList_SetItem(seats, (Py_ssize_t)i, item) < 0)
            Py_CLEAR(seats);
    }
    if (!seats)
        return NULL;
    return Py_BuildValue("((KKKKKK)N)", U(rules.policy), U(rules.bound_ns), U(rules.delay_ppm), U(rules.patience_ns),
                         U(rules.switch_ns), U(rules.spin_ppm), seats);
}

static PyObject *list_of(const _Atomic uint64_t *words, int count)
{
    PyObject *list = PyList_New(count);
    for (int i = 0; list && i < count; i++) {
        PyObject *item = PyLong_FromUnsignedLongLong(LOAD(words[i]));
        if (!item || PyList_SetItem(list, i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *buckets_of(const struct ct_gate_requests *requests)
{
    PyObject *list = PyList_New(CT_GATE_REQUEST_BUCKETS);
    for (int i = 0; list && i < CT_GATE_REQUEST_BUCKETS; i++) {
        PyObject *item = PyLong_FromUnsignedLongLong(LOAD(requests->bucket[i]));
        if (!item || PyList_SetItem(list, i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *request_bucket(PyObject *module, PyObject *latency)
{
    (void)module;
    const unsigned long long latency_ns = PyLong_AsUnsignedLongLong(latency);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLong(ct_gate_request_bucket(latency_ns));
}

/* A tenant's page as a dictionary: each number by itself, for no two of them were written at once. */
static PyObject *page_read(PyObject *module, PyObject *buffer)
{
    Py_buffer view;
    (void)module;
    if (view_of(buffer, PyBUF_SIMPLE, CT_GATE_PAGE_BYTES, &view) < 0)
        return NULL;
    const struct ct_gate_page *page = view.buf;
    const struct ct_gate_counts *c = &page->counts;
    const struct ct_gate_requests *requests = &page->requests;
    PyObject *made = Py_BuildValue(
        "{sKsKsKsKsKsKsKsKsKsKsKsKsKsKsNsKsNsKsKsKsKsKsKsKsKsNsNsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsNsLsKsKsK}", "sequence", LOAD(page->sequence), "at_ns",
        LOAD(page->at_ns), "quiet_ns", LOAD(page->quiet_ns), "next_ns", LOAD(page->next_ns), "busy_ns",
        LOAD(page->busy_ns), "generation", LOAD(page->generation), "latest_ns", LOAD(page->latest_ns), "waits_ns",
        LOAD(page->waits_ns), "wanted_ns", LOAD(page->wanted_ns), "pieces", LOAD(page->pieces), "active_ns", LOAD(page->active_ns), "marked_ns", LOAD(page->marked_ns), "asked_ns", LOAD(page->asked_ns), "unsure_ns", LOAD(page->unsure_ns), "recent_ns",
        list_of(page->recent_ns, CT_GATE_RECENT), "launches", LOAD(c->launches), "passed",
        list_of(c->passed, CT_GATE_REASONS), "device_ns",
        LOAD(c->device_ns), "filled_ns", LOAD(c->filled_ns), "waits", LOAD(c->waits), "waited_ns", LOAD(c->waited_ns),
        "spun_ns", LOAD(c->spun_ns), "slept_ns", LOAD(c->slept_ns), "overruns", LOAD(c->overruns), "overrun_ns",
        LOAD(c->overrun_ns), "overrun", list_of(c->overrun, CT_GATE_BUCKETS), "waited",
        list_of(c->waited, CT_GATE_BUCKETS), "admitted", LOAD(c->admitted), "submitted", LOAD(c->submitted), "late",
        LOAD(c->late), "late_ns", LOAD(c->late_ns), "stale", LOAD(c->stale), "foreseen", LOAD(c->foreseen), "early",
        LOAD(c->early), "miss_ns", LOAD(c->miss_ns), "confirmed", LOAD(c->confirmed), "stuck", LOAD(c->stuck), "paid_ns", LOAD(page->paid_ns), "paid_ppm",
        LOAD(page->paid_ppm), "over_ns", LOAD(page->over_ns), "part_ppm", LOAD(page->part_ppm), "requests_ended",
        LOAD(requests->ended), "requests_over", LOAD(requests->over), "requests_sum_ns", LOAD(requests->sum_ns),
        "requests_began_ns", LOAD(requests->began_ns), "requests_told", LOAD(requests->is_told), "request_buckets",
        buckets_of(requests), "lost_ns", (long long)LOAD(page->lost_ns), "told", LOAD(page->told), "owes_ns", LOAD(page->owes_ns),
        "least_ns", LOAD(page->least_ns));
    PyBuffer_Release(&view);
    return made;
}

static PyMethodDef methods[] = {
    {"roster_init", roster_init, METH_VARARGS, "roster_init(buffer, slots): make it a roster, unless it is one already"},
    {"roster_write", roster_write, METH_VARARGS,
     "roster_write(buffer, (policy, bound_ns, delay_ppm, patience_ns, switch_ns, spin_ppm), [(slot, generation, priority, "
     "flags, least_ppm, limit_ppm), ...])"},
    {"roster_read", roster_read, METH_O, "roster_read(buffer): what roster_write was given, never half of a write"},
    {"request_bucket", request_bucket, METH_O, "request_bucket(latency_ns): where a page counts such a request"},
    {"page_read", page_read, METH_O, "page_read(buffer): what a tenant's page says, by name"},
    {NULL, NULL, 0, NULL},
};

int ct_add_gate_pages(PyObject *module)
{
    if (PyModule_AddFunctions(module, methods) < 0 ||
        PyModule_AddIntConstant(module, "GATE_PAGE_BYTES", CT_GATE_PAGE_BYTES) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "GATE_SEATS", CT_GATE_SEATS) < 0
               ? -1
               : PyModule_AddIntConstant(module, "REQUEST_BUCKETS", CT_GATE_REQUEST_BUCKETS);
}
