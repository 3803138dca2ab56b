/* The slow side of a piece of work, and the way through the gate, slow or not. */
#include "hook/work.h"

#include "hook/pairs.h"

/* Launches that are timed for no other reason than that the kernel is unknown. */
enum { TRIES = 8, ATTEMPTS = 64 };

void ct_piece_time(struct ct_piece *piece)
{
    struct ct_session *session = piece->session;
    struct ct_known *known = piece->must_time || piece->must_check ? &session->known[piece->identity->number] : NULL;
    /* Of what nobody knows a bound is better than nothing; what is short is beside a neighbour mostly as it is alone. */
    const int must_bound = piece->must_check && (!known->is_known || known->expect_ns <= CT_KNOWN_BESIDE_MOST_NS);
    const int must_wait = must_bound && ct_timing_must_wait(session, piece->stream, piece->is_twin);
    if (must_wait && ct_known_can_wait(known))
        return; /* the next one of its kind mostly follows work of ours, and tells more */
    piece->pair = ct_timing_begin(session, piece->stream, piece->is_twin, must_bound);
    if (!known)
        return;
    ct_lock(session);
    known->tries += piece->must_time && piece->pair;
    if (piece->must_check && piece->pair) {
        piece->pair->charges = known->charges;
        piece->pair->charged_ns = known->charged_ns;
        piece->pair->has_waited = must_wait;
    }
    if (piece->must_check) /* without a pair it stays as it was expected: nobody can tell better now */
        ct_known_checked(known, ct_dice(session));
    ct_unlock(session);
}

/* The driver knows nothing of our word for none, and looks where a handle points. */
static CUstream stream_of(const struct ct_piece *piece)
{
    return piece->stream == CT_NO_STREAM ? NULL : piece->stream;
}

