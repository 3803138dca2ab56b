/* Stream memory operations: a stream waits until a word of memory meets a condition, or writes a word.
 *
 * The model treats both as host functions and holds the stream until this process reports completion. The callback
 * thread writes words in stream order, and polls the word of a wait at the head of its stream with increasing
 * intervals. */
#include "softgpu/driver/internal.h"
#include "softgpu/abi/names.h"

#include <stdlib.h>

enum { MAX_OPS = 255, CONDITION = 3 };

/* ---- Awaited words; the driver's lock is held -------------------------------------------------------------------- */

static struct awaited_word {
    uint64_t order, address, bytes;
} *words;
static size_t count, capacity;

int sg_word_add(uint64_t order, const struct sg_word *word)
{
    if (count == capacity) {
        size_t more = capacity ? capacity * 2 : 16;
        struct awaited_word *larger = realloc(words, more * sizeof *larger);
        if (!larger)
            return -1;
        words = larger;
        capacity = more;
    }
    words[count++] = (struct awaited_word){order, word->address, word->bytes};
    return 0;
}

void sg_word_remove(uint64_t order)
{
    for (size_t i = 0; i < count; i++)
        if (words[i].order == order)
            words[i--] = words[--count];
}

int sg_word_count(void)
{
    return (int)count;
}

/* A kernel is assumed to write any allocation that one of its parameters points into. */
static int kernel_may_write(const struct sg_effect *effect, const struct awaited_word *word)
{
    const struct sg_memory *memory = sg_memory_at(word->address);
    if (effect->kernel.code) /* code can reach memory through other pointers */
        return 1;
    for (uint32_t i = 0; memory && i < effect->kernel.param_count; i++) {
        uint64_t value = 0;
        for (int byte = 7; byte >= 0; byte--) {
            uint32_t at = effect->kernel.offsets[i] + (uint32_t)byte;
            value = value << 8 | (at < SG_PARAM_BYTES ? effect->kernel.params[at] : 0);
        }
        if (value >= memory->start && value - memory->start < memory->bytes)
            return 1;
    }
    return 0;
}

static int overlaps(uint64_t start, uint64_t bytes, const struct awaited_word *word)
{
    return start < word->address + word->bytes && word->address < start + bytes;
}

int sg_word_is_written(const struct sg_effect *effect)
{
    for (size_t i = 0; i < count; i++) {
        const struct awaited_word *word = &words[i];
        if (effect->kind == SG_EFFECT_COPY &&
            overlaps(effect->copy.target.start,
                     (effect->copy.depth - 1) * effect->copy.target.slice +
                         (effect->copy.height - 1) * effect->copy.target.pitch + effect->copy.width,
                     word))
            return 1;
        if (effect->kind == SG_EFFECT_FILL &&
            overlaps(effect->fill.target.start,
                     (effect->fill.height - 1) * effect->fill.target.pitch +
                         effect->fill.width * effect->fill.element_bytes,
                     word))
            return 1;
        if (effect->kind == SG_EFFECT_KERNEL && kernel_may_write(effect, word))
            return 1;
    }
    return 0;
}

/* The host may be writing the word. A wait on freed memory ends, because the word can no longer change. */
int sg_word_holds(const struct sg_device *device, const struct sg_word *word)
{
    if (!sg_memory_allows(device, word->address, word->bytes, 0))
        return 1;
    uint64_t mask = word->bytes == 4 ? UINT32_MAX : UINT64_MAX, now;
    if (word->bytes == 4)
        now = __atomic_load_n((const uint32_t *)(uintptr_t)word->address, __ATOMIC_ACQUIRE);
    else
        now = __atomic_load_n((const uint64_t *)(uintptr_t)word->address, __ATOMIC_ACQUIRE);
    switch (word->condition) {
    case CU_STREAM_WAIT_VALUE_GEQ: /* by the sign of the difference, so that counters may wrap */
        return word->bytes == 4 ? (int32_t)(uint32_t)(now - word->value) >= 0 : (int64_t)(now - word->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == word->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & word->value) != 0;
    default:
        return (~(now | word->value) & mask) != 0;
    }
}

void sg_word_write(const struct sg_device *device, const struct sg_word *word)
{
    if (!sg_memory_allows(device, word->address, word->bytes, 1))
        return;
    if (word->bytes == 4)
        __atomic_store_n((uint32_t *)(uintptr_t)word->address, (uint32_t)word->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)(uintptr_t)word->address, word->value, __ATOMIC_RELEASE);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* CUDA_SUCCESS with word->bytes 0: an operation without effect. */
