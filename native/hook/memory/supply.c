/* Accounting of pools and graph memory, by what the driver reports as reserved. */
#define _GNU_SOURCE
#include "hook/memory/memory.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

enum { TRIES = 8, PAGE = 4096 };

void ct_supplies_lock(struct ct_supplies *supplies)
{
    if (CT_UNLIKELY(exchange_acquire(&supplies->lock, 1)))
        ct_lock_slow(&supplies->lock);
}

void ct_supplies_unlock(struct ct_supplies *supplies)
{
    store_release(&supplies->lock, 0);
}

struct ct_supply *ct_supply_of(struct ct_supplies *supplies, CUmemoryPool pool, CUdevice device)
{
    struct ct_supply *supply = supplies->first_supply;
    while (supply &&
           !(supply->is_used && !supply->is_ended && supply->pool == pool && (pool || supply->device == device)))
        supply = supply->next;
    return supply;
}

/* Allocates a page of supplies, which is never freed. */
static struct ct_supply *add_supplies(struct ct_supplies *supplies)
{
    const int saved_errno = errno;
    struct ct_supply *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved_errno;
    if (page == MAP_FAILED)
        return NULL;
    for (size_t i = 0; i < PAGE / sizeof *page; i++) {
        page[i].next = supplies->first_supply;
        supplies->first_supply = &page[i];
    }
    return supplies->first_supply;
}

struct ct_supply *ct_supply_make(struct ct_supplies *supplies, CUmemoryPool pool, CUdevice device)
{
    struct ct_supply *supply = supplies->first_supply;
    while (supply && (supply->is_used || supply->readers || supply->pending_bytes))
        supply = supply->next;
    if (!supply && !(supply = add_supplies(supplies)))
        return NULL;
    *supply = (struct ct_supply){.next = supply->next, .pool = pool, .device = device, .changes = supply->changes + 1,
                                 .is_used = 1, .is_counted = 1};
    return supply;
}

/* ---- reading and recording ---------------------------------------------------------------------------------------- */

static int read_reserved(CUmemoryPool pool, CUdevice device, uint64_t *bytes)
{
    cuuint64_t value = 0;
    CUresult result =
        pool ? CT_NEXT(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value)
             : CT_NEXT(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value);
    *bytes = value;
    return result == CUDA_SUCCESS;
}

/* Records the reserved bytes, which include or replace what a call had reserved. Called with the lock held. The size in
 * the export entry counts if this process dies, and is therefore never too small. */
static uint64_t record_reserved(struct ct_memory *memory, struct ct_supply *supply, uint64_t growth_bytes,
                                uint64_t bytes)
{
    uint64_t before = supply->counted_bytes + growth_bytes;
    if (bytes < supply->counted_bytes) /* it is unknown since when the device has had it back */
        ct_ledger_invalidate_measurement(&memory->ledger);
    supply->pending_bytes -= growth_bytes;
    supply->counted_bytes = bytes;
    supply->changes++;
    if (bytes)
        store_relaxed(&memory->supplies.is_busy, 1);
    if (bytes > before)
        ct_ledger_reserve(&memory->ledger, supply->kind, bytes - before, 0);
    if (supply->key && supply->is_counted)
        ct_ledger_share_resize(&memory->ledger, supply->key, bytes + supply->pending_bytes);
    if (bytes < before)
        ct_memory_release(memory, supply->kind, before - bytes);
    return bytes > before ? bytes - before : 0;
}

/* Reads without the lock, and uses the value if nothing has changed meanwhile; otherwise reads again, and in the end
 * uses the larger value: another call in progress will read again as well. */
static uint64_t settle(struct ct_memory *memory, const struct ct_growth *growth, CUresult outcome)
{
    struct ct_supplies *supplies = &memory->supplies;
    struct ct_supply *supply = growth->supply;
    for (int tries = 1;; tries++) {
        uint64_t reserved = 0, excess = 0;
        ct_supplies_lock(supplies);
        const uint64_t changes = supply->changes;
        const int is_open = supply->is_used && !supply->is_ended;
        supply->readers += (uint32_t)is_open;
        ct_supplies_unlock(supplies);
        const int is_read = is_open && read_reserved(supply->pool, supply->device, &reserved);
        ct_supplies_lock(supplies);
        supply->readers -= (uint32_t)is_open;
        const int is_current = is_read && supply->changes == changes,
            is_last = is_current || !is_read || tries == TRIES;
        if (!is_read)
            reserved = supply->counted_bytes + (outcome == CUDA_SUCCESS ? growth->bytes : 0);
        else if (!is_current && reserved < supply->counted_bytes)
            reserved = supply->counted_bytes;
        if (is_last && (supply->is_used || growth->bytes))
            excess = record_reserved(memory, supply, growth->bytes, supply->is_used ? reserved : 0);
        ct_supplies_unlock(supplies);
        if (is_last)
            return excess;
    }
}

static int reserve(struct ct_memory *memory, struct ct_supply *supply, uint64_t bytes, struct ct_growth *growth)
{
    struct ct_supplies *supplies = &memory->supplies;
    if (!ct_memory_try(memory, supply->kind, bytes))
        return 0;
    *growth = (struct ct_growth){supply, bytes};
    ct_supplies_lock(supplies);
    supply->pending_bytes += bytes;
    supply->changes++;
    if (supply->key && supply->is_counted)
        ct_ledger_share_resize(&memory->ledger, supply->key, supply->counted_bytes + supply->pending_bytes);
    ct_supplies_unlock(supplies);
    return 1;
}

