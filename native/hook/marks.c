/* Events behind launches: as few as tell enough, asked after only when somebody needs to know.
 *
 * The driver is never called with the session's lock held, and nothing is marked while anything is captured. A stream is
 * marked only in a call that names it: it may be gone at any other time. */
#define _GNU_SOURCE
#include "hook/marks.h"

#include "hook/asking.h"
#include "hook/gateway.h"

/* A kernel as long as this has an event of its own; so many short ones share one at most. What was launched into a stream
 * that is not used any more, and is less than an eighth of the bound, is taken to have ended after this long. */
enum { LONG_NS = 50 * 1000, SHARED_BY = 64, PARTS = 8, AGED_NS = 20 * 1000 * 1000 };
enum { CU_EVENT_DISABLE_TIMING = 2 };

static int has_some(const struct ct_batch *batch)
{
    return batch->launches || batch->unknown;
}

static void confirm(struct ct_session *session, struct ct_batch *batch, uint64_t now_ns)
{
    struct ct_gate *gate = &session->gateway->gate;
    session->gateway->marks.outstanding -= batch->launches + batch->unknown;
    for (; batch->unknown; batch->unknown--)
        ct_gate_confirmed(gate, 0, now_ns);
    for (; batch->launches; batch->launches--) { /* each is at least a nanosecond, and all are the sum */
        uint64_t part_ns = batch->launches > 1 ? 1 : batch->expect_ns;
        ct_gate_confirmed(gate, part_ns, now_ns);
        batch->expect_ns -= part_ns;
    }
}

static struct ct_lane *lane_of(struct ct_marks *marks, CUstream stream, int is_twin, uint64_t now_ns)
{
    struct ct_lane *oldest = &marks->lanes[0];
    uintptr_t thread = is_twin && !stream ? (uintptr_t)__builtin_thread_pointer() : 0;
    for (int i = 0; i < CT_LANES; i++) {
        struct ct_lane *lane = &marks->lanes[i];
        if (lane->is_used && lane->stream == stream && lane->is_twin == is_twin && lane->thread == thread)
            return lane;
        if (!lane->is_used || (oldest->is_used && lane->used_ns < oldest->used_ns))
            oldest = lane;
    }
    if (has_some(&oldest->open)) /* as many streams at once as there are lanes: what nobody will show goes by its age */
        return NULL;
    *oldest = (struct ct_lane){.stream = stream, .is_twin = is_twin, .thread = thread, .is_used = 1, .used_ns = now_ns};
    return oldest;
}

/* A mark for this context, with its event if it has one already. When all are another context's, one of those, whose
 * event is to be destroyed. */
static struct ct_mark *take(struct ct_marks *marks, CUcontext context, CUevent *old)
{
    struct ct_mark *empty = NULL, *other = NULL;
    for (int i = 0; i < CT_MARKS; i++) {
        struct ct_mark *mark = &marks->room[i];
        if (mark->state == CT_MARK_SPARE && mark->context == context) {
            mark->state = CT_MARK_TAKEN;
            return mark;
        }
        if (mark->state == CT_MARK_EMPTY)
            empty = mark;
        else if (mark->state == CT_MARK_SPARE)
            other = mark;
    }
    if (!empty && other) {
        *old = other->event;
        empty = other;
    }
    if (empty)
        *empty = (struct ct_mark){.state = CT_MARK_TAKEN, .context = context};
    return empty;
}

