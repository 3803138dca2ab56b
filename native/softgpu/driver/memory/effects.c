/* Effects of ops on memory, applied in submission order when their completion is first observed.
 *
 * An op can only depend on ops submitted before it, so submission order is always a valid execution order, and a
 * program that synchronises properly cannot notice that an unrelated effect is applied early. There are two exceptions:
 * effects behind a host function wait until the function has run, and a write to a word that a stream waits for is
 * applied only when the op is complete. A pass over the list therefore tracks which streams are held. */
#include "softgpu/driver/internal.h"

#include <stdlib.h>
#include <string.h>

enum { CATCH_UP_COUNT = 4096 };

static struct sg_effect *list;
static size_t count, capacity;
static int hosts, frees;

/* A stream or an event that is held in this pass. */
struct hold {
    uint64_t id, context_id;
    int is_legacy, is_blocking, is_event;
};

struct pass {
    struct hold *holds;
    size_t count, capacity;
};

/* Bound the list for programs that never synchronise. The server takes an op only after the one SG_WINDOW before it is
 * complete, so effects that far behind its head are complete and need no request. */
static void catch_up(void)
{
    uint64_t order = 0;
    for (size_t i = 0; i < count; i++) {
        if (list[i].slot + SG_WINDOW > atomic_load_explicit(&list[i].connection->ring->head, memory_order_acquire))
            break;
        order = list[i].order;
    }
    sg_effects_apply(order);
}

static int is_wait(const struct sg_effect *effect)
{
    return effect->kind == SG_EFFECT_HOST && effect->host.word.bytes && !effect->host.word.is_write;
}