int ct_supply_reserve(struct ct_memory *memory, struct ct_supply *supply, uint64_t max_bytes, uint64_t min_bytes,
                    struct ct_growth *growth)
{
    if (reserve(memory, supply, max_bytes, growth))
        return 1;
    if (ct_supplies_trim(memory) && reserve(memory, supply, max_bytes, growth))
        return 1;
    if (min_bytes < max_bytes && reserve(memory, supply, min_bytes, growth))
        return 1;
    ct_memory_deny(memory, min_bytes);
    return 0;
}

int ct_supply_settle(struct ct_memory *memory, const struct ct_growth *growth, CUresult result)
{
    uint64_t excess = settle(memory, growth, result), quota = ct_memory_quota(memory);
    ct_memory_end(memory);
    return excess && result == CUDA_SUCCESS && quota && ct_memory_held(memory) > quota;
}

void ct_supply_close(struct ct_supplies *supplies, struct ct_supply *supply)
{
    ct_supplies_lock(supplies);
    supply->is_ended = 1;
    supply->changes++;
    while (supply->readers) { /* each is between two calls of the driver */
        ct_supplies_unlock(supplies);
        sched_yield();
        ct_supplies_lock(supplies);
    }
    ct_supplies_unlock(supplies);
}

void ct_supply_release(struct ct_memory *memory, struct ct_supply *supply, uint64_t allocations)
{
    supply->allocations -= supply->allocations > allocations ? allocations : supply->allocations;
    if (!supply->is_ended || supply->allocations)
        return;
    const uint64_t key = supply->key;
    record_reserved(memory, supply, 0, 0);
    supply->key = 0;
    supply->is_used = 0;
    if (supply->is_counted && key)
        ct_ledger_share_drop(&memory->ledger, CT_LEDGER_EXPORT, key);
    else
        ct_share_closed(memory, key);
}

/* ---- all supplies ------------------------------------------------------------------------------------------------- */

/* Returns the next supply that has memory. Called with the lock held. Supplies are never freed, so an iteration may
 * release the lock. */
static struct ct_supply *next_held(struct ct_supplies *supplies, const struct ct_supply *before)
{
    struct ct_supply *supply = before ? before->next : supplies->first_supply;
    while (supply && !(supply->is_used && !supply->is_ended && supply->counted_bytes))
        supply = supply->next;
    return supply;
}

static struct ct_supply *next_supply(struct ct_supplies *supplies, const struct ct_supply *before)
{
    ct_supplies_lock(supplies);
    struct ct_supply *supply = next_held(supplies, before);
    ct_supplies_unlock(supplies);
    return supply;
}

void ct_supplies_settle(struct ct_memory *memory, int is_all)
{
    struct ct_supplies *supplies = &memory->supplies;
    if (!load_relaxed(&supplies->is_busy))
        return;
    ct_memory_begin(memory);
    ct_deferred_settle(memory, is_all);
    for (struct ct_supply *supply = next_supply(supplies, NULL); supply; supply = next_supply(supplies, supply))
        settle(memory, &(struct ct_growth){supply, 0}, CUDA_SUCCESS);
    ct_memory_end(memory);
    ct_supplies_lock(supplies);
    if (!supplies->deferred_count && !next_held(supplies, NULL))
        store_relaxed(&supplies->is_busy, 0);
    ct_supplies_unlock(supplies);
}

static uint64_t total_counted(struct ct_supplies *supplies)
{
    uint64_t sum = 0;
    ct_supplies_lock(supplies);
    for (struct ct_supply *supply = next_held(supplies, NULL); supply; supply = next_held(supplies, supply))
        sum += supply->counted_bytes;
    for (size_t i = 0; i < supplies->deferred_count; i++)
        sum += supplies->deferred[i].bytes;
    ct_supplies_unlock(supplies);
    return sum;
}

static void trim_supply(struct ct_supplies *supplies, struct ct_supply *supply)
{
    ct_supplies_lock(supplies);
    const int is_open = supply->is_used && !supply->is_ended;
    supply->readers += (uint32_t)is_open;
    ct_supplies_unlock(supplies);
    if (!is_open)
        return;
    if (supply->pool)
        CT_NEXT(cuMemPoolTrimTo)(supply->pool, 0);
    else
        CT_NEXT(cuDeviceGraphMemTrim)(supply->device);
    ct_supplies_lock(supplies);
    supply->readers--;
    ct_supplies_unlock(supplies);
}

int ct_supplies_trim(struct ct_memory *memory)
{
    struct ct_supplies *supplies = &memory->supplies;
    if (!load_relaxed(&supplies->is_busy))
        return 0;
    const uint64_t before = total_counted(supplies);
    for (struct ct_supply *supply = next_supply(supplies, NULL); supply; supply = next_supply(supplies, supply))
        trim_supply(supplies, supply);
    ct_supplies_settle(memory, 0);
    return total_counted(supplies) < before;
}

int ct_supplies_end_holding(struct ct_memory *memory, const struct ct_holding *holding)
{
    if (holding->held == CT_HELD_POOLED) {
        ct_supplies_lock(&memory->supplies);
        ct_supply_release(memory, (struct ct_supply *)(uintptr_t)holding->note, 1);
        ct_supplies_unlock(&memory->supplies);
        return 1;
    }
    if (holding->held == CT_HELD_OPENED) {
        ct_share_closed(memory, holding->note);
        return 1;
    }
    return 0;
}
