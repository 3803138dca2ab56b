/* Waiting at the gate: asleep on the floor's bell until shortly before it may open, then looking; and ringing the bell. */
#define _GNU_SOURCE
#include "hook/work.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How often a spinner asks, and how often the events are looked at; how much longer what has not ended in time is taken to
 * last: less than what is submitted ahead anyway, so that it alone keeps nothing waiting while nobody above is active. */
enum { ASK_NS = 500, LOOK_NS = 100 * 1000, LONGER_NS = CT_GATE_LEAD_NS / 2 };
enum { SEVERAL_NS = 1000 * 1000 * 1000, LATE_MOST_NS = 1000 * 1000 };

static uint64_t now_of(struct ct_session *session)
{
    return ct_gateway_now(session, ct_clock_ticks(&session->clock));
}

/* ---- what has ended ----------------------------------------------------------------------------------------------- */

/* Nothing has ended for so long that it perhaps waits for what waits here. */
static int is_stuck(const struct ct_marks *marks, uint64_t now_ns)
{
    return marks->outstanding && now_ns > marks->ended_ns && now_ns - marks->ended_ns >= CT_GATE_STUCK_NS;
}

/* Each launch need not find that out anew. */
static struct ct_gate_answer ask(struct ct_session *session, const struct ct_piece *piece, uint64_t since_ns,
                                 uint64_t now_ns)
{
    struct ct_gateway *gateway = session->gateway;
    if (gateway->gate.unconfirmed && is_stuck(&gateway->marks, now_ns) && gateway->marks.ended_ns < since_ns)
        since_ns = gateway->marks.ended_ns;
    return ct_gate_ask(&gateway->gate, &piece->wish, since_ns, now_ns);
}

/* Under the lock, which it may release for a moment: has what is expected to be over really ended? What is stuck is not
 * waited for any longer. */
static void look_at_events(struct ct_session *session, int is_bound)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_marks *marks = &gateway->marks;
    const uint64_t now_ns = gateway->instant.last_ns;
    const _Atomic uint64_t *busy_ns = &gateway->gate.mine->busy_ns;
    int is_over = marks->count && atomic_load_explicit(busy_ns, memory_order_relaxed) <= now_ns;
    if (!gateway->gate.unconfirmed || (!is_over && !is_bound && now_ns - marks->harvested_ns < LOOK_NS))
        return;
    ct_unlock(session);
    ct_marks_harvest(session);
    ct_lock(session);
    if (is_over && marks->count && !is_stuck(marks, now_ns))
        ct_gate_prolong(&gateway->gate, now_of(session) + LONGER_NS);
}

/* ---- the wait ----------------------------------------------------------------------------------------------------- */

/* Without the lock; how long it was. Whoever else wants this processor gets it at once: a holder that wakes up where we
 * look for its launch would otherwise wait for milliseconds, until the scheduler thinks that we had our turn. */
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

