/* Hooks of the calls that make a stream wait for a value. Those that write one wait for nothing, and are not replaced. */
#include "hook/launch/stream_values.h"

#include "hook/launch/capture_mode.h"
#include "hook/launch/work.h"
#include "hook/memory/memory.h"

/* Returns the entry of a stream, or a free one; NULL: there is neither. */
static uintptr_t *entry_of(struct ct_session *session, uintptr_t stream)
{
    uintptr_t *unused = NULL;
    for (int i = 0; i < CT_WAITING_STREAMS; i++) {
        if (session->waiting_streams[i] == stream)
            return &session->waiting_streams[i];
        if (!session->waiting_streams[i])
            unused = &session->waiting_streams[i];
    }
    return unused;
}

int ct_stream_values_take(struct ct_session *session, const struct ct_launch *launch)
{
    if (!session->waiting_stream_count)
        return 0;
    const uintptr_t stream = ct_stream_key(launch->stream, launch->is_per_thread);
    uintptr_t *entry = entry_of(session, stream);
    if (!entry || *entry != stream)
        return 0;
    *entry = 0;
    session->waiting_stream_count--;
    return 1;
}

/* A stream that is being captured waits when its graph is launched; see ct_graph_name(). If more streams wait at once than
 * there are entries, the next launches of the others are not recognized. */
static CUresult note_wait(CUstream stream, int is_per_thread, int waits, CUresult result)
{
    CT_ON_DEVICE(ct_stream_device(stream));
    struct ct_session *session = result == CUDA_SUCCESS && waits ? ct_session() : NULL;
    if (!session || !session->gateway || load_relaxed(&session->captures))
        return ct_fault_check(result);
    const uintptr_t key = ct_stream_key(stream, is_per_thread);
    ct_lock(session);
    uintptr_t *entry = entry_of(session, key);
    if (entry && !*entry) {
        *entry = key;
        session->waiting_stream_count++;
    }
    ct_unlock(session);
    return ct_fault_check(result);
}

static int has_wait(unsigned int count, const CUstreamBatchMemOpParams *ops)
{
    for (unsigned int i = 0; ops && i < count; i++)
        if (ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
            return 1;
    return 0;
}

#define WAIT_VALUE(symbol, type, is_per_thread)                                                                        \
    CT_EXPORT CUresult symbol(CUstream stream, CUdeviceptr address, type value, unsigned int flags)                    \
    {                                                                                                                  \
        return note_wait(stream, is_per_thread, 1, CT_NEXT(symbol)(stream, address, value, flags));                    \
    }
#define WAIT_VALUES(symbol, type)                                                                                      \
    WAIT_VALUE(symbol, type, 0)                                                                                        \
    WAIT_VALUE(symbol##_ptsz, type, 1)                                                                                 \
    WAIT_VALUE(symbol##_v2, type, 0)                                                                                   \
    WAIT_VALUE(symbol##_v2_ptsz, type, 1)

WAIT_VALUES(cuStreamWaitValue32, cuuint32_t)
WAIT_VALUES(cuStreamWaitValue64, cuuint64_t)

/* A launch between two operations of one batch is impossible, so only whether one of them waits counts. */
#define BATCH(symbol, is_per_thread)                                                                                   \
    CT_EXPORT CUresult symbol(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags)  \
    {                                                                                                                  \
        const int waits = has_wait(count, ops);                                                                        \
        return note_wait(stream, is_per_thread, waits, CT_NEXT(symbol)(stream, count, ops, flags));                    \
    }

BATCH(cuStreamBatchMemOp, 0)
BATCH(cuStreamBatchMemOp_ptsz, 1)
BATCH(cuStreamBatchMemOp_v2, 0)
BATCH(cuStreamBatchMemOp_v2_ptsz, 1)