/* Puts an event behind what was launched into a lane. */
static void mark_lane(struct ct_session *session, struct ct_lane *lane)
{
    struct ct_marks *marks = &session->gateway->marks;
    CUstreamCaptureMode mode;
    int is_relaxed = ct_relax(&mode);
    CUcontext context = ct_current_context();
    ct_lock(session);
    const unsigned generation = marks->generation;
    const CUstream stream = lane->stream;
    const int is_twin = lane->is_twin;
    CUevent old = NULL;
    struct ct_mark *mark = context && has_some(&lane->open) ? take(marks, context, &old) : NULL;
    if (mark) {
        mark->batch = lane->open;
        mark->lane = (int)(lane - marks->lanes);
        lane->open = (struct ct_batch){0};
    }
    ct_unlock(session);
    if (old)
        CT_NEXT(cuEventDestroy_v2)(old);
    if (mark) {
        int is_marked = (mark->event || CT_NEXT(cuEventCreate)(&mark->event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) &&
                        ct_mark(mark->event, stream, is_twin) == CUDA_SUCCESS;
        ct_lock(session);
        if (marks->generation != generation) { /* its context ended meanwhile, and its event with it */
            *mark = (struct ct_mark){.state = CT_MARK_EMPTY};
        } else if (is_marked) {
            mark->state = CT_MARK_WAITING;
            marks->queue[(marks->first + marks->count++) % CT_MARKS] = (uint8_t)(mark - marks->room);
        } else { /* as if it had not been tried: the next one does it */
            lane->open.expect_ns += mark->batch.expect_ns;
            lane->open.launches += mark->batch.launches;
            lane->open.unknown += mark->batch.unknown;
            mark->state = mark->event ? CT_MARK_SPARE : CT_MARK_EMPTY;
        }
        ct_unlock(session);
    }
    ct_tighten(is_relaxed, mode);
}

/* The marks stay in the queue until a harvest, and stand for nothing. */
static void forget(struct ct_marks *marks)
{
    for (int i = 0; i < CT_LANES; i++)
        marks->lanes[i].open = (struct ct_batch){0};
    for (int i = 0; i < CT_MARKS; i++)
        marks->room[i].batch = (struct ct_batch){0};
    marks->outstanding = 0;
}

void ct_marks_note(struct ct_session *session, const struct ct_gate_wish *wish, CUstream stream, int is_twin,
                   int may_mark)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_marks *marks = &gateway->marks;
    const struct ct_gate *gate = &gateway->gate;
    ct_lock(session);
    const uint64_t now_ns = gateway->instant.last_ns, part_ns = gate->bound_ns / PARTS;
    struct ct_lane *lane = lane_of(marks, stream, is_twin, now_ns);
    if (CT_UNLIKELY(gate->unconfirmed <= 1 && marks->outstanding))
        forget(marks); /* the gate has forgotten them: for a while nobody was above */
    if (!marks->outstanding)
        marks->ended_ns = now_ns;
    if (!lane) { /* shown by nothing: by its expected end alone, and that is long over before anybody asks */
        ct_gate_confirmed(&gateway->gate, wish->expect_ns, now_ns);
        ct_unlock(session);
        return;
    }
    if (marks->last_lane != (int)(lane - marks->lanes)) {
        marks->last_lane = (int)(lane - marks->lanes);
        marks->switched_ns = now_ns;
    }
    lane->used_ns = now_ns;
    lane->open.expect_ns += wish->expect_ns;
    lane->open.launches += wish->expect_ns != 0;
    lane->open.unknown += wish->expect_ns == 0;
    marks->outstanding++;
    int is_due = lane->open.expect_ns >= part_ns || lane->open.unknown || wish->expect_ns >= LONG_NS ||
                 lane->open.launches >= SHARED_BY || gate->unconfirmed_ns + wish->expect_ns > gate->bound_ns ||
                 gate->is_ending || now_ns - marks->switched_ns < AGED_NS;
    ct_unlock(session);
    if (is_due && may_mark && !atomic_load_explicit(&session->captures, memory_order_relaxed))
        mark_lane(session, lane);
}

void ct_marks_close(struct ct_session *session, CUstream stream, int is_twin)
{
    struct ct_marks *marks = &session->gateway->marks;
    if (atomic_load_explicit(&session->captures, memory_order_relaxed))
        return;
    ct_lock(session);
    struct ct_lane *lane = lane_of(marks, stream, is_twin, session->gateway->instant.last_ns);
    int has_open = lane && has_some(&lane->open);
    ct_unlock(session);
    if (has_open)
        mark_lane(session, lane);
}

