/* How much does a pool, or the memory of graphs, hold of our quota? What the driver says that it has reserved. */
#define _GNU_SOURCE
#include "hook/memory.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

enum { TRIES = 8, PAGE = 4096 };

void ct_beyond_hold(struct ct_beyond *beyond)
{
    if (CT_UNLIKELY(atomic_exchange_explicit(&beyond->lock, 1, memory_order_acquire)))
        ct_hold_late(&beyond->lock);
}

void ct_beyond_let_go(struct ct_beyond *beyond)
{
    atomic_store_explicit(&beyond->lock, 0, memory_order_release);
}

struct ct_supply *ct_supply_of(struct ct_beyond *beyond, CUmemoryPool pool, CUdevice device)
{
    struct ct_supply *supply = beyond->supplies;
    while (supply &&
           !(supply->is_used && !supply->is_ended && supply->pool == pool && (pool || supply->device == device)))
        supply = supply->next;
    return supply;
}

/* A page of them, for as long as the process lives. */
static struct ct_supply *more_supplies(struct ct_beyond *beyond)
{
    const int kept_errno = errno;
    struct ct_supply *room = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = kept_errno;
    if (room == MAP_FAILED)
        return NULL;
    for (size_t i = 0; i < PAGE / sizeof *room; i++) {
        room[i].next = beyond->supplies;
        beyond->supplies = &room[i];
    }
    return beyond->supplies;
}

struct ct_supply *ct_supply_make(struct ct_beyond *beyond, CUmemoryPool pool, CUdevice device)
{
    struct ct_supply *made = beyond->supplies;
    while (made && (made->is_used || made->readers || made->pending_bytes))
        made = made->next;
    if (!made && !(made = more_supplies(beyond)))
        return NULL;
    *made = (struct ct_supply){.next = made->next, .pool = pool, .device = device, .changes = made->changes + 1,
                               .is_used = 1, .is_counted = 1};
    return made;
}

/* ---- reading and booking ------------------------------------------------------------------------------------------- */

static int read_reserved(CUmemoryPool pool, CUdevice device, uint64_t *bytes)
{
    cuuint64_t said = 0;
    CUresult result =
        pool ? CT_NEXT(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &said)
             : CT_NEXT(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &said);
    *bytes = said;
    return result == CUDA_SUCCESS;
}

/* Under the lock: from now on it is this much, and the bytes that a call had reserved are part of it or given back. What
 * others have open counts by the word there if we die, and that word is never too small. */
static uint64_t book(struct ct_memory *memory, struct ct_supply *supply, uint64_t growth_bytes, uint64_t bytes)
{
    uint64_t before = supply->booked_bytes + growth_bytes;
    if (bytes < supply->booked_bytes) /* nobody knows since when the device has it back */
        ct_ledger_unsure(&memory->ledger);
    supply->pending_bytes -= growth_bytes;
    supply->booked_bytes = bytes;
    supply->changes++;
    if (bytes)
        atomic_store_explicit(&memory->beyond.is_busy, 1, memory_order_relaxed);
    if (bytes > before)
        ct_ledger_reserve(&memory->ledger, supply->kind, bytes - before, 0);
    if (supply->key && supply->is_counted)
        ct_ledger_share_resize(&memory->ledger, supply->key, bytes + supply->pending_bytes);
    if (bytes < before)
        ct_memory_give(memory, supply->kind, before - bytes);
    return bytes > before ? bytes - before : 0;
}

/* Reads without the lock, and believes it if nothing happened meanwhile; otherwise asks again, and in the end takes the
 * larger word: another call, which is not over yet, will ask too. */
static uint64_t settle(struct ct_memory *memory, const struct ct_growth *growth, CUresult outcome)
{
    struct ct_beyond *beyond = &memory->beyond;
    struct ct_supply *supply = growth->supply;
    for (int tries = 1;; tries++) {
        uint64_t reserved = 0, more = 0;
        ct_beyond_hold(beyond);
        const uint64_t seen = supply->changes;
        const int is_there = supply->is_used && !supply->is_ended;
        supply->readers += (uint32_t)is_there;
        ct_beyond_let_go(beyond);
        const int is_read = is_there && read_reserved(supply->pool, supply->device, &reserved);
        ct_beyond_hold(beyond);
        supply->readers -= (uint32_t)is_there;
        const int is_sure = is_read && supply->changes == seen, is_last = is_sure || !is_read || tries == TRIES;
        if (!is_read)
            reserved = supply->booked_bytes + (outcome == CUDA_SUCCESS ? growth->bytes : 0);
        else if (!is_sure && reserved < supply->booked_bytes)
            reserved = supply->booked_bytes;
        if (is_last && (supply->is_used || growth->bytes))
            more = book(memory, supply, growth->bytes, supply->is_used ? reserved : 0);
        ct_beyond_let_go(beyond);
        if (is_last)
            return more;
    }
}

static int reserve(struct ct_memory *memory, struct ct_supply *supply, uint64_t bytes, struct ct_growth *growth)
{
    struct ct_beyond *beyond = &memory->beyond;
    if (!ct_memory_try(memory, supply->kind, bytes))
        return 0;
    *growth = (struct ct_growth){supply, bytes};
    ct_beyond_hold(beyond);
    supply->pending_bytes += bytes;
    supply->changes++;
    if (supply->key && supply->is_counted)
        ct_ledger_share_resize(&memory->ledger, supply->key, supply->booked_bytes + supply->pending_bytes);
    ct_beyond_let_go(beyond);
    return 1;
}

