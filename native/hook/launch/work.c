/* The rare parts of a launch, and its passage through the gate. */
#include "hook/launch/work.h"

#include "gate/announce.h"
#include "gate/lease.h"
#include "hook/launch/ranks.h"
#include "hook/launch/stream_values.h"
#include "hook/timing/pairs.h"

/* Launches that are timed only because the kernel's time is unknown. */
enum { TRIES = 8, ATTEMPTS = 64 };
/* A host that has not waited for its work for this long is not expected to. */
enum { WATCH_AFTER_NS = 20 * 1000 * 1000 };

void ct_launch_time(struct ct_launch *launch)
{
    struct ct_session *session = launch->session;
    struct ct_kernel_time *kernel_time = launch->must_time ||
        launch->must_check ? launch->identity->kernel_time : NULL;
    /* For an unknown kernel an upper bound is useful; a short one usually takes the same time next to active neighbours
     * as alone. */
    const int must_bound = (launch->must_time && !kernel_time->is_known) ||
                           (launch->must_check && (!kernel_time->is_known ||
                                                   kernel_time->expect_ns <= CT_KERNEL_TIME_CORUN_MAX_NS));
    const int must_wait = must_bound && ct_timing_must_wait(session, launch->stream, launch->is_per_thread);
    if (must_wait && ct_kernel_time_can_wait(kernel_time))
        return; /* a later launch of the same kernel usually follows our own work, and is more informative */
    launch->pair = ct_timing_begin(session, launch->stream, launch->is_per_thread, must_bound);
    if (launch->pair)
        launch->pair->part_blocks = launch->request.part_blocks;
    if (!kernel_time)
        return;
    ct_lock(session);
    kernel_time->tries += launch->must_time && launch->pair;
    if (launch->must_check && launch->pair) {
        launch->pair->charges = kernel_time->charges;
        launch->pair->charged_ns = kernel_time->charged_ns;
        launch->pair->has_waited = must_wait;
    }
    if (launch->must_check) /* without a pair the charge remains as predicted */
        ct_kernel_time_checked(kernel_time, ct_random(session));
    ct_unlock(session);
}

/* CT_NO_STREAM is not a handle that the driver could dereference. */
static CUstream stream_of(const struct ct_launch *launch)
{
    return launch->stream == CT_NO_STREAM ? NULL : launch->stream;
}

