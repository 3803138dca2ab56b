/* The slow side of a piece of work. */
#include "hook/work.h"

void ct_piece_time(struct ct_piece *piece)
{
    piece->pair = ct_timing_begin(piece->session, piece->stream, piece->is_twin);
}

/* While anything is captured: does this stream take part? Then this was no work yet, only the description of some. */
static int is_captured(const struct ct_piece *piece)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!atomic_load_explicit(&piece->session->captures, memory_order_relaxed))
        return 0;
    CUresult result = piece->is_twin ? CT_NEXT(cuStreamIsCapturing_ptsz)(piece->stream, &status)
                                     : CT_NEXT(cuStreamIsCapturing)(piece->stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void ct_piece_settle(struct ct_piece *piece, enum ct_work work, uintptr_t handle, const struct ct_shape *shape,
                     CUresult result)
{
    struct ct_session *session = piece->session;
    struct ct_record_header *header = session->record.header;
    int is_work = result == CUDA_SUCCESS && !is_captured(piece);
    if (is_work && !piece->identity)
        piece->identity = ct_identity_make(session, work, handle, shape);
    if (piece->pair)
        ct_timing_end(session, piece->pair, is_work ? piece->identity : NULL, piece->ticks, piece->stream,
                      piece->is_twin);
    if (is_work && !piece->pair)
        atomic_fetch_add_explicit(&header->untimed, 1, memory_order_relaxed);
    if (is_work)
        ct_book(session, piece->identity, piece->ticks, ct_stream_key(piece->stream, piece->is_twin));
    else if (result == CUDA_SUCCESS)
        atomic_fetch_add_explicit(&header->captured, 1, memory_order_relaxed);
}
