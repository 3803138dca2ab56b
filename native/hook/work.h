/* Around a piece of work: look it up, let it through the gate, take the time before; count it after. */
#ifndef COTENANT_HOOK_WORK_H
#define COTENANT_HOOK_WORK_H

#include "hook/gateway.h"
#include "hook/memory.h"
#include "hook/seen.h"
#include "hook/timing.h"

/* It waits for its end itself, or is in the default stream: nothing is recorded around it. */
#define CT_NO_STREAM ((CUstream)-1)

enum ct_passed {
    CT_PASSED_FREELY = 0, /* there is no gate, or it is no work yet */
    CT_PASSED_ABOVE,      /* announced, and not asked */
    CT_PASSED_BELOW,      /* admitted by the gate, which wants to know what becomes of it */
};

struct ct_piece {
    struct ct_session *session;
    struct ct_identity *identity;
    struct ct_pair *pair;
    uint64_t ticks;
    CUstream stream;
    int is_twin;
    int is_booked;   /* counted already */
    int must_time;   /* nobody knows yet how long it takes */
    int must_check;  /* what was charged to our share is to be held against what is used */
    int may_mark;    /* whether an event may follow it */
    enum ct_passed passed;
    uint64_t rest_ticks; /* when it began to wait for its own end, if it does */
    struct ct_gate_wish wish;
};

/* Under the lock, of a launch that is counted: it goes to the driver now. */
static inline void ct_piece_trace(struct ct_piece *piece, uint64_t now_ns, uint32_t reason)
{
    struct ct_session *session = piece->session;
    if (piece->is_booked)
        ct_trace_launch(&session->trace, &session->record, now_ns, piece->identity->number,
                        ct_stream_key(piece->stream, piece->is_twin), piece->wish.expect_ns, (uint8_t)reason);
}

/* Through the gate, which there is: counts the launch, announces it, and waits for as long as it must. */
void ct_piece_enter(struct ct_piece *piece);

/* What is not simply counted: the first of its kind, a timed one, one into a capture, one that failed or was admitted. */
void ct_piece_time(struct ct_piece *piece);
void ct_piece_settle(struct ct_piece *piece, enum ct_work work, uintptr_t handle, const struct ct_shape *shape,
                     CUresult result);

/* Around a launch of which nothing is known: it asks as one of unknown length, and is counted. */
void ct_unnamed_begin(struct ct_piece *piece);
void ct_unnamed_end(struct ct_piece *piece, CUresult result);

/* One that must ask is known by its profile, if it has one, before it is launched for the first time. */
void ct_piece_know(struct ct_piece *piece, enum ct_work work, uintptr_t handle, const struct ct_shape *shape);

static inline void ct_piece_begin(struct ct_piece *piece, enum ct_work work, uintptr_t handle,
                                  const struct ct_shape *shape, CUstream stream, int is_twin, int can_time)
{
    struct ct_session *session = piece->session = ct_session();
    piece->pair = NULL;
    if (CT_UNLIKELY(!session))
        return;
    piece->identity = ct_identity(session, handle, shape);
    piece->stream = stream;
    piece->is_twin = is_twin;
    piece->is_booked = piece->must_time = piece->must_check = 0;
    piece->may_mark = can_time || stream == CT_NO_STREAM;
    piece->passed = CT_PASSED_FREELY;
    if (CT_UNLIKELY(session->is_measuring) && can_time)
        ct_timing_await_pair(session);
    if (session->gateway) {
        if (CT_UNLIKELY(!piece->identity))
            ct_piece_know(piece, work, handle, shape);
        ct_piece_enter(piece);
    }
    if (CT_UNLIKELY(piece->must_time || piece->must_check || atomic_load_explicit(&session->time_next, memory_order_relaxed)) && can_time)
        ct_piece_time(piece);
    if (!piece->is_booked || piece->pair)
        piece->ticks = ct_clock_ticks(&session->clock);
}

static inline CUresult ct_piece_end(struct ct_piece *piece, enum ct_work work, uintptr_t handle,
                                    const struct ct_shape *shape, CUresult result)
{
    struct ct_session *session = piece->session;
    ct_fault_seen(result);
    if (CT_UNLIKELY(!session))
        return result;
    if (CT_UNLIKELY(result != CUDA_SUCCESS || !piece->identity || piece->pair || session->is_measuring ||
                    piece->passed == CT_PASSED_BELOW ||
                    atomic_load_explicit(&session->captures, memory_order_relaxed)))
        ct_piece_settle(piece, work, handle, shape, result);
    else if (!piece->is_booked)
        ct_book(session, piece->identity, piece->ticks, ct_stream_key(piece->stream, piece->is_twin));
    return result;
}

#endif