/* Returns whether the stream is being captured: then the launch is not executed now. */
static int is_captured(const struct ct_launch *launch)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!load_relaxed(&launch->session->captures))
        return 0;
    const CUstream stream = stream_of(launch);
    CUresult result = launch->is_per_thread ? CT_NEXT(cuStreamIsCapturing_ptsz)(stream, &status)
                                     : CT_NEXT(cuStreamIsCapturing)(stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* ---- admission ---------------------------------------------------------------------------------------------------- */

/* Adds the interval that ends with this launch to the forecast of the previous step. */
static inline void learn_interval(struct ct_session *session, struct ct_gateway *gateway, uint64_t ticks,
                                  uint64_t interval_ns)
{
    struct ct_step *step = session->step; /* the first launch of all ends no interval, but its step is never used again */
    if (CT_UNLIKELY(gateway->has_synced)) {
        ct_forecast_learn(&step->after_sync, ct_clock_between_ns(&session->clock, gateway->synced_ticks, ticks));
        gateway->has_synced = 0;
        return;
    }
    ct_forecast_learn(&step->next, interval_ns);
}

/* Returns whether the launch may wait for kernels of other processes. Among the ranks of a job, a cooperative one may. */
static inline int is_collective(const struct ct_launch *launch)
{
    return launch->identity->is_collective ||
           (launch->is_cooperative && (launch->session->gateway->gate.gang.page || ct_ranks_exist(launch->session)));
}

/* Decides whether the launch is timed because the kernel's time is unknown. */
static inline void decide_timing(struct ct_launch *launch, struct ct_kernel_time *kernel_time)
{
    if (CT_UNLIKELY((!kernel_time->is_known || kernel_time->is_doubtful) && kernel_time->tries < TRIES)) /* if
                                                                            * neighbours are never quiescent, not every
                                                                            * launch tries */
        launch->must_time = kernel_time->attempts++ < ATTEMPTS || kernel_time->attempts % ATTEMPTS == 0;
}

/* The request is written one field after the other: a processor takes longer to begin clearing a structure than to store
 * its words. */
void ct_launch_predict(struct ct_launch *launch)
{
    struct ct_kernel_time *kernel_time = launch->identity->kernel_time;
    const struct ct_gate *gate = &launch->session->gateway->gate;
    const struct ct_forecast *next = &launch->session->step->next;
    const uint64_t clock_ppm = ct_gate_clock_ppm(gate);
    struct ct_launch_request *request = &launch->request;
    request->expect_ns = ct_duration_at_clock(kernel_time->expect_ns, clock_ppm);
    request->upper_ns = ct_duration_at_clock(kernel_time->upper_ns, clock_ppm);
    request->low_ns = next->low_ns;
    request->high_ns = next->high_ns;
    request->may_fill = kernel_time->may_fill;
    request->kernel_count = kernel_time->kernel_count;
    request->granularity_ns = ct_kernel_time_granularity(kernel_time);
    request->free_ppm = kernel_time->free_ppm;
    request->is_doubtful = kernel_time->is_doubtful;
    request->blocks = request->wave_blocks = request->part_blocks = 0;
    request->is_collective = (uint32_t)is_collective(launch);
    request->is_coupled = request->is_agreed = request->is_probe = 0;
    request->sm_ppm = 0;
    launch->must_check = CT_UNLIKELY(gate->limit_ppm && gate->must_ask) && ct_kernel_time_must_check(kernel_time);
    decide_timing(launch, kernel_time);
}

static __attribute__((noinline)) void note_other_origin(struct ct_gateway *gateway, const struct ct_launch *launch,
                                                        uintptr_t thread, uint64_t now_ns)
{
    const uint64_t stream = ct_stream_word(stream_of(launch), launch->is_per_thread);
    if (gateway->thread != thread) {
        gateway->thread_changed_ns = gateway->thread ? now_ns : 0;
        gateway->thread = thread;
        ct_bursts_switch_thread(&gateway->requests.bursts, thread);
    }
    if (gateway->stream == CT_NO_WORD)
        gateway->stream = stream;
    else if (gateway->stream != stream)
        gateway->has_several_streams = 1;
}

/* Records the stream and the thread, which decide whether a wait for one stream is a wait for all work. */
static inline void note_origin(struct ct_gateway *gateway, const struct ct_launch *launch, uint64_t now_ns)
{
    const uintptr_t thread = (uintptr_t)__builtin_thread_pointer();
    if (CT_UNLIKELY(gateway->thread != thread ||
                    gateway->stream != ct_stream_word(launch->stream, launch->is_per_thread)))
        note_other_origin(gateway, launch, thread, now_ns);
}

/* Every driver refuses an empty grid or block. */
static int is_valid_shape(enum ct_work work, const struct ct_shape *shape)
{
    int is_valid = 1;
    for (int i = 0; work == CT_WORK_KERNEL && i < 3; i++)
        is_valid &= shape->grid[i] && shape->block[i];
    return is_valid;
}

void ct_launch_identify(struct ct_launch *launch, enum ct_work work, uintptr_t handle, const struct ct_shape *shape)
{
    struct ct_session *session = launch->session;
    const char *name;
    if (!is_valid_shape(work, shape) || is_captured(launch))
        return;
    ct_lock(session);
    /* The ranks of a gang count their collectives from the first one on. */
    const int must_ask = ct_gate_must_ask(&session->gateway->gate) || session->gateway->gate.gang.page ||
                         ct_ranks_exist(session);
    ct_unlock(session);
    /* An unknown handle may be invalid: the driver is asked about it only after it was launched. */
    if (must_ask && ct_function_name(session, handle, &name))
        launch->identity = ct_identity_make(session, work, handle, shape);
}

/* Decides whether an event must show the completion of a launch of unknown or doubtful length. A host that waited for all
 * its work a short time ago will do so again, and an event per launch would be of no use. */
static void watch(struct ct_launch *launch, uint64_t now_ns)
{
    const struct ct_gateway *gateway = launch->session->gateway;
    launch->must_watch = launch->may_record_event && gateway->gate.peer_count &&
                         now_ns - gateway->drained_ns > WATCH_AFTER_NS;
}

/* Passes a launch under the gate's lease, if that permits it. Only launches of a sole thread pass: they are counted before
 * they are submitted, so an event of another thread could show their completion too early. Called with the lock held,
 * which it releases if the launch passes. */
static inline int pass_under_lease(struct ct_launch *launch, uint64_t now_ns)
{
    struct ct_session *session = launch->session;
    struct ct_gateway *gateway = session->gateway;
    struct ct_gate *gate = &gateway->gate;
    struct ct_kernel_time *kernel_time = launch->identity->kernel_time;
    const struct ct_forecast *next = &session->step->next;
    /* Launches that are timed, possibly cut, or waited for within the call are decided on one by one. */
    if (now_ns >= gate->lease.until_ns || session->waiting_stream_count || launch->stream == CT_NO_STREAM || gate->higher_count > CT_LEASE_HOLDERS || !kernel_time->is_known ||
        kernel_time->is_doubtful || launch->slice || gateway->parts_thread || load_relaxed(&gateway->is_leased) ||
        !ct_gateway_is_sole_thread(gateway, now_ns) || (gate->limit_ppm && ct_kernel_time_must_check(kernel_time)))
        return 0;
    const struct ct_launch_request request = {
        .expect_ns = ct_duration_at_clock(kernel_time->expect_ns, ct_gate_clock_ppm(gate)),
        .low_ns = next->low_ns,
        .high_ns = next->high_ns,
        .kernel_count = kernel_time->kernel_count,
        .granularity_ns = ct_kernel_time_granularity(kernel_time),
        .free_ppm = kernel_time->free_ppm,
        .is_collective = (uint32_t)is_collective(launch)};
    if (!ct_completions_may_add(&gateway->completions, gate, request.expect_ns, stream_of(launch),
                                launch->is_per_thread, now_ns) ||
        !ct_lease_pass(gate, &request, now_ns))
        return 0;
    ct_completions_add(&gateway->completions, request.expect_ns, now_ns);
    launch->request.expect_ns = request.expect_ns;
    launch->request.free_ppm = request.free_ppm;
    launch->holder_count = gate->higher_count;
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        launch->holders[i].sequence = &gate->higher[i].page->sequence;
        launch->holders[i].seen = gate->higher[i].admission_sequence;
    }
    if (gate->lease.is_charged)
        ct_kernel_time_charge(kernel_time, gate->bound_ns);
    store_relaxed(&gateway->is_leased, 1);
    launch->passed = CT_PASSED_LEASED;
    ct_launch_trace(launch, now_ns, gate->lease.reason);
    ct_unlock(session);
    return 1;
}

