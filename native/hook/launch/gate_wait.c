/* Waiting for admission: sleeping on the wake word of the arbitration page until shortly before the gate may open, then
 * polling; and waking the processes that sleep. */
#define _GNU_SOURCE
#include "gate/space.h"
#include "hook/launch/ranks.h"
#include "hook/launch/work.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How often a spinning thread asks, how often events are queried, and by how much overdue work is assumed to take
 * longer: less than the work submitted ahead, so that this alone delays nothing while no higher-priority tenant is
 * active. */
enum { ASK_NS = 500, COLLECT_NS = 100 * 1000, EXTENSION_NS = CT_GATE_LEAD_NS / 2 };
enum { LATE_MAX_NS = 1000 * 1000 };

static uint64_t current_ns(struct ct_session *session)
{
    return ct_gateway_now(session, ct_clock_ticks(&session->clock));
}

/* ---- completed work ----------------------------------------------------------------------------------------------- */

/* Returns whether nothing has ended for so long that it possibly depends on the waiting launch. */
static int is_stuck(const struct ct_completions *completions, uint64_t now_ns)
{
    return completions->outstanding && now_ns > completions->ended_ns &&
        now_ns - completions->ended_ns >= CT_GATE_STUCK_NS;
}

/* Returns whether another thread is launching a kernel in parts. */
static int is_in_parts_of_other(const struct ct_gateway *gateway)
{
    return gateway->parts_thread && gateway->parts_thread != (uintptr_t)__builtin_thread_pointer();
}

/* Tells the gate in which steps this launch can be limited. A stream that is being captured anywhere forbids calls that
 * create contexts. */
static void set_step(struct ct_session *session, const struct ct_launch *launch)
{
    struct ct_gateway *gateway = session->gateway;
    gateway->gate.sm_step_ppm = launch->may_limit && !load_relaxed(&session->captures) ? gateway->sm_step_ppm : 0;
}

void ct_gate_limit_open(struct ct_session *session, struct ct_launch *launch)
{
    set_step(session, launch);
    ct_space_limit_open(&session->gateway->gate, &launch->request);
}

/* Asks the gate. If the earlier work is stuck, the launch counts as waiting since the last completion, so that each
 * following launch need not wait as long again. */
static struct ct_gate_answer admit(struct ct_session *session, struct ct_launch *launch, uint64_t since_ns,
                                 uint64_t now_ns)
{
    struct ct_gateway *gateway = session->gateway;
    if (is_in_parts_of_other(gateway))
        return (struct ct_gate_answer){.reason = CT_GATE_OTHER, .until_ns = now_ns};
    if (gateway->gate.unconfirmed && is_stuck(&gateway->completions, now_ns) &&
        gateway->completions.ended_ns < since_ns)
        since_ns = gateway->completions.ended_ns;
    set_step(session, launch);
    if (!launch->request.is_collective || !ct_ranks_exist(session))
        return ct_gate_admit(&gateway->gate, &launch->request, since_ns, now_ns);
    launch->request.is_coupled = 1;
    launch->request.is_agreed = (uint32_t)ct_ranks_take(session, now_ns);
    if (!launch->request.is_agreed && !ct_ranks_are_open(session, launch, now_ns)) {
        ct_unlock(session); /* another thread that holds the lock of another session may wait for ours */
        ct_ranks_collect(session);
        ct_lock(session);
        now_ns = current_ns(session);
        if (!ct_ranks_are_open(session, launch, now_ns))
            return (struct ct_gate_answer){.reason = CT_GATE_GANG, .until_ns = now_ns + CT_RANKS_RECHECK_NS};
    }
    const struct ct_gate_answer answer = ct_gate_admit(&gateway->gate, &launch->request, since_ns, now_ns);
    if (answer.pass && !launch->request.is_agreed)
        ct_ranks_passed(session, now_ns);
    return answer;
}

/* Checks whether work that should have ended has. Called with the lock held, which it may release temporarily. Stuck
 * work is not waited for any longer. */
