/* Python binding of the gate: one process on one device, and the forecasts of its launches.
 *
 * All pages are in one buffer: the tenant table, the arbitration page, and the region of process pages. */
#include "gate/gate.h"
#include "gate/space.h"
#include "gate/duration.h"
#include "gate/process.h"
#include "gate/quiescence.h"
#include "gate/request.h"
#include "gate/slice.h"
#include "python/module.h"

#include <stdlib.h>
#include <structmember.h>

typedef unsigned long long ull;

enum { PROCESSES_OFFSET = CT_TABLE_BYTES + CT_GATE_PAGE_BYTES };

struct py_gate {
    PyObject_HEAD Py_buffer view, gang_view;
    uint32_t is_collective; /* the next launches */
    struct ct_gate *gate; /* aligned to a cache line */
};

struct py_forecast {
    PyObject_HEAD struct ct_forecast forecast;
};

struct py_duration {
    PyObject_HEAD struct ct_duration duration;
};

static struct ct_gate *gate_of(PyObject *self)
{
    return ((struct py_gate *)self)->gate;
}

static PyObject *gate_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *buffer;
    unsigned int index, generation;
    if (keywords && PyDict_Size(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Gate takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OII:Gate", &buffer, &index, &generation))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct py_gate *self = (struct py_gate *)alloc(type, 0);
    if (!self)
        return NULL;
    if (PyObject_GetBuffer(buffer, &self->view, PyBUF_WRITABLE) < 0) {
        self->view.obj = NULL;
        Py_DECREF(self);
        return NULL;
    }
    unsigned char *memory = self->view.buf;
    if (((uintptr_t)memory) % 8 || (size_t)self->view.len < PROCESSES_OFFSET + CT_PROCESSES_BYTES ||
        ct_tenant_table_check(memory, CT_TABLE_BYTES) < 0 || index >= CT_PROCESSES) {
        PyErr_SetString(PyExc_ValueError, "the buffer is not the memory of a device, or there is no such index");
        Py_DECREF(self);
        return NULL;
    }
    self->gate = aligned_alloc(64, (sizeof *self->gate + 63) / 64 * 64);
    if (!self->gate) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    struct ct_process_pages *processes = (struct ct_process_pages *)(memory + PROCESSES_OFFSET);
    ct_gate_open(self->gate, (const struct ct_tenant_table *)memory, processes, &processes[index].gate,
                 (struct ct_arbitration_page *)(memory + CT_TABLE_BYTES), index, generation);
    return (PyObject *)self;
}

static void gate_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyBuffer_Release(&((struct py_gate *)self)->view);
    PyBuffer_Release(&((struct py_gate *)self)->gang_view);
    free(((struct py_gate *)self)->gate);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int parse_request(PyObject *item, struct ct_launch_request *request)
{
    ull expect, upper, low, high, granularity = 0, blocks = 0, wave_blocks = 0;
    unsigned int may_fill, kernel_count = 1, free_ppm = 0, is_doubtful = 0;
    if (!PyArg_ParseTuple(item, "KKKKI|KIIIKK:request", &expect, &upper, &low, &high, &may_fill, &granularity,
                          &kernel_count, &free_ppm, &is_doubtful, &blocks, &wave_blocks))
        return -1;
    *request = (struct ct_launch_request){.expect_ns = expect,
                                          .upper_ns = upper,
                                          .low_ns = low,
                                          .high_ns = high,
                                          .may_fill = may_fill,
                                          .kernel_count = kernel_count,
                                          .granularity_ns = granularity,
                                          .free_ppm = free_ppm,
                                          .is_doubtful = is_doubtful,
                                          .blocks = blocks,
                                          .wave_blocks = wave_blocks};
    return 0;
}

static PyObject *must_ask(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(ct_gate_must_ask(gate_of(self)));
}

static PyObject *announce(PyObject *self, PyObject *args)
{
    PyObject *item;
    struct ct_launch_request request;
    ull now_ns;
    if (!PyArg_ParseTuple(args, "OK:announce", &item, &now_ns) || parse_request(item, &request) < 0)
        return NULL;
    request.sm_ppm = 0;
    ct_space_limit_open(gate_of(self), &request);
    ct_gate_announce(gate_of(self), &request, now_ns);
    return PyLong_FromUnsignedLong(request.sm_ppm);
}

static PyObject *gate_sync(PyObject *self, PyObject *args)
{
    ull low_ns, high_ns, now_ns;
    int is_drained;
    if (!PyArg_ParseTuple(args, "KKpK:sync", &low_ns, &high_ns, &is_drained, &now_ns))
        return NULL;
    ct_gate_sync(gate_of(self), low_ns, high_ns, is_drained, now_ns);
    Py_RETURN_NONE;
}

static PyObject *admit(PyObject *self, PyObject *args)
{
    PyObject *item;
    struct ct_launch_request request;
    ull since_ns, now_ns;
    if (!PyArg_ParseTuple(args, "OKK:admit", &item, &since_ns, &now_ns) || parse_request(item, &request) < 0)
        return NULL;
    request.is_collective = ((struct py_gate *)self)->is_collective;
    struct ct_gate_answer answer = ct_gate_admit(gate_of(self), &request, since_ns, now_ns);
    return Py_BuildValue("(IIKKIK)", answer.pass, answer.reason, (ull)answer.until_ns, (ull)request.expect_ns,
                         request.sm_ppm, (ull)request.part_blocks);
}

static PyObject *submitted(PyObject *self, PyObject *args)
{
    PyObject *item;
    struct ct_launch_request request;
    int is_submitted;
    ull now_ns;
    if (!PyArg_ParseTuple(args, "OpK:submitted", &item, &is_submitted, &now_ns) || parse_request(item, &request) < 0)
        return NULL;
    ct_gate_submitted(gate_of(self), &request, is_submitted, now_ns);
    Py_RETURN_NONE;
}

#define WITH_TWO(name, function)                                                                                       \
    static PyObject *name(PyObject *self, PyObject *args)                                                              \
    {                                                                                                                  \
        ull value, now_ns;                                                                                             \
        if (!PyArg_ParseTuple(args, "KK:" #name, &value, &now_ns))                                                     \
            return NULL;                                                                                               \
        function(gate_of(self), value, now_ns);                                                                        \
        Py_RETURN_NONE;                                                                                                \
    }
WITH_TWO(confirmed, ct_gate_confirmed)
WITH_TWO(waited, ct_gate_waited)
WITH_TWO(spun, ct_gate_spun)
WITH_TWO(overslept, ct_gate_overslept)

static PyObject *measured(PyObject *self, PyObject *args)
{
    ull charged_ns, used_ns, now_ns;
    if (!PyArg_ParseTuple(args, "KKK:measured", &charged_ns, &used_ns, &now_ns))
        return NULL;
    ct_gate_measured(gate_of(self), charged_ns, used_ns, now_ns);
    Py_RETURN_NONE;
}

#define WITH_ONE(name, function)                                                                                       \
    static PyObject *name(PyObject *self, PyObject *args)                                                              \
    {                                                                                                                  \
        ull value;                                                                                                     \
        if (!PyArg_ParseTuple(args, "K:" #name, &value))                                                               \
            return NULL;                                                                                               \
        function(gate_of(self), value);                                                                                \
        Py_RETURN_NONE;                                                                                                \
    }
WITH_ONE(prolong, ct_gate_prolong)
WITH_ONE(slept, ct_gate_slept)

static PyObject *wait_plan(PyObject *self, PyObject *args)
{
    ull until_ns, now_ns;
    unsigned int reason;
    if (!PyArg_ParseTuple(args, "IKK:wait_plan", &reason, &until_ns, &now_ns))
        return NULL;
    struct ct_gate_answer answer = {.pass = 0, .reason = reason, .until_ns = until_ns};
    struct ct_gate_wait_plan plan = ct_gate_wait_plan(gate_of(self), &answer, now_ns);
    return Py_BuildValue("(KK)", (ull)plan.sleep_until_ns, (ull)plan.spin_until_ns);
}

static PyObject *has_sleepers(PyObject *self, PyObject *args)
{
    ull now_ns;
    if (!PyArg_ParseTuple(args, "K:has_sleepers", &now_ns))
        return NULL;
    return PyBool_FromLong(ct_gate_has_sleepers(gate_of(self), now_ns));
}

/* Its argument is the smallest part of the SMs to which launches can be limited, or 0. */
static PyObject *share_by_mps(PyObject *self, PyObject *args)
{
    if (!PyArg_ParseTuple(args, "I:share_by_mps", &gate_of(self)->sm_step_ppm))
        return NULL;
    gate_of(self)->is_mps = 1;
    Py_RETURN_NONE;
}

/* Its arguments are the page of a gang and the number of its ranks. */
static PyObject *join_gang(PyObject *self, PyObject *args)
{
    struct py_gate *object = (struct py_gate *)self;
    unsigned int rank_count;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "w*I:join_gang", &view, &rank_count))
        return NULL;
    struct ct_gang_page *page = ct_gang_page_of(&view);
    if (!page) {
        PyBuffer_Release(&view);
        return NULL;
    }
    ct_gang_join(&object->gate->gang, page, rank_count, object->gate->generation);
    PyBuffer_Release(&object->gang_view);
    object->gang_view = view;
    Py_RETURN_NONE;
}

/* Its argument is whether the next launches are collectives. */
static PyObject *set_collective(PyObject *self, PyObject *args)
{
    int is_collective;
    if (!PyArg_ParseTuple(args, "p:set_collective", &is_collective))
        return NULL;
    ((struct py_gate *)self)->is_collective = (uint32_t)is_collective;
    Py_RETURN_NONE;
}

/* Counts a request in the process's page while it has an entry; oldest() publishes the oldest one in progress. */
static PyObject *requested(PyObject *self, PyObject *args)
{
    ull latency_ns, slo_ns;
    if (!PyArg_ParseTuple(args, "KK:requested", &latency_ns, &slo_ns))
        return NULL;
    ct_gate_request_ended(gate_of(self)->mine, latency_ns, slo_ns);
    Py_RETURN_NONE;
}

static PyObject *oldest(PyObject *self, PyObject *args)
{
    ull began_ns, slo_ns = 0;
    if (!PyArg_ParseTuple(args, "K|K:oldest", &began_ns, &slo_ns))
        return NULL;
    ct_gate_request_oldest(gate_of(self)->mine, began_ns, slo_ns);
    Py_RETURN_NONE;
}

static PyObject *completed(PyObject *self, PyObject *args)
{
    ull now_ns;
    if (!PyArg_ParseTuple(args, "K:completed", &now_ns))
        return NULL;
    ct_gate_completed(gate_of(self), now_ns);
    Py_RETURN_NONE;
}

static PyObject *busy_ns(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(load_relaxed(&gate_of(self)->mine->busy_ns));
}

static PyObject *clock_ppm(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ct_gate_clock_ppm(gate_of(self)));
}

static PyObject *quiescence(PyObject *self, PyObject *args)
{
    ull now_ns;
    if (!PyArg_ParseTuple(args, "K:quiescence", &now_ns))
        return NULL;
    const struct ct_quiescence state = ct_quiescence_of(gate_of(self), now_ns);
    return Py_BuildValue("(KKKK)", (ull)state.launches, (ull)state.siblings, (ull)state.from_ns, (ull)state.start_ns);
}

static PyObject *was_quiescent(PyObject *self, PyObject *args)
{
    ull launches, siblings, from_ns, start_ns, length_ns, now_ns;
    if (!PyArg_ParseTuple(args, "(KKKK)KK:was_quiescent", &launches, &siblings, &from_ns, &start_ns, &length_ns, &now_ns))
        return NULL;
    const struct ct_quiescence state = {launches, siblings, from_ns, start_ns};
    return PyBool_FromLong(ct_quiescence_of_siblings_lasted(gate_of(self), &state) &&
                           ct_quiescence_lasted(gate_of(self), &state, length_ns, 0, now_ns));
}

#define METHOD(name, flags) {#name, name, flags, NULL}
static PyMethodDef gate_methods[] = {
    METHOD(must_ask, METH_NOARGS),   METHOD(announce, METH_VARARGS),  {"sync", gate_sync, METH_VARARGS, NULL},
    METHOD(admit, METH_VARARGS),       METHOD(submitted, METH_VARARGS), METHOD(confirmed, METH_VARARGS),
    METHOD(waited, METH_VARARGS),    METHOD(spun, METH_VARARGS),      METHOD(prolong, METH_VARARGS),
    METHOD(share_by_mps, METH_VARARGS), METHOD(requested, METH_VARARGS), METHOD(oldest, METH_VARARGS),
    METHOD(measured, METH_VARARGS),  METHOD(slept, METH_VARARGS),     METHOD(overslept, METH_VARARGS),
        METHOD(wait_plan, METH_VARARGS),       METHOD(has_sleepers, METH_VARARGS),
    METHOD(completed, METH_VARARGS), METHOD(busy_ns, METH_NOARGS),
    METHOD(clock_ppm, METH_NOARGS),  METHOD(quiescence, METH_VARARGS),
    METHOD(was_quiescent, METH_VARARGS), METHOD(join_gang, METH_VARARGS),
    METHOD(set_collective, METH_VARARGS),
    {NULL, NULL, 0, NULL},
};

static PyObject *learn(PyObject *self, PyObject *args)
{
    ull interval_ns;
    if (!PyArg_ParseTuple(args, "K:learn", &interval_ns))
        return NULL;
    ct_forecast_learn(&((struct py_forecast *)self)->forecast, interval_ns);
    Py_RETURN_NONE;
}

static PyMethodDef forecast_methods[] = {METHOD(learn, METH_VARARGS), {NULL, NULL, 0, NULL}};

#define MEMBER_OFFSET(name) (offsetof(struct py_forecast, forecast) + offsetof(struct ct_forecast, name))
static PyMemberDef forecast_members[] = {
    {"low_ns", T_ULONGLONG, MEMBER_OFFSET(low_ns), READONLY, NULL},
    {"high_ns", T_ULONGLONG, MEMBER_OFFSET(high_ns), READONLY, NULL},
    {"seen", T_UINT, MEMBER_OFFSET(sample_count), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static struct ct_duration *duration_of(PyObject *self)
{
    return &((struct py_duration *)self)->duration;
}

static PyObject *duration_learn(PyObject *self, PyObject *args)
{
    ull length_ns, clock;
    int is_bound;
    if (!PyArg_ParseTuple(args, "KKp:learn", &length_ns, &clock, &is_bound))
        return NULL;
    if (is_bound)
        ct_duration_learn_bound(duration_of(self), length_ns, clock);
    else
        ct_duration_learn(duration_of(self), length_ns, clock);
    Py_RETURN_NONE;
}

static PyObject *from_profile(PyObject *self, PyObject *args)
{
    ull mean_ns, p90_ns, p99_ns;
    if (!PyArg_ParseTuple(args, "KKK:from_profile", &mean_ns, &p90_ns, &p99_ns))
        return NULL;
    ct_duration_from_profile(duration_of(self), mean_ns, p90_ns, p99_ns);
    Py_RETURN_NONE;
}

/* Returns the expected time at a clock, what about one ninth of the measurements exceeded, the longest, and whether the
 * expected time is doubtful. */
static PyObject *expected(PyObject *self, PyObject *args)
{
    ull clock;
    if (!PyArg_ParseTuple(args, "K:expected", &clock))
        return NULL;
    const struct ct_duration *duration = duration_of(self);
    const uint64_t expect_ns = ct_duration_expected(duration);
    return Py_BuildValue("(KKKO)", (ull)ct_duration_at_clock(expect_ns, clock),
                         (ull)ct_duration_at_clock(duration->count ? duration->range.high_ns : expect_ns, clock),
                         (ull)ct_duration_at_clock(duration->count ? duration->peak_ns : expect_ns, clock),
                         ct_duration_is_doubtful(duration) ? Py_True : Py_False);
}

static PyMethodDef duration_methods[] = {{"learn", duration_learn, METH_VARARGS, NULL},
                                         METHOD(from_profile, METH_VARARGS),
                                         METHOD(expected, METH_VARARGS),
                                         {NULL, NULL, 0, NULL}};
#define DURATION_OFFSET(name) (offsetof(struct py_duration, duration) + offsetof(struct ct_duration, name))
static PyMemberDef duration_members[] = {
    {"count", T_UINT, DURATION_OFFSET(count), READONLY, NULL},
    {"bound_count", T_UINT, DURATION_OFFSET(bound_count), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot gate_slots[] = {
    {Py_tp_new, gate_new}, {Py_tp_dealloc, gate_dealloc}, {Py_tp_methods, gate_methods}, {0, NULL}};
static PyType_Spec gate_spec = {"cotenant._native.Gate", sizeof(struct py_gate), 0, Py_TPFLAGS_DEFAULT, gate_slots};

static PyType_Slot forecast_slots[] = {
    {Py_tp_methods, forecast_methods}, {Py_tp_members, forecast_members}, {0, NULL}};
static PyType_Spec forecast_spec = {"cotenant._native.Forecast", sizeof(struct py_forecast), 0, Py_TPFLAGS_DEFAULT,
                                    forecast_slots};

static PyType_Slot duration_slots[] = {
    {Py_tp_methods, duration_methods}, {Py_tp_members, duration_members}, {0, NULL}};
static PyType_Spec duration_spec = {"cotenant._native.Duration", sizeof(struct py_duration), 0, Py_TPFLAGS_DEFAULT,
                                    duration_slots};

/* Returns the estimate for an unseen grid from that of another grid of the same function. */
static PyObject *duration_for_grid(PyObject *module, PyObject *args)
{
    ull expect_ns, blocks, other_blocks, slots;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKKK:duration_for_grid", &expect_ns, &blocks, &other_blocks, &slots))
        return NULL;
    return PyLong_FromUnsignedLongLong(ct_duration_for_grid(expect_ns, blocks, other_blocks, slots));
}

/* Returns how many blocks to launch next; 0: all. */
static PyObject *slice_blocks(PyObject *module, PyObject *args)
{
    long long kernel_ns, bound_ns;
    ull blocks, wave_blocks;
    (void)module;
    if (!PyArg_ParseTuple(args, "LKLK:slice_blocks", &kernel_ns, &blocks, &bound_ns, &wave_blocks))
        return NULL;
    return PyLong_FromUnsignedLongLong(ct_slice_blocks(kernel_ns, blocks, bound_ns, wave_blocks));
}

/* Returns how long so many other blocks of a kernel take. */
static PyObject *slice_time(PyObject *module, PyObject *args)
{
    ull kernel_ns, blocks, other_blocks, wave_blocks;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKKK:slice_time", &kernel_ns, &blocks, &other_blocks, &wave_blocks))
        return NULL;
    return PyLong_FromUnsignedLongLong(ct_slice_time(kernel_ns, blocks, other_blocks, wave_blocks));
}

static PyMethodDef functions[] = {METHOD(duration_for_grid, METH_VARARGS),
                                  METHOD(slice_blocks, METH_VARARGS),
                                  METHOD(slice_time, METH_VARARGS),
                                  {NULL, NULL, 0, NULL}};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    int failed = !type || PyModule_AddObjectRef(module, name, type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

int ct_add_gate_type(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "PROCESSES_OFFSET", PROCESSES_OFFSET) < 0)
        return -1;
    if (PyModule_AddFunctions(module, functions) < 0 || add_type(module, "Duration", &duration_spec) < 0)
        return -1;
    return add_type(module, "Gate", &gate_spec) < 0 ? -1 : add_type(module, "Forecast", &forecast_spec);
}