/* Admits a launch that must ask, or that is not merely announced for another reason. Called with the lock held, which it
 * releases. */
static __attribute__((noinline)) void admit_by_request(struct ct_launch *launch, uint64_t now_ns)
{
    struct ct_session *session = launch->session;
    struct ct_gateway *gateway = session->gateway;
    if (launch->is_counted && pass_under_lease(launch, now_ns))
        return;
    if (launch->is_counted)
        ct_launch_predict(launch);
    else
        launch->request = (struct ct_launch_request){0};
    if (CT_UNLIKELY(session->waiting_stream_count) && ct_stream_values_take(session, launch))
        launch->request.is_collective = 1;
    if (gateway->gate.must_ask || gateway->parts_thread ||
        (launch->request.is_collective && (gateway->gate.gang.page || ct_ranks_exist(session)))) {
        if (launch->slice && launch->is_counted)
            ct_parts_request(launch, launch->identity->kernel_time->blocks);
        ct_gate_wait(session, launch, now_ns);
        return;
    }
    if (gateway->gate.policy == CT_GATE_OPEN)
        ct_gate_limit_open(session, launch);
    ct_gate_announce(&gateway->gate, &launch->request, now_ns);
    ct_launch_trace(launch, now_ns, CT_GATE_TOP);
    if (launch->request.is_doubtful || !launch->request.expect_ns || gateway->completions.outstanding)
        watch(launch, now_ns);
    ct_unlock(session);
    launch->passed = CT_PASSED_ANNOUNCED;
}

static void admit_unidentified(struct ct_launch *launch, uint64_t now_ns)
{
    struct ct_gateway *gateway = launch->session->gateway;
    if (!ct_burst_continues(&gateway->requests.bursts, UINT32_MAX))
        ct_requests_resume(launch->session, UINT32_MAX, now_ns);
    ct_gate_must_ask(&gateway->gate); /* reads the tenant table */
    gateway->has_synced = 0;
    admit_by_request(launch, now_ns);
}

/* Returns whether a launch must be decided on, or requires more than an announcement for another reason. */
static inline int needs_request(const struct ct_launch *launch, const struct ct_session *session,
                                const struct ct_gateway *gateway, const struct ct_identity *identity)
{
    return gateway->parts_thread || gateway->gate.policy == CT_GATE_OPEN || session->waiting_stream_count ||
           identity->is_collective || launch->is_cooperative;
}