int ct_supply_enter(struct ct_memory *memory, struct ct_supply *supply, uint64_t most_bytes, uint64_t least_bytes,
                    struct ct_growth *growth)
{
    if (reserve(memory, supply, most_bytes, growth))
        return 1;
    if (ct_beyond_squeeze(memory) && reserve(memory, supply, most_bytes, growth))
        return 1;
    if (least_bytes < most_bytes && reserve(memory, supply, least_bytes, growth))
        return 1;
    ct_memory_deny(memory, least_bytes);
    return 0;
}

int ct_supply_leave(struct ct_memory *memory, const struct ct_growth *growth, CUresult result)
{
    uint64_t more = settle(memory, growth, result), quota = ct_memory_quota(memory);
    ct_memory_end(memory);
    return more && result == CUDA_SUCCESS && quota && ct_memory_held(memory) > quota;
}

void ct_supply_close(struct ct_beyond *beyond, struct ct_supply *supply)
{
    ct_beyond_hold(beyond);
    supply->is_ended = 1;
    supply->changes++;
    while (supply->readers) { /* each between two words of the driver's */
        ct_beyond_let_go(beyond);
        sched_yield();
        ct_beyond_hold(beyond);
    }
    ct_beyond_let_go(beyond);
}

void ct_supply_left(struct ct_memory *memory, struct ct_supply *supply, uint64_t allocations)
{
    supply->allocations -= supply->allocations > allocations ? allocations : supply->allocations;
    if (!supply->is_ended || supply->allocations)
        return;
    const uint64_t key = supply->key;
    book(memory, supply, 0, 0);
    supply->key = 0;
    supply->is_used = 0;
    if (supply->is_counted && key)
        ct_ledger_share_drop(&memory->ledger, CT_LEDGER_EXPORT, key);
    else
        ct_share_closed(memory, key);
}

/* ---- all of them --------------------------------------------------------------------------------------------------- */

/* Under the lock: the next one that has something. They never go away, so that a walk may let the lock go. */
static struct ct_supply *next_held(struct ct_beyond *beyond, const struct ct_supply *before)
{
    struct ct_supply *supply = before ? before->next : beyond->supplies;
    while (supply && !(supply->is_used && !supply->is_ended && supply->booked_bytes))
        supply = supply->next;
    return supply;
}

static struct ct_supply *walk(struct ct_beyond *beyond, const struct ct_supply *before)
{
    ct_beyond_hold(beyond);
    struct ct_supply *supply = next_held(beyond, before);
    ct_beyond_let_go(beyond);
    return supply;
}

void ct_beyond_settle(struct ct_memory *memory, int is_all)
{
    struct ct_beyond *beyond = &memory->beyond;
    if (!atomic_load_explicit(&beyond->is_busy, memory_order_relaxed))
        return;
    ct_memory_begin(memory);
    ct_late_settle(memory, is_all);
    for (struct ct_supply *supply = walk(beyond, NULL); supply; supply = walk(beyond, supply))
        settle(memory, &(struct ct_growth){supply, 0}, CUDA_SUCCESS);
    ct_memory_end(memory);
    ct_beyond_hold(beyond);
    if (!beyond->late_count && !next_held(beyond, NULL))
        atomic_store_explicit(&beyond->is_busy, 0, memory_order_relaxed);
    ct_beyond_let_go(beyond);
}

static uint64_t booked_in_all(struct ct_beyond *beyond)
{
    uint64_t sum = 0;
    ct_beyond_hold(beyond);
    for (struct ct_supply *supply = next_held(beyond, NULL); supply; supply = next_held(beyond, supply))
        sum += supply->booked_bytes;
    for (size_t i = 0; i < beyond->late_count; i++)
        sum += beyond->late[i].bytes;
    ct_beyond_let_go(beyond);
    return sum;
}

static void trim(struct ct_beyond *beyond, struct ct_supply *supply)
{
    ct_beyond_hold(beyond);
    const int is_there = supply->is_used && !supply->is_ended;
    supply->readers += (uint32_t)is_there;
    ct_beyond_let_go(beyond);
    if (!is_there)
        return;
    if (supply->pool)
        CT_NEXT(cuMemPoolTrimTo)(supply->pool, 0);
    else
        CT_NEXT(cuDeviceGraphMemTrim)(supply->device);
    ct_beyond_hold(beyond);
    supply->readers--;
    ct_beyond_let_go(beyond);
}

int ct_beyond_squeeze(struct ct_memory *memory)
{
    struct ct_beyond *beyond = &memory->beyond;
    if (!atomic_load_explicit(&beyond->is_busy, memory_order_relaxed))
        return 0;
    const uint64_t before = booked_in_all(beyond);
    for (struct ct_supply *supply = walk(beyond, NULL); supply; supply = walk(beyond, supply))
        trim(beyond, supply);
    ct_beyond_settle(memory, 0);
    return booked_in_all(beyond) < before;
}

int ct_beyond_ended(struct ct_memory *memory, const struct ct_holding *holding)
{
    if (holding->held == CT_HELD_POOLED) {
        ct_beyond_hold(&memory->beyond);
        ct_supply_left(memory, (struct ct_supply *)(uintptr_t)holding->note, 1);
        ct_beyond_let_go(&memory->beyond);
        return 1;
    }
    if (holding->held == CT_HELD_OPENED) {
        ct_share_closed(memory, holding->note);
        return 1;
    }
    return 0;
}
