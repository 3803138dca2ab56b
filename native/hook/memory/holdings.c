/* The table of what this process has allocated, by handle, and of what each allocation is freed with. */
#define _GNU_SOURCE
#include "hook/memory/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { FIRST_CAPACITY = 256 };

static void lock_holdings(struct ct_memory *memory)
{
    if (exchange_acquire(&memory->lock, 1))
        ct_lock_slow(&memory->lock);
}

static void unlock_holdings(struct ct_memory *memory)
{
    store_release(&memory->lock, 0);
}

/* Returns the index at which the search for a key begins. */
static uint64_t first_index(const struct ct_holdings *holdings, unsigned held, uint64_t key)
{
    uint64_t hash = (key ^ (uint64_t)held << 56) * UINT64_C(0x9e3779b97f4a7c15);
    return (hash ^ hash >> 32) & (holdings->capacity - 1);
}

/* Returns the index of the entry, or of the free entry where it belongs. A free entry always exists. */
static uint64_t find_index(const struct ct_holdings *holdings, unsigned held, uint64_t key)
{
    uint64_t index = first_index(holdings, held, key);
    while (holdings->entries[index].held &&
           !(holdings->entries[index].held == held && holdings->entries[index].key == key))
        index = (index + 1) & (holdings->capacity - 1);
    return index;
}

/* Updates the number of contexts and the size of the code in the ledger, which the node reads. */
static void update_line(struct ct_memory *memory, const struct ct_holding *holding, uint64_t sign)
{
    struct ct_ledger_line *line = &memory->ledger.page->line;
    int is_own = holding->home == holding->key || holding->home >= CT_HOME_ENDING;
    int is_context = holding->held == CT_HELD_PRIMARY || (holding->held == CT_HELD_CONTEXT && is_own);
    if (is_context)
        atomic_fetch_add(&line->contexts, sign);
    else if (holding->held == CT_HELD_MODULE || holding->held == CT_HELD_LIBRARY)
        atomic_fetch_add(&line->code_bytes, sign * holding->bytes);
}

static int grow(struct ct_holdings *holdings)
{
    struct ct_holdings larger = {.capacity = holdings->capacity ? 2 * holdings->capacity : FIRST_CAPACITY,
                                 .count = holdings->count};
    int saved_errno = errno;
    larger.entries =
        mmap(NULL, larger.capacity * sizeof *larger.entries, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                          -1, 0);
    errno = saved_errno;
    if (larger.entries == MAP_FAILED)
        return 0;
    madvise(larger.entries, larger.capacity * sizeof *larger.entries, MADV_DONTFORK);
    for (uint64_t i = 0; i < holdings->capacity; i++) {
        const struct ct_holding *old = &holdings->entries[i];
        if (old->held)
            larger.entries[find_index(&larger, old->held, old->key)] = *old;
    }
    if (holdings->capacity)
        munmap(holdings->entries, holdings->capacity * sizeof *holdings->entries);
    *holdings = larger;
    return 1;
}

/* Removes an entry and closes the gap, so that entries behind it are still found. */
static void remove_at(struct ct_memory *memory, uint64_t hole)
{
    struct ct_holdings *holdings = &memory->holdings;
    update_line(memory, &holdings->entries[hole], UINT64_MAX);
    const uint64_t mask = holdings->capacity - 1;
    for (uint64_t index = (hole + 1) & mask; holdings->entries[index].held; index = (index + 1) & mask) {
        uint64_t preferred = first_index(holdings, holdings->entries[index].held, holdings->entries[index].key);
        if (((index - preferred) & mask) >= ((index - hole) & mask)) {
            holdings->entries[hole] = holdings->entries[index];
            hole = index;
        }
    }
    memset(&holdings->entries[hole], 0, sizeof holdings->entries[hole]);
    holdings->count--;
}

int ct_holding_add(struct ct_memory *memory, const struct ct_holding *holding)
{
    if (!memory)
        return 1;
    lock_holdings(memory);
    struct ct_holdings *holdings = &memory->holdings;
    int has_capacity = 2 * (holdings->count + 1) <= holdings->capacity || grow(holdings) ||
                   holdings->count + 2 <= holdings->capacity; /* a full table is slow, but forgets nothing */
    if (has_capacity) {
        struct ct_holding *entry = &holdings->entries[find_index(holdings, holding->held, holding->key)];
        if (entry->held)
            update_line(memory, entry, UINT64_MAX);
        update_line(memory, holding, 1);
        holdings->count += !entry->held;
        *entry = *holding;
    }
    unlock_holdings(memory);
    return has_capacity;
}

static int look_up(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found, int must_remove)
{
    int is_found = 0;
    if (!memory)
        return 0;
    lock_holdings(memory);
    if (memory->holdings.count) {
        uint64_t index = find_index(&memory->holdings, held, key);
        is_found = memory->holdings.entries[index].held != CT_HELD_NOTHING;
        if (is_found)
            *found = memory->holdings.entries[index];
        if (is_found && must_remove)
            remove_at(memory, index);
    }
    unlock_holdings(memory);
    return is_found;
}

int ct_holding_find(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found)
{
    return look_up(memory, held, key, found, 0);
}