/* Announces a launch that need not ask. Called with the lock held. */
static inline __attribute__((always_inline)) void announce(struct ct_launch *launch, struct ct_session *session,
                                                           const struct ct_identity *identity, uint64_t now_ns)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_kernel_time *kernel_time = identity->kernel_time;
    const struct ct_forecast *next = &session->step->next;
    const struct ct_announcement announcement = {
        .expect_ns = ct_duration_at_clock(kernel_time->expect_ns, ct_gate_clock_ppm(&gateway->gate)),
        .low_ns = next->low_ns,
        .high_ns = next->high_ns,
        .kernel_count = kernel_time->kernel_count,
        .is_doubtful = kernel_time->is_doubtful};
    ct_announce(&gateway->gate, announcement, 0, now_ns);
    ct_trace_launch(&session->trace, &session->record, now_ns, identity->record_number,
                    ct_stream_key(launch->stream, launch->is_per_thread), announcement.expect_ns, CT_GATE_TOP);
    launch->request.expect_ns = announcement.expect_ns;
    if (CT_UNLIKELY(!kernel_time->is_known || announcement.is_doubtful || !announcement.expect_ns ||
                    gateway->completions.outstanding)) {
        launch->request.is_doubtful = announcement.is_doubtful;
        decide_timing(launch, kernel_time);
        if (announcement.is_doubtful || !announcement.expect_ns || gateway->completions.outstanding)
            watch(launch, now_ns);
    }
}

static inline __attribute__((always_inline)) void admit(struct ct_launch *launch)
{
    struct ct_session *session = launch->session;
    struct ct_gateway *gateway = session->gateway;
    struct ct_identity *identity = launch->identity;
    if (CT_UNLIKELY(load_relaxed(&session->captures)) && is_captured(launch))
        return;
    const uint64_t ticks = launch->ticks;
    ct_lock(session);
    const uint64_t now_ns = ct_instant_ns(&gateway->instant, &session->clock, ticks);
    note_origin(gateway, launch, now_ns);
    if (CT_UNLIKELY(!identity)) {
        admit_unidentified(launch, now_ns);
        return;
    }
    if (CT_UNLIKELY(!ct_burst_continues(&gateway->requests.bursts, identity->number)))
        ct_requests_resume(session, identity->number, now_ns);
    const uint64_t interval_ns = ct_interval_ns(session, ticks);
    learn_interval(session, gateway, ticks, interval_ns);
    ct_advance(session, identity, ticks, interval_ns);
    launch->is_counted = 1;
    if (CT_UNLIKELY(ct_gate_must_ask(&gateway->gate) || needs_request(launch, session, gateway, identity))) {
        admit_by_request(launch, now_ns);
        return;
    }
    announce(launch, session, identity, now_ns);
    ct_unlock(session);
    launch->passed = CT_PASSED_ANNOUNCED;
}

void ct_launch_admit(struct ct_launch *launch)
{
    admit(launch);
}

void ct_launch_begin(struct ct_launch *launch, enum ct_work work, uintptr_t handle, const struct ct_shape *shape,
                     CUstream stream, int is_per_thread, enum ct_permission permission)
{
    const int may_time = permission != CT_MAY_NOTHING;
    struct ct_session *session = launch->session = ct_session();
    launch->pair = NULL;
    if (CT_UNLIKELY(!session))
        return;
    /* Read early, so that the processor looks up the identity meanwhile; and before the lock, which delays everything after
     * it. */
    launch->ticks = ct_clock_ticks(&session->clock);
    launch->identity = ct_identity(session, handle, shape);
    launch->stream = stream;
    launch->is_counted = launch->must_time = launch->must_check = launch->must_watch = launch->is_rest =
        launch->is_stuck = launch->runs_variant = 0;
    launch->is_per_thread = (uint8_t)is_per_thread;
    launch->may_limit = permission == CT_MAY_TIME_AND_LIMIT;
    launch->is_cooperative = permission == CT_MAY_TIME_COOPERATIVE;
    launch->request.sm_ppm = 0;
    launch->request.part_blocks = 0;
    launch->work = work;
    launch->slice = NULL;
    launch->may_record_event = may_time || stream == CT_NO_STREAM;
    launch->passed = CT_PASSED_UNGATED;
    if (CT_UNLIKELY(session->is_measuring) && may_time) {
        ct_timing_await_pair(session);
        launch->ticks = ct_clock_ticks(&session->clock);
    }
    if (session->gateway) {
        if (CT_UNLIKELY(!launch->identity)) {
            ct_launch_identify(launch, work, handle, shape);
            launch->ticks = ct_clock_ticks(&session->clock);
        }
        if (launch->identity && CT_UNLIKELY(load_relaxed(&launch->identity->function->slice)) && launch->may_limit) {
            ct_parts_prepare(launch);
            launch->ticks = ct_clock_ticks(&session->clock);
        }
        admit(launch);
    }
    /* On a part of the SMs it takes longer than its profile says. */
    if (CT_UNLIKELY(launch->must_time || launch->must_check || load_relaxed(&session->time_next)) && may_time &&
        !launch->request.sm_ppm) {
        ct_launch_time(launch);
        launch->runs_variant = CT_UNLIKELY(launch->slice) && ct_parts_measures_variant(launch);
    }
    if (CT_UNLIKELY(launch->pair))
        launch->ticks = ct_clock_ticks(&session->clock);
}