/* While anything is captured: does this stream take part? Then this was no work yet, only the description of some. */
static int is_captured(const struct ct_piece *piece)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!atomic_load_explicit(&piece->session->captures, memory_order_relaxed))
        return 0;
    const CUstream stream = stream_of(piece);
    CUresult result = piece->is_twin ? CT_NEXT(cuStreamIsCapturing_ptsz)(stream, &status)
                                     : CT_NEXT(cuStreamIsCapturing)(stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* ---- through the gate --------------------------------------------------------------------------------------------- */

/* Whose interval it was that ends with this launch. */
static inline void learn(struct ct_session *session, struct ct_gateway *gateway, uint64_t ticks)
{
    struct ct_step *step = session->step;
    if (CT_UNLIKELY(!step->interval)) /* before the first, or one that has no place of its own */
        return;
    if (CT_UNLIKELY(gateway->has_rested))
        ct_forecast_learn(&step->rested, ct_clock_between_ns(&session->clock, gateway->rested_ticks, ticks));
    else
        ct_forecast_learn(&step->next, ct_clock_between_ns(&session->clock, session->last_ticks, ticks));
}

static inline void foresee(struct ct_piece *piece)
{
    struct ct_known *known = &piece->session->known[piece->identity->number];
    const struct ct_gate *gate = &piece->session->gateway->gate;
    const struct ct_forecast *next = &piece->session->step->next;
    piece->wish = (struct ct_gate_wish){.expect_ns = known->expect_ns,
                                        .sure_ns = known->sure_ns,
                                        .low_ns = next->low_ns,
                                        .high_ns = next->high_ns,
                                        .may_fill = known->may_fill,
                                        .pieces = known->pieces,
                                        .grain_ns = ct_known_grain(known),
                                        .free_ppm = known->free_ppm};
    piece->must_check = CT_UNLIKELY(gate->limit_ppm && gate->must_ask) && ct_known_must_check(known);
    if (CT_UNLIKELY(!known->is_known && known->tries < TRIES)) /* where nobody is ever still, not every launch looks */
        piece->must_time = known->attempts++ < ATTEMPTS || known->attempts % ATTEMPTS == 0;
}

/* Which stream, and which thread: whether a wait for one is a wait for all. */
static inline void notice(struct ct_gateway *gateway, const struct ct_piece *piece, uint64_t now_ns)
{
    const uintptr_t thread = (uintptr_t)__builtin_thread_pointer();
    const CUstream stream = stream_of(piece);
    if (CT_UNLIKELY(gateway->thread != thread)) {
        gateway->several_ns = gateway->thread ? now_ns : 0;
        gateway->thread = thread;
        ct_bursts_turn_to(&gateway->requests.bursts, thread);
    }
    if (CT_UNLIKELY(!gateway->has_stream)) {
        gateway->has_stream = 1;
        gateway->stream = stream;
        gateway->stream_is_twin = piece->is_twin;
    } else if (CT_UNLIKELY(gateway->stream != stream || gateway->stream_is_twin != piece->is_twin)) {
        gateway->has_streams = 1;
    }
    gateway->has_rested = 0;
}

/* A grid or block of nothing is refused by every driver, and no profile may name it. */
static int is_possible(enum ct_work work, const struct ct_shape *shape)
{
    int is_possible = 1;
    for (int i = 0; work == CT_WORK_KERNEL && i < 3; i++)
        is_possible &= shape->grid[i] && shape->block[i];
    return is_possible;
}

void ct_piece_know(struct ct_piece *piece, enum ct_work work, uintptr_t handle, const struct ct_shape *shape)
{
    struct ct_session *session = piece->session;
    const char *name;
    if (!is_possible(work, shape) || is_captured(piece))
        return;
    ct_lock(session);
    const int must_ask = ct_gate_must_ask(&session->gateway->gate);
    ct_unlock(session);
    /* A handle of which we have never heard may be none: the driver is asked about it after it has launched it. */
    if (must_ask && ct_function_name(session, handle, &name))
        piece->identity = ct_identity_make(session, work, handle, shape);
}

void ct_piece_enter(struct ct_piece *piece)
{
    struct ct_session *session = piece->session;
    struct ct_gateway *gateway = session->gateway;
    if (CT_UNLIKELY(is_captured(piece)))
        return;
    const uint64_t ticks = ct_clock_ticks(&session->clock); /* before the lock, which holds up what comes after it */
    ct_lock(session);
    const uint64_t now_ns = ct_gateway_now(session, ticks);
    if (CT_UNLIKELY(!piece->identity || !piece->identity->kernel)) {
        piece->wish = (struct ct_gate_wish){0};
    } else {
        learn(session, gateway, ticks);
        ct_advance(session, piece->identity, ticks);
        foresee(piece);
        piece->is_booked = 1;
        piece->ticks = ticks;
    }
    notice(gateway, piece, now_ns);
    const uint32_t number = piece->is_booked ? piece->identity->number : UINT32_MAX;
    if (CT_UNLIKELY(!ct_burst_goes_on(&gateway->requests.bursts, number)))
        ct_requests_resume(session, number, now_ns);
    if (CT_UNLIKELY(ct_gate_must_ask(&gateway->gate))) {
        ct_gate_wait(session, piece, now_ns);
        return;
    }
    ct_gate_announce(&gateway->gate, &piece->wish, now_ns);
    ct_piece_trace(piece, now_ns, CT_GATE_TOP);
    ct_unlock(session);
    piece->passed = CT_PASSED_ABOVE;
}

/* What the gate is to know after the launch. */
static void leave(struct ct_piece *piece, CUresult result)
{
    struct ct_session *session = piece->session;
    struct ct_gateway *gateway = session->gateway;
    if (piece->passed == CT_PASSED_ABOVE && result == CUDA_SUCCESS)
        return;
    ct_lock(session);
    uint64_t now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
    if (piece->passed == CT_PASSED_ABOVE)
        ct_gate_withdrawn(&gateway->gate, &piece->wish, now_ns);
    else
        ct_gate_submitted(&gateway->gate, &piece->wish, result == CUDA_SUCCESS, now_ns);
    ct_unlock(session);
    if (piece->passed == CT_PASSED_BELOW && result == CUDA_SUCCESS)
        ct_marks_note(session, &piece->wish, stream_of(piece), piece->is_twin, piece->may_mark);
}

void ct_unnamed_begin(struct ct_piece *piece)
{
    *piece = (struct ct_piece){.session = ct_session()};
    if (piece->session && piece->session->gateway)
        ct_piece_enter(piece);
}

void ct_unnamed_end(struct ct_piece *piece, CUresult result)
{
    struct ct_session *session = piece->session;
    if (piece->passed != CT_PASSED_FREELY)
        leave(piece, result);
    if (session && result == CUDA_SUCCESS) {
        atomic_fetch_add_explicit(&session->record.header->untimed, 1, memory_order_relaxed);
        ct_book(session, NULL, 0, 0);
    }
}

void ct_piece_settle(struct ct_piece *piece, enum ct_work work, uintptr_t handle, const struct ct_shape *shape,
                     CUresult result)
{
    struct ct_session *session = piece->session;
    struct ct_record_header *header = session->record.header;
    int is_work = result == CUDA_SUCCESS && (piece->passed != CT_PASSED_FREELY || !is_captured(piece));
    if (is_work && !piece->identity)
        piece->identity = ct_identity_make(session, work, handle, shape);
    if (piece->pair)
        ct_timing_end(session, piece->pair, is_work ? piece->identity : NULL, piece->ticks, piece->stream,
                      piece->is_twin);
    if (piece->passed != CT_PASSED_FREELY)
        leave(piece, result);
    if (is_work && !piece->pair && (session->is_measuring || !piece->is_booked))
        atomic_fetch_add_explicit(&header->untimed, 1, memory_order_relaxed);
    if (is_work && !piece->is_booked)
        ct_book(session, piece->identity, piece->ticks, ct_stream_key(piece->stream, piece->is_twin));
    else if (!is_work && piece->is_booked)
        ct_unbook(session, piece->identity);
    if (!is_work && result == CUDA_SUCCESS)
        atomic_fetch_add_explicit(&header->captured, 1, memory_order_relaxed);
}
