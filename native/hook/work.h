/* Around a piece of work: look it up and take the time before, count it after. */
#ifndef COTENANT_HOOK_WORK_H
#define COTENANT_HOOK_WORK_H

#include "hook/seen.h"
#include "hook/timing.h"

struct ct_piece {
    struct ct_session *session;
    struct ct_identity *identity;
    struct ct_pair *pair;
    uint64_t ticks;
    CUstream stream;
    int is_twin;
};

/* What is not simply counted: the first of its kind, a timed one, one into a capture, one that failed. */
void ct_piece_time(struct ct_piece *piece);
void ct_piece_settle(struct ct_piece *piece, enum ct_work work, uintptr_t handle, const struct ct_shape *shape,
                     CUresult result);

static inline void ct_piece_begin(struct ct_piece *piece, uintptr_t handle, const struct ct_shape *shape,
                                  CUstream stream, int is_twin, int can_time)
{
    struct ct_session *session = piece->session = ct_session();
    piece->pair = NULL;
    if (CT_UNLIKELY(!session))
        return;
    piece->identity = ct_identity(session, handle, shape);
    piece->stream = stream;
    piece->is_twin = is_twin;
    if (CT_UNLIKELY(atomic_load_explicit(&session->time_next, memory_order_relaxed)) && can_time)
        ct_piece_time(piece);
    piece->ticks = ct_clock_ticks(&session->clock);
}

static inline CUresult ct_piece_end(struct ct_piece *piece, enum ct_work work, uintptr_t handle,
                                    const struct ct_shape *shape, CUresult result)
{
    struct ct_session *session = piece->session;
    if (CT_UNLIKELY(!session))
        return result;
    if (CT_UNLIKELY(result != CUDA_SUCCESS || !piece->identity || piece->pair || session->is_measuring ||
                    atomic_load_explicit(&session->captures, memory_order_relaxed)))
        ct_piece_settle(piece, work, handle, shape, result);
    else
        ct_book(session, piece->identity, piece->ticks, ct_stream_key(piece->stream, piece->is_twin));
    return result;
}

#endif
