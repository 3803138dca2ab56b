/* Python binding of the gate's pages: writes and reads tenant tables, and reads the gate pages of processes. */
#include "gate/process.h"
#include "gate/request.h"
#include "python/module.h"

#include <string.h>

#define U(value) ((unsigned long long)(value))
#define WORD(word) U(load_acquire(&(word)))

/* Gets a view of a buffer that is large enough and aligned; returns -1 with an exception set. */
static int view_of(PyObject *object, int flags, size_t min_bytes, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    if ((size_t)view->len >= min_bytes && ((uintptr_t)view->buf) % sizeof(uint64_t) == 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "the buffer must have %d bytes and be aligned to 8", (int)min_bytes);
    PyBuffer_Release(view);
    return -1;
}

static PyObject *tenant_table_init(PyObject *module, PyObject *buffer)
{
    Py_buffer view;
    (void)module;
    if (view_of(buffer, PyBUF_WRITABLE, CT_TABLE_BYTES, &view) < 0)
        return NULL;
    ct_tenant_table_init(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static int read_entry(PyObject *item, struct ct_tenant_entry *entry)
{
    unsigned long index, generation, priority, flags, min_share, limit, tenant, tenant_generation;
    if (!PyArg_ParseTuple(item, "kkkkkkkk:entry", &index, &generation, &priority, &flags, &min_share, &limit, &tenant,
                          &tenant_generation))
        return -1;
    if (index >= CT_PROCESSES) {
        PyErr_Format(PyExc_ValueError, "a process has an index below %d, not %lu", (int)CT_PROCESSES, index);
        return -1;
    }
    *entry = (struct ct_tenant_entry){.generation = (uint32_t)generation,
                                      .index = (uint16_t)index,
                                      .priority = (uint8_t)priority,
                                      .flags = (uint8_t)flags,
                                      .min_share_ppm = (uint32_t)min_share,
                                      .limit_ppm = (uint32_t)limit,
                                      .tenant = (uint32_t)tenant,
                                      .tenant_generation = (uint32_t)tenant_generation};
    return 0;
}

static int read_rules(PyObject *header, PyObject *entries, struct ct_gate_rules *rules)
{
    unsigned long long policy, bound, delay, patience, switching, spin, sm, ignored;
    if (!PyArg_ParseTuple(header, "KKKKKKKK:rules", &policy, &bound, &delay, &patience, &switching, &spin, &sm,
                          &ignored))
        return -1;
    *rules = (struct ct_gate_rules){.policy = policy,
                                    .bound_ns = bound,
                                    .delay_ppm = delay,
                                    .patience_ns = patience,
                                    .switch_ns = switching,
                                    .spin_ppm = spin,
                                    .sm_ppm = sm,
                                    .ignored_priority_ppm = ignored};
    Py_ssize_t count = PySequence_Size(entries);
    if (count < 0)
        return -1;
    if (count > CT_PROCESSES) {
        PyErr_Format(PyExc_ValueError, "a tenant table has %d entries, but %zd were passed", (int)CT_PROCESSES, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(entries, i);
        int failed = !item || read_entry(item, &rules->processes[i]) < 0;
        Py_XDECREF(item);
        if (failed)
            return -1;
    }
    rules->process_count = (uint64_t)count;
    return 0;
}

static int check_tenant_table(const Py_buffer *view)
{
    if (ct_tenant_table_check(view->buf, (size_t)view->len) == 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "the buffer is not a tenant table of this version");
    return -1;
}

static PyObject *tenant_table_write(PyObject *module, PyObject *args)
{
    PyObject *buffer, *header, *entries;
    Py_buffer view;
    struct ct_gate_rules rules;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:tenant_table_write", &buffer, &header, &entries) ||
        read_rules(header, entries, &rules) < 0 ||
        view_of(buffer, PyBUF_WRITABLE, CT_TABLE_BYTES, &view) < 0)
        return NULL;
    int failed = check_tenant_table(&view);
    if (!failed)
        ct_tenant_table_write(view.buf, &rules);
    PyBuffer_Release(&view);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *tenant_table_read(PyObject *module, PyObject *buffer)
{
    Py_buffer view;
    struct ct_gate_rules rules;
    uint64_t writes;
    (void)module;
    if (view_of(buffer, PyBUF_SIMPLE, CT_TABLE_BYTES, &view) < 0)
        return NULL;
    int failed = check_tenant_table(&view);
    if (!failed && ct_tenant_table_read(view.buf, &rules, &writes) < 0) {
        PyErr_SetString(PyExc_BlockingIOError, "the tenant table was rewritten during every attempt to read it");
        failed = 1;
    }
    PyBuffer_Release(&view);
    PyObject *entries = failed ? NULL : PyList_New((Py_ssize_t)rules.process_count);
    for (uint64_t i = 0; entries && i < rules.process_count; i++) {
        const struct ct_tenant_entry *entry = &rules.processes[i];
        PyObject *item = Py_BuildValue("(kkkkkkkk)", (unsigned long)entry->index, (unsigned long)entry->generation,
                                       (unsigned long)entry->priority, (unsigned long)entry->flags,
                                       (unsigned long)entry->min_share_ppm, (unsigned long)entry->limit_ppm,
                                       (unsigned long)entry->tenant, (unsigned long)entry->tenant_generation);
        if (!item || PyList_SetItem(entries, (Py_ssize_t)i, item) < 0)
            Py_CLEAR(entries);
    }
    if (!entries)
        return NULL;
    return Py_BuildValue("((KKKKKKKK)N)", U(rules.policy), U(rules.bound_ns), U(rules.delay_ppm), U(rules.patience_ns),
                         U(rules.switch_ns), U(rules.spin_ppm), U(rules.sm_ppm),
                         U(rules.ignored_priority_ppm), entries);
}

static PyObject *tenant_table_set_clock(PyObject *module, PyObject *args)
{
    PyObject *buffer;
    unsigned long long clock_ppm;
    Py_buffer view;
    (void)module;
    if (!PyArg_ParseTuple(args, "OK:tenant_table_set_clock", &buffer, &clock_ppm) ||
        view_of(buffer, PyBUF_WRITABLE, CT_TABLE_BYTES, &view) < 0)
        return NULL;
    int failed = check_tenant_table(&view);
    if (!failed)
        store_relaxed(&((struct ct_tenant_table *)view.buf)->clock_ppm, clock_ppm);
    PyBuffer_Release(&view);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *list_of(const _Atomic uint64_t *words, int count)
{
    PyObject *list = PyList_New(count);
    for (int i = 0; list && i < count; i++) {
        PyObject *item = PyLong_FromUnsignedLongLong(WORD(words[i]));
        if (!item || PyList_SetItem(list, i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *buckets_of(const struct ct_gate_requests *requests)
{
    PyObject *list = PyList_New(CT_GATE_REQUEST_BUCKETS);
    for (int i = 0; list && i < CT_GATE_REQUEST_BUCKETS; i++) {
        PyObject *item = PyLong_FromUnsignedLongLong(WORD(requests->bucket[i]));
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

/* The words of a gate page by name. */
#define WORD_AT(name, member) {#name, offsetof(struct ct_gate_page, member)}
static const struct {
    const char *name;
    size_t offset;
} words[] = {
    WORD_AT(sequence, sequence),
    WORD_AT(at_ns, at_ns),
    WORD_AT(quiet_ns, quiet_ns),
    WORD_AT(next_ns, next_ns),
    WORD_AT(busy_ns, busy_ns),
    WORD_AT(generation, generation),
    WORD_AT(latest_ns, latest_ns),
    WORD_AT(waits_ns, waits_ns),
    WORD_AT(wanted_ns, wanted_ns),
    WORD_AT(kernel_count, kernel_count),
    WORD_AT(active_ns, active_ns),
    WORD_AT(active_counted_ns, active_counted_ns),
    WORD_AT(asked_ns, asked_ns),
    WORD_AT(unknown_ns, unknown_ns),
    WORD_AT(unfinished_ns, unfinished_ns),
    WORD_AT(paid_ns, paid_ns),
    WORD_AT(paid_ppm, paid_ppm),
    WORD_AT(over_ns, over_ns),
    WORD_AT(part_ppm, part_ppm),
    WORD_AT(used_ns, used_ns),
    WORD_AT(min_share_used_ns, min_share_used_ns),
    WORD_AT(loss_reports, loss_reports),
    WORD_AT(undelayed_ns, undelayed_ns),
    WORD_AT(measured_waits, measured_waits),
    WORD_AT(clean_wanted_ns, clean_wanted_ns),
    WORD_AT(ranks_ns, ranks_ns),
    WORD_AT(owes_ns, owes_ns),
    WORD_AT(min_share_ns, min_share_ns),
    WORD_AT(admitted_until_ns, admitted_until_ns),
    WORD_AT(mapped_epoch, mapped_epoch),
    WORD_AT(launches, counts.launches),
    WORD_AT(device_ns, counts.device_ns),
    WORD_AT(filled_ns, counts.filled_ns),
    WORD_AT(waits, counts.waits),
    WORD_AT(waited_ns, counts.waited_ns),
    WORD_AT(spun_ns, counts.spun_ns),
    WORD_AT(slept_ns, counts.slept_ns),
    WORD_AT(overruns, counts.overruns),
    WORD_AT(overrun_ns, counts.overrun_ns),
    WORD_AT(admitted, counts.admitted),
    WORD_AT(submitted, counts.submitted),
    WORD_AT(late, counts.late),
    WORD_AT(late_ns, counts.late_ns),
    WORD_AT(stale, counts.stale),
    WORD_AT(forecasts, counts.forecasts),
    WORD_AT(early, counts.early),
    WORD_AT(miss_ns, counts.miss_ns),
    WORD_AT(confirmed, counts.confirmed),
    WORD_AT(stuck, counts.stuck),
    WORD_AT(requests_ended, requests.ended),
    WORD_AT(requests_over, requests.over),
    WORD_AT(requests_sum_ns, requests.sum_ns),
    WORD_AT(requests_began_ns, requests.began_ns),
    WORD_AT(requests_reported, requests.is_reported),
    WORD_AT(cut_launches, cut_launches),
    WORD_AT(parts, parts),
};
/* Those with a sign. */
static const struct {
    const char *name;
    size_t offset;
} signed_words[] = {WORD_AT(lost_ns, lost_ns), WORD_AT(delayed_ns, delayed_ns)};
static const struct {
    const char *name;
    size_t offset;
    size_t count;
} lists[] = {
    {"recent_ns", offsetof(struct ct_gate_page, recent_ns), CT_GATE_RECENT},
    {"passed", offsetof(struct ct_gate_page, counts.passed), CT_GATE_REASONS},
    {"overrun", offsetof(struct ct_gate_page, counts.overrun), CT_GATE_BUCKETS},
    {"waited", offsetof(struct ct_gate_page, counts.waited), CT_GATE_BUCKETS},
    {"whole_launches", offsetof(struct ct_gate_page, whole_launches), CT_GATE_WHOLES},
};
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Adds a value to a dictionary and releases it; returns -1 with an exception set. */
static int put(PyObject *fields, const char *name, PyObject *value)
{
    const int result = value ? PyDict_SetItemString(fields, name, value) : -1;
    Py_XDECREF(value);
    return result;
}

static int put_page(PyObject *fields, const struct ct_gate_page *page)
{
    const char *base = (const char *)page;
    int failed = 0;
    for (size_t i = 0; i < COUNT_OF(words); i++)
        failed |= put(fields, words[i].name,
                      PyLong_FromUnsignedLongLong(WORD(*(const _Atomic uint64_t *)(base + words[i].offset))));
    for (size_t i = 0; i < COUNT_OF(signed_words); i++)
        failed |= put(fields, signed_words[i].name,
                      PyLong_FromLongLong((long long)WORD(*(const _Atomic uint64_t *)(base + signed_words[i].offset))));
    for (size_t i = 0; i < COUNT_OF(lists); i++)
        failed |= put(fields, lists[i].name,
                      list_of((const _Atomic uint64_t *)(base + lists[i].offset), lists[i].count));
    return failed | put(fields, "request_buckets", buckets_of(&page->requests));
}

/* Returns a gate page as a dictionary. Each number is read separately; together they are not a consistent
 * snapshot. */
static PyObject *page_read(PyObject *module, PyObject *buffer)
{
    Py_buffer view;
    (void)module;
    if (view_of(buffer, PyBUF_SIMPLE, CT_GATE_PAGE_BYTES, &view) < 0)
        return NULL;
    PyObject *fields = PyDict_New();
    if (fields && put_page(fields, view.buf))
        Py_CLEAR(fields);
    PyBuffer_Release(&view);
    return fields;
}

static PyMethodDef methods[] = {
    {"tenant_table_init", tenant_table_init, METH_O,
     "tenant_table_init(buffer): initialize a tenant table, unless it is one already"},
    {"tenant_table_write", tenant_table_write, METH_VARARGS,
     "tenant_table_write(buffer, (policy, bound_ns, delay_ppm, patience_ns, switch_ns, spin_ppm, sm_ppm, ignored_priority_ppm), [(index, generation, "
     "priority, flags, min_share_ppm, limit_ppm, tenant, tenant_generation), ...]): replace the rules"},
    {"tenant_table_set_clock", tenant_table_set_clock, METH_VARARGS,
        "tenant_table_set_clock(buffer, clock_ppm): publish the device's clock as a fraction of its highest one"},
    {"tenant_table_read", tenant_table_read, METH_O,
        "tenant_table_read(buffer): return the rules and the entries, from one complete write"},
    {"request_bucket", request_bucket, METH_O,
        "request_bucket(latency_ns): return the index of the bucket that counts a request of this latency"},
    {"page_read", page_read, METH_O, "page_read(buffer): return the words of a gate page, by name"},
    {NULL, NULL, 0, NULL},
};

int ct_add_gate_pages(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"GATE_PAGE_BYTES", CT_GATE_PAGE_BYTES}, {"TABLE_BYTES", CT_TABLE_BYTES}, {"PROCESSES", CT_PROCESSES},
        {"PROCESS_BYTES", CT_PROCESS_BYTES},     {"REQUEST_BUCKETS", CT_GATE_REQUEST_BUCKETS},
    };
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return PyModule_AddFunctions(module, methods);
}