static CUresult read_op(const struct sg_device *device, const CUstreamBatchMemOpParams *op, struct sg_word *word)
{
    *word = (struct sg_word){.address = op->waitValue.address, .value = op->waitValue.value64};
    unsigned flags = op->waitValue.flags;
    switch (op->operation) {
    case CU_STREAM_MEM_OP_BARRIER: /* all work of a stream is ordered */
        *word = (struct sg_word){0};
        return op->memoryBarrier.flags <= CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        word->bytes = op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 4 : 8;
        word->condition = flags & CONDITION;
        if (flags & ~(unsigned)(CONDITION | CU_STREAM_WAIT_VALUE_FLUSH))
            return CUDA_ERROR_INVALID_VALUE;
        if (flags & CU_STREAM_WAIT_VALUE_FLUSH)
            return CUDA_ERROR_NOT_SUPPORTED;
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        word->bytes = op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ? 4 : 8;
        word->is_write = 1;
        if (flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
            return CUDA_ERROR_INVALID_VALUE;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (word->bytes == 4)
        word->value = op->waitValue.value;
    if (!word->address || word->address % word->bytes ||
        !sg_memory_allows(device, word->address, word->bytes, word->is_write))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* The server numbers these together with host functions, which count from 1, so set the top bit. */
static CUresult add(CUstream stream, const struct sg_word *word)
{
    CUresult result = sg_callbacks_start();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_slot slot = {.kind = SG_SLOT_HOST, .value = UINT64_C(1) << 63 | sg_next_id()};
    struct sg_effect effect = {
        .kind = SG_EFFECT_HOST,
        .host = {.number = slot.value, .device = stream->context->device, .word = *word},
    };
    result = sg_submit(stream, &slot);
    return result == CUDA_SUCCESS ? sg_effect_add(stream, &effect) : result;
}

static CUresult submit(int name, CUstream handle, unsigned op_count, const CUstreamBatchMemOpParams *ops)
{
    CUcontext context;
    struct sg_word word;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    for (unsigned i = 0; i < op_count && result == CUDA_SUCCESS; i++) /* check all before submitting any */
        result = read_op(stream->context->device, &ops[i], &word);
    for (unsigned i = 0; i < op_count && result == CUDA_SUCCESS; i++) {
        read_op(stream->context->device, &ops[i], &word);
        if (word.bytes)
            result = add(stream, &word);
    }
    sg_leave(result);
    sg_callbacks_wake();
    return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(name) : result;
}

static CUresult one(int name, CUstream stream, CUstreamBatchMemOpType operation, CUdeviceptr address, uint64_t value,
                    unsigned flags)
{
    CUstreamBatchMemOpParams op = {.waitValue = {operation, address, {.value64 = value}, flags, 0}};
    return submit(name, stream, 1, &op);
}

static CUresult batch(int name, CUstream stream, unsigned op_count, const CUstreamBatchMemOpParams *ops, unsigned flags)
{
    if (flags || op_count > MAX_OPS || (op_count && !ops))
        return CUDA_ERROR_INVALID_VALUE;
    return submit(name, stream, op_count, ops);
}

/* The versions differ in the devices that support them; this device supports all. */
#define FORMS(name, bits, operation)                                                                                   \
    API CUresult name(CUstream stream, CUdeviceptr address, cuuint##bits##_t value, unsigned int flags)                \
    {                                                                                                                  \
        return one(SG_NAME_##name, stream, operation, address, value, flags);                                          \
    }                                                                                                                  \
    API CUresult name##_v2(CUstream stream, CUdeviceptr address, cuuint##bits##_t value, unsigned int flags)           \
    {                                                                                                                  \
        return one(SG_NAME_##name##_v2, stream, operation, address, value, flags);                                     \
    }                                                                                                                  \
    API CUresult name##_ptsz(CUstream stream, CUdeviceptr address, cuuint##bits##_t value, unsigned int flags)         \
    {                                                                                                                  \
        return one(SG_NAME_##name##_ptsz, sg_per_thread_stream(stream), operation, address, value, flags);             \
    }                                                                                                                  \
    API CUresult name##_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint##bits##_t value, unsigned int flags)      \
    {                                                                                                                  \
        return one(SG_NAME_##name##_v2_ptsz, sg_per_thread_stream(stream),                                             \
                   operation, address, value, flags);                                                                  \
    }

FORMS(cuStreamWaitValue32, 32, CU_STREAM_MEM_OP_WAIT_VALUE_32)
FORMS(cuStreamWaitValue64, 64, CU_STREAM_MEM_OP_WAIT_VALUE_64)
FORMS(cuStreamWriteValue32, 32, CU_STREAM_MEM_OP_WRITE_VALUE_32)
FORMS(cuStreamWriteValue64, 64, CU_STREAM_MEM_OP_WRITE_VALUE_64)

#define BATCH(name, stream_of)                                                                                         \
    API CUresult name(CUstream stream, unsigned int op_count, CUstreamBatchMemOpParams *ops, unsigned int flags)       \
    {                                                                                                                  \
        return batch(SG_NAME_##name, stream_of, op_count, ops, flags);                                                 \
    }

BATCH(cuStreamBatchMemOp, stream)
BATCH(cuStreamBatchMemOp_v2, stream)
BATCH(cuStreamBatchMemOp_ptsz, sg_per_thread_stream(stream))
BATCH(cuStreamBatchMemOp_v2_ptsz, sg_per_thread_stream(stream))