/* Under the lock: takes what has ended off the front of the queue. */
static void pop_done(struct ct_marks *marks)
{
    while (marks->count && marks->room[marks->queue[marks->first]].state == CT_MARK_DONE) {
        marks->room[marks->queue[marks->first]].state = CT_MARK_SPARE;
        marks->first = (marks->first + 1) % CT_MARKS;
        marks->count--;
    }
}

/* Streams that are not used any more are marked by nobody. */
static void age(struct ct_session *session, uint64_t now_ns)
{
    struct ct_gateway *gateway = session->gateway;
    for (int i = 0; i < CT_LANES; i++) {
        struct ct_lane *lane = &gateway->marks.lanes[i];
        if (has_some(&lane->open) && now_ns - lane->used_ns > AGED_NS)
            confirm(session, &lane->open, now_ns);
    }
}

void ct_marks_harvest(struct ct_session *session)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_marks *marks = &gateway->marks;
    uint32_t unready = 0; /* lanes, by number */
    CUstreamCaptureMode mode;
    if (atomic_exchange_explicit(&marks->is_harvesting, 1, memory_order_acquire))
        return;
    int is_relaxed = ct_relax(&mode);
    ct_lock(session);
    /* The queue only grows at its end while we are here: whoever takes off its front harvests. */
    const uint32_t first = marks->first, count = marks->count;
    for (uint32_t i = 0; i < count; i++) {
        struct ct_mark *mark = &marks->room[marks->queue[(first + i) % CT_MARKS]];
        if (mark->state != CT_MARK_WAITING || unready >> mark->lane & 1)
            continue;
        ct_unlock(session);
        CUresult result = CT_NEXT(cuEventQuery)(mark->event);
        ct_lock(session);
        if (result == CUDA_ERROR_NOT_READY) {
            unready |= UINT32_C(1) << mark->lane;
            continue;
        }
        /* Also what cannot be asked after any more: the program will hear of it soon enough. */
        uint64_t now_ns = ct_instant_ns(&gateway->instant, &session->clock, ct_clock_ticks(&session->clock));
        mark->state = CT_MARK_DONE;
        marks->ended_ns = now_ns;
        confirm(session, &mark->batch, now_ns);
    }
    pop_done(marks);
    uint64_t now_ns = ct_instant_ns(&gateway->instant, &session->clock, ct_clock_ticks(&session->clock));
    age(session, now_ns);
    marks->harvested_ns = now_ns;
    ct_unlock(session);
    ct_tighten(is_relaxed, mode);
    atomic_store_explicit(&marks->is_harvesting, 0, memory_order_release);
}

void ct_marks_all_ended(struct ct_session *session, uint64_t now_ns)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_marks *marks = &gateway->marks;
    forget(marks);
    while (gateway->gate.unconfirmed)
        ct_gate_confirmed(&gateway->gate, gateway->gate.unconfirmed_ns, now_ns);
    marks->ended_ns = now_ns;
}

void ct_marks_drop(struct ct_session *session)
{
    struct ct_marks *marks = &session->gateway->marks;
    CUevent events[CT_MARKS];
    int count = 0;
    ct_hold_late(&marks->is_harvesting);
    ct_lock(session);
    marks->generation++;
    ct_marks_all_ended(session, session->gateway->instant.last_ns);
    marks->first = marks->count = 0;
    for (int i = 0; i < CT_MARKS; i++) {
        struct ct_mark *mark = &marks->room[i];
        if (mark->state == CT_MARK_TAKEN)
            continue; /* whoever has it sees the generation */
        if (mark->event)
            events[count++] = mark->event;
        *mark = (struct ct_mark){.state = CT_MARK_EMPTY};
    }
    ct_unlock(session);
    for (int i = 0; i < count; i++)
        CT_NEXT(cuEventDestroy_v2)(events[i]);
    atomic_store_explicit(&marks->is_harvesting, 0, memory_order_release);
}