static void collect_ended(struct ct_session *session, int is_bound)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_completions *completions = &gateway->completions;
    const uint64_t now_ns = gateway->instant.last_ns;
    const _Atomic uint64_t *busy_ns = &gateway->gate.mine->busy_ns;
    int is_overdue = completions->count && load_relaxed(busy_ns) <= now_ns;
    if (!gateway->gate.unconfirmed || (!is_overdue && !is_bound && now_ns - completions->collected_ns < COLLECT_NS))
        return;
    ct_unlock(session);
    ct_completions_collect(session);
    ct_lock(session);
    if (is_overdue && completions->count && !is_stuck(completions, now_ns))
        ct_gate_prolong(&gateway->gate, current_ns(session) + EXTENSION_NS);
}

/* ---- waiting ------------------------------------------------------------------------------------------------------ */

/* Spins without the lock, and returns for how long. Yields the processor each time: a holder that wakes up on the same
 * processor would otherwise wait for milliseconds until its next time slice. */
static uint64_t spin(struct ct_session *session)
{
    const uint64_t from = ct_clock_ticks(&session->clock);
    uint64_t spun_ns = 0;
    while (spun_ns < ASK_NS) {
        sched_yield();
        spun_ns = ct_clock_between_ns(&session->clock, from, ct_clock_ticks(&session->clock));
    }
    return spun_ns;
}

/* The words on which a waiting thread may sleep, as they were before it asked. */
struct wake_values {
    uint32_t device, gang;
};

static struct wake_values wake_values(const struct ct_gate *gate)
{
    return (struct wake_values){load_acquire(&gate->arbitration->wake_word),
                                gate->gang.page ? load_acquire(&gate->gang.page->wake_word) : 0};
}