void ct_launch_report(struct ct_launch *launch, CUresult result)
{
    struct ct_session *session = launch->session;
    struct ct_gateway *gateway = session->gateway;
    if (launch->passed == CT_PASSED_ANNOUNCED && result == CUDA_SUCCESS) {
        if (launch->must_watch) {
            ct_completions_collect(session); /* of earlier launches */
            if (launch->request.is_doubtful || !launch->request.expect_ns)
                ct_completions_watch(session, stream_of(launch), launch->is_per_thread);
        }
        return;
    }
    ct_lock(session);
    uint64_t now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
    if (launch->passed == CT_PASSED_LEASED) {
        store_release(&gateway->is_leased, 0);
        if (result == CUDA_SUCCESS)
            ct_lease_late(&gateway->gate, now_ns);
        else
            ct_lease_refused(&gateway->gate, &launch->request, !ct_completions_take_back(session, &launch->request),
                             now_ns);
    } else if (launch->passed == CT_PASSED_ANNOUNCED) {
        if (launch->is_counted)
            launch->request.kernel_count = launch->identity->kernel_time->kernel_count;
        ct_gate_withdrawn(&gateway->gate, &launch->request, now_ns);
    } else {
        ct_gate_submitted(&gateway->gate, &launch->request, result == CUDA_SUCCESS, now_ns);
    }
    gateway->admitted_count -= launch->passed == CT_PASSED_ADMITTED;
    ct_unlock(session);
    if (launch->passed == CT_PASSED_ADMITTED && result == CUDA_SUCCESS)
        ct_completions_note(session, &launch->request, stream_of(launch), launch->is_per_thread,
                            launch->may_record_event);
}

void ct_unidentified_begin(struct ct_launch *launch)
{
    *launch = (struct ct_launch){.session = ct_session()};
    if (launch->session && launch->session->gateway) {
        launch->ticks = ct_clock_ticks(&launch->session->clock);
        ct_launch_admit(launch);
    }
}

void ct_unidentified_end(struct ct_launch *launch, CUresult result)
{
    struct ct_session *session = launch->session;
    if (launch->passed != CT_PASSED_UNGATED)
        ct_launch_report(launch, result);
    if (session && result == CUDA_SUCCESS) {
        fetch_add_relaxed(&session->record.header->untimed, 1);
        ct_count_launch(session, NULL, 0, 0);
    }
}

void ct_launch_settle(struct ct_launch *launch, enum ct_work work, uintptr_t handle, const struct ct_shape *shape,
                     CUresult result)
{
    struct ct_session *session = launch->session;
    struct ct_record_header *header = session->record.header;
    int is_work = result == CUDA_SUCCESS && (launch->passed != CT_PASSED_UNGATED || !is_captured(launch));
    if (is_work && !launch->identity)
        launch->identity = ct_identity_make(session, work, handle, shape);
    if (launch->pair)
        ct_timing_end(session, launch->pair, is_work ? launch->identity : NULL, launch->ticks, launch->stream,
                      launch->is_per_thread);
    if (launch->passed != CT_PASSED_UNGATED)
        ct_launch_report(launch, result);
    if (is_work && !launch->pair && (session->is_measuring || !launch->is_counted))
        fetch_add_relaxed(&header->untimed, 1);
    if (is_work && !launch->is_counted)
        ct_count_launch(session, launch->identity, launch->ticks, ct_stream_key(launch->stream, launch->is_per_thread));
    else if (!is_work && launch->is_counted)
        ct_uncount_launch(session, launch->identity);
    if (!is_work && result == CUDA_SUCCESS)
        fetch_add_relaxed(&header->captured, 1);
}