int ct_holding_take(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found)
{
    return look_up(memory, held, key, found, 1);
}

static int holds_pool(struct ct_memory *memory, CUmemoryPool pool)
{
    ct_supplies_lock(&memory->supplies);
    const int is_held = ct_supply_of(&memory->supplies, pool, 0) != NULL;
    ct_supplies_unlock(&memory->supplies);
    return is_held;
}

/* Searches all devices for a handle of this kind, or for a pool. */
static int64_t device_of(enum ct_held held, uint64_t key)
{
    struct ct_page *page = load_acquire(&ct_page);
    struct ct_holding holding;
    for (uint32_t i = 0; ct_has_several_devices(page) && i < CT_DEVICES; i++) {
        struct ct_memory *memory = load_acquire(&page->devices[i].memory);
        if (memory && (held == CT_HELD_POOL ? holds_pool(memory, (CUmemoryPool)key)
                                            : ct_holding_find(memory, held, key, &holding)))
            return i;
    }
    return CT_ANY_DEVICE;
}

int64_t ct_holding_device(enum ct_held held, uint64_t key)
{
    return device_of(held, key);
}

int64_t ct_pointer_device(CUdeviceptr pointer)
{
    const int64_t device = device_of(CT_HELD_MEMORY, pointer);
    return device == CT_ANY_DEVICE ? device_of(CT_HELD_POOLED, pointer) : device;
}

int64_t ct_pool_device(CUmemoryPool pool)
{
    return device_of(CT_HELD_POOL, (uintptr_t)pool);
}

int64_t ct_stream_device(CUstream stream)
{
    CUcontext context = NULL;
    if (!ct_has_several_devices(load_acquire(&ct_page)) || CT_NEXT(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        return CT_ANY_DEVICE;
    return device_of(CT_HELD_CONTEXT, (uintptr_t)context);
}

void ct_holdings_forget(struct ct_memory *memory, enum ct_held held, uint64_t note)
{
    lock_holdings(memory);
    for (uint64_t index = 0; index < memory->holdings.capacity;) {
        const struct ct_holding *entry = &memory->holdings.entries[index];
        if (entry->held == held && entry->note == note)
            remove_at(memory, index); /* another entry may have moved here: check this index again */
        else
            index++;
    }
    unlock_holdings(memory);
}

int ct_holding_around(struct ct_memory *memory, enum ct_held held, uint64_t address, struct ct_holding *found)
{
    int is_found = 0;
    if (!memory)
        return 0;
    lock_holdings(memory);
    for (uint64_t index = 0; index < memory->holdings.capacity && !is_found; index++) {
        *found = memory->holdings.entries[index];
        is_found = found->held == held && address >= found->key && address - found->key < found->bytes;
    }
    unlock_holdings(memory);
    return is_found;
}

/* Releases the bytes of an entry. Memory that other processes have open stays in our account. */
static void release(struct ct_memory *memory, const struct ct_holding *holding)
{
    ct_share_freed(memory, holding->kind, holding->bytes, holding->held == CT_HELD_MEMORY ? holding->note : 0);
}

void ct_holdings_move(struct ct_memory *memory, uint64_t home, uint64_t to)
{
    if (!memory)
        return;
    ct_deferred_move(memory, home, to);
    lock_holdings(memory);
    for (uint64_t index = 0; index < memory->holdings.capacity; index++)
        if (memory->holdings.entries[index].held && memory->holdings.entries[index].home == home)
            memory->holdings.entries[index].home = to;
    unlock_holdings(memory);
}

void ct_holdings_end(struct ct_memory *memory, uint64_t home)
{
    if (!memory || !home)
        return;
    ct_deferred_context_ended(memory, home);
    lock_holdings(memory);
    struct ct_holdings *holdings = &memory->holdings;
    for (uint64_t index = 0; index < holdings->capacity;) {
        struct ct_holding ended = holdings->entries[index];
        if (!ended.held || ended.home != home) {
            index++;
            continue;
        }
        remove_at(memory, index); /* another entry may have moved here: check this index again */
        if (!ct_supplies_end_holding(memory, &ended))
            release(memory, &ended);
    }
    unlock_holdings(memory);
    ct_supplies_settle(memory, 0);
}

CUresult ct_memory_settle(struct ct_memory *memory, const struct ct_holding *holding, CUresult result)
{
    struct ct_holding earlier;
    if (result == CUDA_SUCCESS) {
        if (ct_holding_take(memory, holding->held, holding->key, &earlier))
            release(memory, &earlier); /* it was freed without the hook: the driver does not return one address twice */
        ct_holding_add(memory, holding);
    } else {
        ct_memory_release(memory, holding->kind, holding->bytes);
    }
    ct_memory_end(memory);
    return ct_fault_check(result);
}

CUresult ct_memory_settle_free(struct ct_memory *memory, const struct ct_holding *holding, int was_held,
                               CUresult result)
{
    if (was_held && result == CUDA_SUCCESS)
        release(memory, holding);
    else if (was_held)
        ct_holding_add(memory, holding);
    ct_memory_end(memory);
    return ct_fault_check(result);
}