static void sleep_until(_Atomic uint32_t *wake_word, uint32_t wake_value, uint64_t until_ns)
{
    const struct timespec until = {(time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};
    syscall(SYS_futex, wake_word, FUTEX_WAIT_BITSET, wake_value, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* Wakes the processes that wait. Any tenant could have thousands of threads sleep on the word, so no more are woken than
 * processes may wait for this one; one that is not woken asks again on its own. */
static void wake_sleepers(const struct ct_gateway *gateway, uint32_t limit)
{
    _Atomic uint32_t *wake_word = &gateway->gate.arbitration->wake_word;
    int saved_errno = errno;
    fetch_add_release(wake_word, 1);
    syscall(SYS_futex, wake_word, FUTEX_WAKE, limit, NULL, NULL, 0);
    errno = saved_errno;
}

/* Sleeps until the other thread has launched all parts. Called with the lock held, which it releases meanwhile. */
static void await_parts(struct ct_session *session)
{
    _Atomic uint32_t *ended = &session->gateway->parts_ended;
    const uint32_t count = load_relaxed(ended);
    ct_unlock(session);
    syscall(SYS_futex, ended, FUTEX_WAIT_PRIVATE, count, NULL, NULL, 0);
    ct_lock(session);
}

/* Makes other threads' launches wait from now on. Those that were admitted before are submitted first, because they could
 * otherwise run between two parts. Returns 0 if one is not: it may be a copy that waits for what this thread does next; then
 * the kernel must be launched whole. Called with the lock held, which it releases meanwhile. */
static int begin_parts(struct ct_session *session)
{
    struct ct_gateway *gateway = session->gateway;
    const uint64_t from_ns = current_ns(session);
    gateway->parts_thread = (uintptr_t)__builtin_thread_pointer();
    while ((gateway->admitted_count > 1 || load_acquire(&gateway->is_leased)) && current_ns(session) - from_ns < CT_GATE_STUCK_NS) {
        ct_unlock(session);
        sched_yield();
        ct_lock(session);
    }
    return gateway->admitted_count <= 1 && !load_acquire(&gateway->is_leased);
}

void ct_gate_end_parts(struct ct_session *session)
{
    _Atomic uint32_t *ended = &session->gateway->parts_ended;
    const int saved_errno = errno;
    ct_lock(session);
    session->gateway->parts_thread = 0;
    session->last_ticks = ct_clock_ticks(&session->clock); /* the host's own intervals are measured from here */
    fetch_add_release(ended, 1);
    ct_unlock(session);
    syscall(SYS_futex, ended, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    errno = saved_errno;
}

/* Wakes the other ranks after an agreement. Called with the lock held. */
static void wake_ranks(struct ct_gang *gang)
{
    int saved_errno = errno;
    if (!gang->must_wake)
        return;
    gang->must_wake = 0;
    syscall(SYS_futex, &gang->page->wake_word, FUTEX_WAKE, CT_GANG_RANKS, NULL, NULL, 0);
    errno = saved_errno;
}

/* A wait in progress; accessed with the lock held. */
struct waiting {
    struct ct_session *session;
    struct ct_launch *launch;
    uint64_t since_ns, spun_ns, collected_ns;
    uint64_t traced_ns; /* up to when it has been traced */
    uint32_t reason;    /* why it has waited since then */
    int slack;          /* the thread's timer slack, to be restored; -1: not changed */
};

/* Sleeps or spins once, as the gate planned. Called with the lock held, which it releases meanwhile. */
static void wait_once(struct waiting *waiting, const struct ct_gate_answer *answer, struct wake_values values)
{
    struct ct_session *session = waiting->session;
    struct ct_gate *gate = &session->gateway->gate;
    const uint64_t now_ns = session->gateway->instant.last_ns;
    if (is_in_parts_of_other(session->gateway)) {
        await_parts(session);
        return;
    }
    const struct ct_gate_wait_plan plan = ct_gate_wait_plan(gate, answer, now_ns);
    ct_unlock(session);
    if (plan.spin_until_ns) {
        waiting->spun_ns += spin(session);
        ct_lock(session);
        return;
    }
    if (waiting->slack < 0) {
        waiting->slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
        prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    }
    if (now_ns - waiting->collected_ns >= COLLECT_NS) {
        ct_timing_collect(session);
        waiting->collected_ns = now_ns;
    }
    if (answer->reason == CT_GATE_GANG && gate->gang.page)
        sleep_until(&gate->gang.page->wake_word, values.gang, plan.sleep_until_ns);
    else
        sleep_until(&gate->arbitration->wake_word, values.device, plan.sleep_until_ns);
    ct_lock(session);
    uint64_t awake_ns = current_ns(session);
    ct_gate_slept(gate, awake_ns > now_ns ? awake_ns - now_ns : 0);
    if (awake_ns > plan.sleep_until_ns)
        ct_gate_overslept(gate, awake_ns - plan.sleep_until_ns, awake_ns);
}

/* Traces a wait in parts: when its reason changes, and periodically, so that a reader sees a wait that is still in
 * progress. */
static void trace_wait(struct waiting *waiting, const struct ct_gate_answer *answer, uint64_t now_ns)
{
    struct ct_session *session = waiting->session;
    const struct ct_launch *launch = waiting->launch;
    const uint64_t elapsed_ns = now_ns - waiting->traced_ns;
    if (!answer->pass && elapsed_ns < CT_TRACE_LONG_NS &&
        (answer->reason == waiting->reason || elapsed_ns < CT_TRACE_SHORT_NS))
        return;
    ct_trace_wait(&session->trace, &session->record, waiting->traced_ns, now_ns,
                  launch->is_counted ? launch->identity->record_number : UINT32_MAX,
                  ct_stream_key(launch->stream, launch->is_per_thread), (uint8_t)waiting->reason);
    waiting->traced_ns = now_ns;
    waiting->reason = answer->reason;
}

/* Waits until the launch passes. Called with the lock held. */
static void wait_until_admitted(struct waiting *waiting, struct ct_gate_answer *answer, struct wake_values values)
{
    struct ct_session *session = waiting->session;
    struct ct_gateway *gateway = session->gateway;
    struct ct_launch *launch = waiting->launch;
    int saved_errno = errno;
    const uint32_t wake_limit = ct_gate_wake_limit(&gateway->gate);
    ct_unlock(session);
    if (answer->reason == CT_GATE_LIMIT && ct_gate_has_sleepers(&gateway->gate, waiting->since_ns))
        wake_sleepers(gateway, wake_limit); /* this tenant has used its share: tenants of equal priority may run */
    /* Also before a launch that was meant to overlap with its predecessors: it has to wait for them now. */
    ct_completions_close(session, launch->stream == CT_NO_STREAM ? NULL : launch->stream, launch->is_per_thread);
    ct_lock(session);
    do {
        wait_once(waiting, answer, values);
        uint64_t now_ns = current_ns(session);
        if (waiting->spun_ns > 16 * ASK_NS || answer->reason == CT_GATE_PAUSED) {
            ct_gate_spun(&gateway->gate, waiting->spun_ns, now_ns);
            waiting->spun_ns = 0;
        }
        collect_ended(session, answer->reason == CT_GATE_BOUND);
        values = wake_values(&gateway->gate);
        *answer = admit(session, launch, waiting->since_ns, current_ns(session));
        trace_wait(waiting, answer, gateway->instant.last_ns);
    } while (!answer->pass);
    uint64_t now_ns = gateway->instant.last_ns;
    if (waiting->spun_ns)
        ct_gate_spun(&gateway->gate, waiting->spun_ns, now_ns);
    ct_gate_waited(&gateway->gate, waiting->since_ns, now_ns);
    session->last_ticks = ct_clock_ticks(&session->clock); /* the host's own intervals are measured from here */
    if (waiting->slack >= 0)
        prctl(PR_SET_TIMERSLACK, waiting->slack, 0, 0, 0);
    errno = saved_errno;
}

void ct_gate_wait(struct ct_session *session, struct ct_launch *launch, uint64_t since_ns)
{
    struct ct_gateway *gateway = session->gateway;
    collect_ended(session, 0);
    const struct wake_values values = wake_values(&gateway->gate);
    struct ct_gate_answer answer = admit(session, launch, since_ns, gateway->instant.last_ns);
    if (!answer.pass) {
        struct waiting waiting = {.session = session,
                                  .launch = launch,
                                  .since_ns = since_ns,
                                  .traced_ns = since_ns,
                                  .reason = answer.reason,
                                  .slack = -1};
        wait_until_admitted(&waiting, &answer, values);
    }
    wake_ranks(&gateway->gate.gang);
    launch->is_stuck = answer.reason == CT_GATE_STUCK;
    launch->passed = answer.reason == CT_GATE_TOP ? CT_PASSED_ANNOUNCED : CT_PASSED_ADMITTED;
    gateway->admitted_count += launch->passed == CT_PASSED_ADMITTED;
    const int has_begun = launch->request.part_blocks && begin_parts(session);
    if (!launch->request.part_blocks)
        ct_parts_count_whole(launch, gateway->instant.last_ns);
    if (launch->request.part_blocks) {
        launch->must_check = 0; /* what is measured is the part, not the launch */
    } else if (gateway->gate.limit_ppm && !gateway->gate.is_lent && launch->is_counted) {
        ct_kernel_time_charge(launch->identity->kernel_time, gateway->gate.bound_ns);
    }
    ct_launch_trace(launch, gateway->instant.last_ns, answer.reason);
    ct_unlock(session);
    if (launch->request.part_blocks && !has_begun) {
        ct_gate_end_parts(session);
        launch->request.part_blocks = 0;
    }
}

/* ---- synchronization ---------------------------------------------------------------------------------------------- */

/* Kernels have gaps between them and do not start at once, so work rarely ends as early as predicted. Extends the
 * prediction, so that lower-priority tenants do not start too early. */
static void extend_busy(struct ct_gateway *gateway, uint64_t now_ns)
{
    uint64_t busy_ns = load_relaxed(&gateway->gate.mine->busy_ns);
    gateway->awaited_ns = 0;
    if (gateway->gate.must_ask || busy_ns <= now_ns)
        return;
    gateway->awaited_ns = busy_ns;
    ct_gate_prolong(&gateway->gate, busy_ns + (gateway->late.low_ns < LATE_MAX_NS ? gateway->late.low_ns
                                               : LATE_MAX_NS));
}

uint64_t ct_sync_begin(void)
{
    struct ct_session *session = ct_session();
    struct ct_gateway *gateway = session ? session->gateway : NULL;
    if (!session)
        return 0;
    const uint64_t ticks = ct_clock_ticks(&session->clock);
    if (!gateway)
        return ticks;
    ct_lock(session);
    uint64_t now_ns = ct_gateway_now(session, ticks);
    const struct ct_forecast *after_sync = &session->step->after_sync;
    if (ct_gateway_is_sole_thread(gateway, now_ns)) {
        extend_busy(gateway, now_ns);
        ct_gate_sync(&gateway->gate, after_sync->low_ns, after_sync->high_ns, 0, now_ns);
    }
    ct_unlock(session);
    return ticks;
}

/* A call that returned at once did not wait, and is not traced. */
static void trace_sync(struct ct_session *session, uint64_t began_ticks)
{
    const uint64_t ticks = ct_clock_ticks(&session->clock);
    if (ct_clock_between_ns(&session->clock, began_ticks, ticks) < CT_TRACE_SYNC_NS)
        return;
    ct_lock(session);
    ct_trace_sync(&session->trace, &session->record, &session->clock, began_ticks, ticks);
    ct_unlock(session);
}

/* Publishes that the host has returned from a wait while some of its work is still running: it may launch before that
 * ends. */
static void publish_return(struct ct_session *session, uint64_t now_ns)
{
    _Atomic uint64_t *next_ns = &session->gateway->gate.mine->next_ns;
    uint64_t next_launch_ns = now_ns + session->step->after_sync.low_ns;
    if (load_relaxed(next_ns) > next_launch_ns)
        store_release(next_ns, next_launch_ns);
}

void ct_sync_end(uint64_t began_ticks, enum ct_awaited awaited, CUstream stream, int is_per_thread, CUresult result)
{
    struct ct_session *session = ct_session();
    struct ct_gateway *gateway = session ? session->gateway : NULL;
    uint32_t wake_limit = 0;
    if (session && session->trace.header)
        trace_sync(session, began_ticks);
    if (!gateway)
        return;
    ct_lock(session);
    const uint64_t ticks = ct_clock_ticks(&session->clock), now_ns = ct_gateway_now(session, ticks);
    int is_sole = ct_gateway_is_sole_thread(gateway, now_ns);
    if (result == CUDA_SUCCESS)
        ct_requests_waited(session, ct_clock_between_ns(&session->clock, began_ticks, ticks), now_ns);
    if (is_sole) {
        gateway->has_synced = 1;
        gateway->synced_ticks = ticks;
    }
    int is_drained = result == CUDA_SUCCESS && is_sole &&
                     (awaited == CT_AWAITED_ALL ||
                      (awaited == CT_AWAITED_STREAM && !gateway->has_several_streams &&
                       gateway->stream == ct_stream_word(stream, is_per_thread)));
    if (is_drained) {
        const struct ct_forecast *after_sync = &session->step->after_sync;
        gateway->stream = CT_NO_WORD;
        gateway->has_several_streams = 0;
        gateway->drained_ns = now_ns;
        ct_completions_all_ended(session, now_ns);
        if (gateway->awaited_ns)
            ct_forecast_learn(&gateway->late, now_ns > gateway->awaited_ns ? now_ns - gateway->awaited_ns : 0);
        gateway->awaited_ns = 0;
        ct_gate_sync(&gateway->gate, after_sync->low_ns, after_sync->high_ns, 1, now_ns);
        wake_limit = ct_gate_has_sleepers(&gateway->gate, now_ns) ? ct_gate_wake_limit(&gateway->gate) : 0;
    } else if (is_sole) {
        publish_return(session, now_ns);
    }
    ct_unlock(session);
    if (wake_limit)
        wake_sleepers(gateway, wake_limit);
}
