/* Frees in stream order: the memory is released when the stream is idle after the free. */
#define _GNU_SOURCE
#include "hook/memory/memory.h"

#include <errno.h>
#include <sys/mman.h>

enum { FIRST_CAPACITY = 64 };

/* Returns whether the stream is known to be idle. It is queried only in its own context, and not during a capture,
 * which the query would invalidate. */
static int is_idle(const struct ct_deferred_free *deferred, CUcontext current)
{
    struct ct_session *session = ct_session();
    if (!deferred->has_stream || deferred->context != current ||
        (session && load_relaxed(&session->captures)))
        return 0;
    return (deferred->is_per_thread ? CT_NEXT(cuStreamQuery_ptsz)(deferred->stream)
            : CT_NEXT(cuStreamQuery)(deferred->stream)) ==
           CUDA_SUCCESS;
}

static CUcontext current_context(void)
{
    CUcontext current = NULL;
    return CT_NEXT(cuCtxGetCurrent)(&current) == CUDA_SUCCESS ? current : NULL;
}

/* Releases the memory of a free that the device has executed. */
static void complete_free(struct ct_memory *memory, const struct ct_deferred_free *deferred)
{
    if (!deferred->supply) {
        ct_ledger_invalidate_measurement(&memory->ledger);
        ct_share_freed(memory, deferred->kind, deferred->bytes, deferred->key);
        return;
    }
    ct_supplies_lock(&memory->supplies);
    ct_supply_release(memory, deferred->supply, 1);
    ct_supplies_unlock(&memory->supplies);
}

static int grow(struct ct_supplies *supplies)
{
    const int saved_errno = errno;
    const size_t capacity = supplies->deferred_capacity ? 2 * supplies->deferred_capacity : FIRST_CAPACITY;
    void *entries =
        supplies->deferred_capacity
            ? mremap(supplies->deferred, supplies->deferred_capacity * sizeof *supplies->deferred,
                     capacity * sizeof *supplies->deferred, MREMAP_MAYMOVE)
            : mmap(NULL, capacity * sizeof *supplies->deferred, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                   0);
    errno = saved_errno;
    if (entries == MAP_FAILED)
        return 0;
    supplies->deferred = entries;
    supplies->deferred_capacity = capacity;
    return 1;
}

static void add(struct ct_supplies *supplies, const struct ct_deferred_free *deferred)
{
    if (supplies->deferred_count == supplies->deferred_capacity) {
        if (!grow(supplies))
            return; /* it is counted until the process ends */
    }
    struct ct_deferred_free *added = &supplies->deferred[supplies->deferred_count++];
    *added = *deferred;
    added->serial = ++supplies->deferred_serial;
    store_relaxed(&supplies->is_busy, 1);
}

void ct_deferred_add(struct ct_memory *memory, const struct ct_deferred_free *deferred)
{
    if (is_idle(deferred, deferred->context)) {
        complete_free(memory, deferred);
        return;
    }
    ct_supplies_lock(&memory->supplies);
    add(&memory->supplies, deferred);
    ct_supplies_unlock(&memory->supplies);
}

/* Removes the entry at this index, if it is still the same one. Called with the lock held. */
static int remove_entry(struct ct_supplies *supplies, size_t at, uint64_t serial)
{
    if (at >= supplies->deferred_count || supplies->deferred[at].serial != serial)
        return 0;
    supplies->deferred[at] = supplies->deferred[--supplies->deferred_count];
    return 1;
}

/* The driver is called without the lock; if the list changes meanwhile, the rest is left for the next call. */
void ct_deferred_settle(struct ct_memory *memory, int is_all)
{
    struct ct_supplies *supplies = &memory->supplies;
    const CUcontext current = current_context();
    struct ct_deferred_free deferred, last = {0};
    int was_idle = 0;
    for (size_t at = 0;;) {
        ct_supplies_lock(supplies);
        int has_entry = at < supplies->deferred_count;
        if (has_entry)
            deferred = supplies->deferred[at];
        ct_supplies_unlock(supplies);
        if (!has_entry)
            return;
        int is_same = last.has_stream && deferred.has_stream && last.context == deferred.context &&
                      last.stream == deferred.stream && last.is_per_thread == deferred.is_per_thread;
        int is_complete = (is_all && deferred.context == current) || (is_same ? was_idle : is_idle(&deferred, current));
        last = deferred;
        was_idle = is_complete;
        if (is_complete) {
            ct_supplies_lock(supplies);
            is_complete = remove_entry(supplies, at, deferred.serial);
            ct_supplies_unlock(supplies);
        }
        if (is_complete)
            complete_free(memory, &deferred);
        else
            at++;
    }
}

void ct_deferred_move(struct ct_memory *memory, uint64_t home, uint64_t to)
{
    struct ct_supplies *supplies = &memory->supplies;
    ct_supplies_lock(supplies);
    for (size_t i = 0; i < supplies->deferred_count; i++)
        if (supplies->deferred[i].home == home)
            supplies->deferred[i].home = to;
    ct_supplies_unlock(supplies);
}

void ct_deferred_context_ended(struct ct_memory *memory, uint64_t home)
{
    struct ct_supplies *supplies = &memory->supplies;
    for (size_t at = 0;;) {
        struct ct_deferred_free deferred;
        ct_supplies_lock(supplies);
        while (at < supplies->deferred_count && supplies->deferred[at].home != home)
            at++;
        int has_entry = at < supplies->deferred_count;
        if (has_entry) {
            deferred = supplies->deferred[at];
            remove_entry(supplies, at, deferred.serial);
        }
        ct_supplies_unlock(supplies);
        if (!has_entry)
            return;
        complete_free(memory, &deferred);
    }
}

/* The handle may be reused: from now on only a wait for the whole context shows that the free has completed. */
void ct_deferred_stream_ends(struct ct_memory *memory, CUstream stream)
{
    struct ct_supplies *supplies = &memory->supplies;
    if (!load_relaxed(&supplies->is_busy))
        return;
    ct_supplies_lock(supplies);
    for (size_t i = 0; i < supplies->deferred_count; i++)
        if (supplies->deferred[i].stream == stream)
            supplies->deferred[i].has_stream = 0;
    ct_supplies_unlock(supplies);
}