CUresult sg_effect_add(CUstream stream, const struct sg_effect *effect)
{
    if (count == capacity) {
        size_t more = capacity ? capacity * 2 : 64;
        struct sg_effect *larger = realloc(list, more * sizeof *larger);
        if (!larger)
            return CUDA_ERROR_OUT_OF_MEMORY;
        list = larger;
        capacity = more;
    }
    if (is_wait(effect) && sg_word_add(stream->order, &effect->host.word) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_effect *added = &list[count++];
    *added = *effect;
    added->order = stream->order;
    /* A free has no op. It takes the order of the latest entry, so that the list stays sorted. */
    if (count > 1 && list[count - 2].order > added->order)
        added->order = list[count - 2].order;
    added->stream_id = stream->object.id;
    added->context_id = stream->context_id;
    added->is_legacy = stream->is_legacy;
    added->is_blocking = !stream->is_legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
    added->connection = &stream->context->device->connection;
    added->stream = stream;
    added->slot = added->connection->tail;
    hosts += effect->kind == SG_EFFECT_HOST;
    if (effect->kind == SG_EFFECT_FREE) {
        added->free.order = stream->order;
        frees++;
    }
    if (count >= CATCH_UP_COUNT)
        catch_up();
    return CUDA_SUCCESS;
}

/* Memory whose free is pending in the same stream is unused for everything that the stream does from now on, so a pool hands
 * it out again at once. Of a larger allocation at most a fifth may stay unused. */
struct sg_memory *sg_effects_freed_in(CUstream stream, CUmemoryPool pool, uint64_t charged_bytes)
{
    struct sg_memory *best = NULL;
    for (size_t i = 0; frees && i < count; i++) {
        if (list[i].kind != SG_EFFECT_FREE || list[i].stream_id != stream->object.id)
            continue;
        struct sg_memory *memory = sg_memory_at(list[i].free.address);
        if (!memory || memory->start != list[i].free.address || !memory->is_ending || memory->pool != pool ||
            memory->share || memory->charged_bytes < charged_bytes ||
            memory->charged_bytes - charged_bytes > memory->charged_bytes / 5)
            continue;
        if (!best || memory->charged_bytes < best->charged_bytes)
            best = memory;
    }
    return best;
}

int sg_effects_hosts(void)
{
    return hosts;
}

static void hold(struct pass *pass, const struct hold *added)
{
    if (pass->count == pass->capacity) {
        size_t more = pass->capacity ? pass->capacity * 2 : 16;
        struct hold *larger = realloc(pass->holds, more * sizeof *larger);
        if (!larger)
            return; /* out of host memory: applying the effect early is the lesser error */
        pass->holds = larger;
        pass->capacity = more;
    }
    pass->holds[pass->count++] = *added;
}

static int event_is_held(const struct pass *pass, uint64_t event_id)
{
    for (size_t i = 0; i < pass->count; i++)
        if (pass->holds[i].is_event && pass->holds[i].id == event_id)
            return 1;
    return 0;
}

static void release_event(struct pass *pass, uint64_t event_id)
{
    for (size_t i = 0; i < pass->count; i++)
        if (pass->holds[i].is_event && pass->holds[i].id == event_id)
            pass->holds[i--] = pass->holds[--pass->count];
}

/* Whether the effect is held by its own stream, or by the legacy stream and a blocking stream, which wait for each
 * other. */
static int is_held(const struct pass *pass, const struct sg_effect *effect)
{
    for (size_t i = 0; i < pass->count; i++) {
        const struct hold *h = &pass->holds[i];
        if (h->is_event)
            continue;
        if (h->id == effect->stream_id)
            return 1;
        if (h->context_id == effect->context_id &&
            ((h->is_legacy && effect->is_blocking) || (h->is_blocking && effect->is_legacy)))
            return 1;
    }
    return 0;
}

static void hold_stream(struct pass *pass, const struct sg_effect *effect)
{
    struct hold added = {effect->stream_id, effect->context_id, effect->is_legacy, effect->is_blocking, 0};
    hold(pass, &added);
}

static void copy_box(const struct sg_effect *effect)
{
    const struct sg_box *to = &effect->copy.target, *from = &effect->copy.source;
    uint64_t width = effect->copy.width;
    for (uint64_t z = 0; z < effect->copy.depth; z++)
        for (uint64_t y = 0; y < effect->copy.height; y++)
            memmove((void *)(uintptr_t)(to->start + z * to->slice + y * to->pitch),
                    (const void *)(uintptr_t)(from->start + z * from->slice + y * from->pitch), width);
}

static void fill_row(char *row, uint64_t width, uint32_t value, uint32_t element_bytes)
{
    if (element_bytes == 1) {
        memset(row, (int)(value & 0xff), width);
        return;
    }
    for (uint64_t x = 0; x < width; x++)
        memcpy(row + x * element_bytes, &value, element_bytes);
}

static void fill_box(const struct sg_effect *effect)
{
    for (uint64_t y = 0; y < effect->fill.height; y++)
        fill_row((char *)(uintptr_t)(effect->fill.target.start + y * effect->fill.target.pitch), effect->fill.width,
                 effect->fill.value, effect->fill.element_bytes);
}

/* Do nothing if the context was destroyed and the address belongs to other memory. */
static void end_memory(uint64_t address)
{
    struct sg_memory *memory = sg_memory_at(address);
    if (memory && memory->skipped_frees)
        memory->skipped_frees--;
    else if (memory && memory->is_ending)
        sg_memory_drop(address);
}

static void end_effect(struct sg_effect *effect)
{
    free(effect->staged);
    if (effect->kind == SG_EFFECT_KERNEL)
        sg_code_drop(effect->kernel.code);
}

static void apply(struct sg_effect *effect)
{
    switch (effect->kind) {
    case SG_EFFECT_COPY:
        copy_box(effect);
        break;
    case SG_EFFECT_FILL:
        fill_box(effect);
        break;
    case SG_EFFECT_KERNEL:
        sg_kernel_fault(effect->connection,
                        effect->kernel.code ? sg_code_run(effect->kernel.code) : sg_builtin_run(effect));
        break;
    case SG_EFFECT_FREE:
        end_memory(effect->free.address);
        break;
    default:
        break;
    }
    end_effect(effect);
}

/* Whether the stream is known to have completed this order, without a request. */
static int is_past(const struct sg_effect *effect, uint64_t order)
{
    const struct CUstream_st *stream = effect->stream;
    return !stream->object.alive || stream->object.id != effect->stream_id || stream->done_order >= order ||
           sg_connection_status(effect->connection) != CUDA_SUCCESS ||
           effect->slot + SG_WINDOW <= atomic_load_explicit(&effect->connection->ring->head, memory_order_acquire);
}

static int is_complete(const struct sg_effect *effect)
{
    struct sg_request request = {.kind = SG_PROJECT, .a = SG_TARGET_SLOT, .b = effect->slot, .c = effect->slot};
    struct sg_reply reply;
    return is_past(effect, effect->order) || sg_call(effect->connection, &request, &reply) < 0 ||
           (!reply.retry && reply.a == CT_DEVICE_DONE);
}

static int is_change(const struct sg_effect *effect)
{
    return effect->kind == SG_EFFECT_COPY || effect->kind == SG_EFFECT_FILL || effect->kind == SG_EFFECT_KERNEL;
}

/* Return the index of the first incomplete effect that writes an awaited word, or `count`. That effect and those that
 * may depend on it must not be applied early, so all later effects are queried, the latest first; otherwise an effect
 * could be found complete although one that it depends on was not. */
static size_t first_early(uint64_t order)
{
    size_t first = 0, end = 0;
    if (!sg_word_count())
        return count;
    while (first < count && list[first].order <= order &&
           !(sg_word_is_written(&list[first]) && !is_complete(&list[first])))
        first++;
    if (first == count || list[first].order > order)
        return count;
    for (end = first; end < count && list[end].order <= order;)
        end++;
    while (end-- > first)
        list[end].is_complete = !is_change(&list[end]) || is_complete(&list[end]);
    return first;
}

/* Memory is in use until the op before the free is complete. A free may precede other effects only in a stream that
 * does not wait for others implicitly. */
static int is_due(const struct sg_effect *effect, uint64_t order)
{
    if (effect->order > order && (effect->is_legacy || effect->is_blocking))
        return 0;
    return is_past(effect, effect->free.order);
}

void sg_effects_apply(uint64_t order)
{
    struct pass pass = {NULL, 0, 0};
    size_t kept = 0, i = 0;
    if (!count || (list[0].order > order && !frees))
        return;
    size_t early = first_early(order);
    for (; i < count && (list[i].order <= order || frees); i++) {
        struct sg_effect *effect = &list[i];
        int is_later = effect->order > order, held = !is_later && is_held(&pass, effect);
        if (effect->kind == SG_EFFECT_FREE) {
            held = held || !is_due(effect, order);
            frees -= !held;
        } else if (is_later) {
            held = 1;
        } else if (effect->kind == SG_EFFECT_RECORD) {
            release_event(&pass, effect->event.event_id);
            if (held) {
                struct hold added = {.id = effect->event.event_id, .is_event = 1};
                hold(&pass, &added);
            }
        } else if (effect->kind == SG_EFFECT_WAIT && event_is_held(&pass, effect->event.event_id)) {
            held = 1;
            hold_stream(&pass, effect);
        } else if (effect->kind == SG_EFFECT_HOST || (i >= early && !effect->is_complete)) {
            held = 1;
            hold_stream(&pass, effect);
        }
        if (held)
            list[kept++] = *effect;
        /* After a fault its memory may no longer exist. */
        else if (sg_connection_status(effect->connection) != CUDA_SUCCESS)
            end_effect(effect);
        else
            apply(effect);
    }
    memmove(&list[kept], &list[i], (count - i) * sizeof *list);
    count = kept + count - i;
    free(pass.holds);
}

/* The work was cancelled with the context, and its memory may no longer exist. The server removes the host
 * functions. */
void sg_effects_drop_context(uint64_t context_id)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (list[i].context_id != context_id) {
            list[kept++] = list[i];
            continue;
        }
        if (list[i].kind == SG_EFFECT_HOST)
            hosts--;
        if (is_wait(&list[i]))
            sg_word_remove(list[i].order);
        if (list[i].kind == SG_EFFECT_FREE) {
            frees--;
            end_memory(list[i].free.address);
        }
        end_effect(&list[i]);
    }
    count = kept;
}