static void sleep_on(_Atomic uint32_t *bell, uint32_t heard, uint64_t until_ns)
{
    const struct timespec until = {(time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};
    syscall(SYS_futex, bell, FUTEX_WAIT_BITSET, heard, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void ring(_Atomic uint32_t *bell)
{
    int kept_errno = errno;
    atomic_fetch_add_explicit(bell, 1, memory_order_release);
    syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    errno = kept_errno;
}

/* A wait that began, with the lock held. */
struct waiting {
    struct ct_session *session;
    struct ct_piece *piece;
    uint64_t since_ns, spun_ns, looked_ns;
    uint64_t traced_ns; /* until then it is in the trace */
    uint32_t reason;    /* why it has waited since */
    int slack; /* the thread's own timer slack, to be given back; -1: it was not changed */
};

static void wait_once(struct waiting *waiting, const struct ct_gate_answer *answer, uint32_t heard)
{
    struct ct_session *session = waiting->session;
    struct ct_gate *gate = &session->gateway->gate;
    const uint64_t now_ns = session->gateway->instant.last_ns;
    const struct ct_gate_nap nap = ct_gate_nap(gate, answer, now_ns);
    ct_unlock(session);
    if (nap.spin_until_ns) {
        waiting->spun_ns += spin(session);
        ct_lock(session);
        return;
    }
    if (waiting->slack < 0) {
        waiting->slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
        prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    }
    if (now_ns - waiting->looked_ns >= LOOK_NS) {
        ct_timing_harvest(session);
        waiting->looked_ns = now_ns;
    }
    sleep_on(&gate->floor->bell, heard, nap.sleep_until_ns);
    ct_lock(session);
    uint64_t awake_ns = now_of(session);
    ct_gate_slept(gate, awake_ns > now_ns ? awake_ns - now_ns : 0);
    if (awake_ns > nap.sleep_until_ns)
        ct_gate_overslept(gate, awake_ns - nap.sleep_until_ns, awake_ns);
}

/* A wait is in the trace piece by piece: as its reason changes, and now and then, for who looks while it lasts. */
static void trace_wait(struct waiting *waiting, const struct ct_gate_answer *answer, uint64_t now_ns)
{
    struct ct_session *session = waiting->session;
    const struct ct_piece *piece = waiting->piece;
    const uint64_t passed_ns = now_ns - waiting->traced_ns;
    if (!answer->pass && passed_ns < CT_TRACE_LONG_NS &&
        (answer->reason == waiting->reason || passed_ns < CT_TRACE_SHORT_NS))
        return;
    ct_trace_wait(&session->trace, &session->record, waiting->traced_ns, now_ns,
                  piece->is_booked ? piece->identity->number : UINT32_MAX,
                  ct_stream_key(piece->stream, piece->is_twin), (uint8_t)waiting->reason);
    waiting->traced_ns = now_ns;
    waiting->reason = answer->reason;
}

/* Until it passes, with the lock held. */
static void wait_long(struct waiting *waiting, struct ct_gate_answer *answer, uint32_t heard)
{
    struct ct_session *session = waiting->session;
    struct ct_gateway *gateway = session->gateway;
    const struct ct_piece *piece = waiting->piece;
    int kept_errno = errno;
    ct_unlock(session);
    if (answer->reason == CT_GATE_LIMIT && ct_gate_has_sleepers(&gateway->gate, waiting->since_ns))
        ring(&gateway->gate.floor->bell); /* it has had its share: now its equals may go */
    /* Also before one that is meant to overlap with what came before: it waits for that now. */
    ct_marks_close(session, piece->stream == CT_NO_STREAM ? NULL : piece->stream, piece->is_twin);
    ct_lock(session);
    do {
        wait_once(waiting, answer, heard);
        uint64_t now_ns = now_of(session);
        if (waiting->spun_ns > 16 * ASK_NS || answer->reason == CT_GATE_PAUSED) {
            ct_gate_spun(&gateway->gate, waiting->spun_ns, now_ns);
            waiting->spun_ns = 0;
        }
        look_at_events(session, answer->reason == CT_GATE_BOUND);
        heard = atomic_load_explicit(&gateway->gate.floor->bell, memory_order_acquire);
        *answer = ask(session, piece, waiting->since_ns, now_of(session));
        trace_wait(waiting, answer, gateway->instant.last_ns);
    } while (!answer->pass);
    uint64_t now_ns = gateway->instant.last_ns;
    if (waiting->spun_ns)
        ct_gate_spun(&gateway->gate, waiting->spun_ns, now_ns);
    ct_gate_waited(&gateway->gate, waiting->since_ns, now_ns);
    session->last_ticks = ct_clock_ticks(&session->clock); /* the host's own pace counts from here */
    if (waiting->slack >= 0)
        prctl(PR_SET_TIMERSLACK, waiting->slack, 0, 0, 0);
    errno = kept_errno;
}

void ct_gate_wait(struct ct_session *session, struct ct_piece *piece, uint64_t since_ns)
{
    struct ct_gateway *gateway = session->gateway;
    look_at_events(session, 0);
    uint32_t heard = atomic_load_explicit(&gateway->gate.floor->bell, memory_order_acquire);
    struct ct_gate_answer answer = ask(session, piece, since_ns, gateway->instant.last_ns);
    if (!answer.pass) {
        struct waiting waiting = {.session = session,
                                  .piece = piece,
                                  .since_ns = since_ns,
                                  .traced_ns = since_ns,
                                  .reason = answer.reason,
                                  .slack = -1};
        wait_long(&waiting, &answer, heard);
    }
    if (gateway->gate.limit_ppm && !gateway->gate.is_lent && piece->is_booked)
        ct_known_charge(&session->known[piece->identity->number], gateway->gate.bound_ns);
    ct_piece_trace(piece, gateway->instant.last_ns, answer.reason);
    ct_unlock(session);
    piece->passed = answer.reason == CT_GATE_TOP ? CT_PASSED_ABOVE : CT_PASSED_BELOW;
}

/* ---- rest --------------------------------------------------------------------------------------------------------- */

/* A process of which several threads launch promises nothing: another may launch at any instant. */
static int is_the_only_one(const struct ct_gateway *gateway, uint64_t now_ns)
{
    return gateway->thread == (uintptr_t)__builtin_thread_pointer() &&
           (!gateway->several_ns || now_ns - gateway->several_ns > SEVERAL_NS);
}

/* Kernels do not follow each other without a gap, nor does the first begin at once: what was expected to be over hardly
 * ever is. Those below must not begin before. */
static void expect_later(struct ct_gateway *gateway, uint64_t now_ns)
{
    uint64_t busy_ns = atomic_load_explicit(&gateway->gate.mine->busy_ns, memory_order_relaxed);
    gateway->awaited_ns = 0;
    if (gateway->gate.must_ask || busy_ns <= now_ns)
        return;
    gateway->awaited_ns = busy_ns;
    ct_gate_prolong(&gateway->gate, busy_ns + (gateway->late.low_ns < LATE_MOST_NS ? gateway->late.low_ns : LATE_MOST_NS));
}

uint64_t ct_rest_begin(void)
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
    const struct ct_forecast *rested = &session->step->rested;
    if (is_the_only_one(gateway, now_ns)) {
        expect_later(gateway, now_ns);
        ct_gate_rest(&gateway->gate, rested->low_ns, rested->high_ns, 0, now_ns);
    }
    ct_unlock(session);
    return ticks;
}

/* A call that found its answer at once did not wait: it is nothing in the trace. */
static void trace_rest(struct ct_session *session, uint64_t began_ticks)
{
    const uint64_t ticks = ct_clock_ticks(&session->clock);
    if (ct_clock_between_ns(&session->clock, began_ticks, ticks) < CT_TRACE_SYNC_NS)
        return;
    ct_lock(session);
    ct_trace_sync(&session->trace, &session->record, &session->clock, began_ticks, ticks);
    ct_unlock(session);
}

/* The host is out of a wait, and not all of its work is over: it may launch again before that is. */
static void be_back(struct ct_session *session, uint64_t now_ns)
{
    _Atomic uint64_t *next_ns = &session->gateway->gate.mine->next_ns;
    uint64_t back_ns = now_ns + session->step->rested.low_ns;
    if (atomic_load_explicit(next_ns, memory_order_relaxed) > back_ns)
        atomic_store_explicit(next_ns, back_ns, memory_order_release);
}

void ct_rest_end(uint64_t began_ticks, enum ct_awaited awaited, CUstream stream, int is_twin, CUresult result)
{
    struct ct_session *session = ct_session();
    struct ct_gateway *gateway = session ? session->gateway : NULL;
    int is_rung = 0;
    if (session && session->trace.header)
        trace_rest(session, began_ticks);
    if (!gateway)
        return;
    ct_lock(session);
    const uint64_t ticks = ct_clock_ticks(&session->clock), now_ns = ct_gateway_now(session, ticks);
    int is_only = is_the_only_one(gateway, now_ns);
    if (result == CUDA_SUCCESS)
        ct_requests_waited(session, ct_clock_between_ns(&session->clock, began_ticks, ticks), now_ns);
    if (is_only) {
        gateway->has_rested = 1;
        gateway->rested_ticks = ticks;
    }
    int is_drained = result == CUDA_SUCCESS && is_only &&
                     (awaited == CT_AWAITED_ALL ||
                      (awaited == CT_AWAITED_STREAM && gateway->has_stream && !gateway->has_streams &&
                       gateway->stream == stream && gateway->stream_is_twin == is_twin));
    if (is_drained) {
        const struct ct_forecast *rested = &session->step->rested;
        gateway->has_stream = gateway->has_streams = 0;
        ct_marks_all_ended(session, now_ns);
        if (gateway->awaited_ns)
            ct_forecast_learn(&gateway->late, now_ns > gateway->awaited_ns ? now_ns - gateway->awaited_ns : 0);
        gateway->awaited_ns = 0;
        ct_gate_rest(&gateway->gate, rested->low_ns, rested->high_ns, 1, now_ns);
        is_rung = ct_gate_has_sleepers(&gateway->gate, now_ns);
    } else if (is_only) {
        be_back(session, now_ns);
    }
    ct_unlock(session);
    if (is_rung)
        ring(&gateway->gate.floor->bell);
}