static int has_stream(const struct sg_effect *effects, size_t found, uint64_t stream_id)
{
    for (size_t i = 0; i < found; i++)
        if (effects[i].stream_id == stream_id)
            return 1;
    return 0;
}

size_t sg_effects_waiting(struct sg_effect *effects, size_t max_count)
{
    size_t found = 0;
    for (size_t i = 0; i < count && found < max_count; i++)
        if (list[i].kind == SG_EFFECT_HOST && !has_stream(effects, found, list[i].stream_id))
            effects[found++] = list[i];
    return found;
}

void sg_effects_host_ran(uint64_t order)
{
    for (size_t i = 0; i < count; i++) {
        if (list[i].kind != SG_EFFECT_HOST || list[i].order != order)
            continue;
        if (is_wait(&list[i]))
            sg_word_remove(order);
        memmove(&list[i], &list[i + 1], (count - i - 1) * sizeof *list);
        count--;
        hosts--;
        return;
    }
}

void sg_effects_set_at_head(uint64_t order)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].kind == SG_EFFECT_HOST && list[i].order == order)
            list[i].host.is_at_head = 1;
}

void sg_effects_apply_writes(void)
{
    uint64_t order = 0;
    for (size_t i = 0; i < count; i++)
        if (sg_word_is_written(&list[i]) && is_complete(&list[i]))
            order = list[i].order;
    sg_effects_apply(order);
}

int sg_effects_pending(void)
{
    return count > 0;
}
