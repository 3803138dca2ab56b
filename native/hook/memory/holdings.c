/* The table of what this process has allocated, by handle, and of what each allocation is freed with. */
#define _GNU_SOURCE
#include "hook/memory/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { FIRST_PLACES = 256 };

static void lock_holdings(struct ct_memory *memory)
{
    if (exchange_acquire(&memory->lock, 1))
        ct_lock_slow(&memory->lock);
}

static void unlock_holdings(struct ct_memory *memory)
{
    store_release(&memory->lock, 0);
}

static uint64_t preferred_place(const struct ct_holdings *holdings, unsigned held, uint64_t key)
{
    uint64_t mixed = (key ^ (uint64_t)held << 56) * UINT64_C(0x9e3779b97f4a7c15);
    return (mixed ^ mixed >> 32) & (holdings->places - 1);
}

/* Returns the index of the entry, or of the free place for it. A free place always exists. */
static uint64_t seek(const struct ct_holdings *holdings, unsigned held, uint64_t key)
{
    uint64_t at = preferred_place(holdings, held, key);
    while (holdings->place[at].held && !(holdings->place[at].held == held && holdings->place[at].key == key))
        at = (at + 1) & (holdings->places - 1);
    return at;
}

/* Updates the number of contexts and the size of the code in the ledger, which the node reads. */
static void update_line(struct ct_memory *memory, const struct ct_holding *holding, uint64_t sign)
{
    struct ct_ledger_line *line = load_seq_cst(&memory->ledger.line);
    int is_own = holding->home == holding->key || holding->home >= CT_HOME_LEAVING;
    int is_context = holding->held == CT_HELD_PRIMARY || (holding->held == CT_HELD_CONTEXT && is_own);
    if (line && is_context)
        atomic_fetch_add(&line->contexts, sign);
    else if (line && (holding->held == CT_HELD_MODULE || holding->held == CT_HELD_LIBRARY))
        atomic_fetch_add(&line->code_bytes, sign * holding->bytes);
}

static int grow(struct ct_holdings *holdings)
{
    struct ct_holdings larger = {.places = holdings->places ? 2 * holdings->places : FIRST_PLACES,
                                 .count = holdings->count};
    int kept_errno = errno;
    larger.place = mmap(NULL, larger.places * sizeof *larger.place, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                        -1, 0);
    errno = kept_errno;
    if (larger.place == MAP_FAILED)
        return 0;
    madvise(larger.place, larger.places * sizeof *larger.place, MADV_DONTFORK);
    for (uint64_t i = 0; i < holdings->places; i++) {
        const struct ct_holding *old = &holdings->place[i];
        if (old->held)
            larger.place[seek(&larger, old->held, old->key)] = *old;
    }
    if (holdings->places)
        munmap(holdings->place, holdings->places * sizeof *holdings->place);
    *holdings = larger;
    return 1;
}

/* Closes the gap, so that entries behind it are still found. */
static void drop(struct ct_memory *memory, uint64_t hole)
{
    struct ct_holdings *holdings = &memory->holdings;
    update_line(memory, &holdings->place[hole], UINT64_MAX);
    const uint64_t mask = holdings->places - 1;
    for (uint64_t at = (hole + 1) & mask; holdings->place[at].held; at = (at + 1) & mask) {
        uint64_t requested = preferred_place(holdings, holdings->place[at].held, holdings->place[at].key);
        if (((at - requested) & mask) >= ((at - hole) & mask)) {
            holdings->place[hole] = holdings->place[at];
            hole = at;
        }
    }
    memset(&holdings->place[hole], 0, sizeof holdings->place[hole]);
    holdings->count--;
}

int ct_holding_add(struct ct_memory *memory, const struct ct_holding *holding)
{
    if (!memory)
        return 1;
    lock_holdings(memory);
    struct ct_holdings *holdings = &memory->holdings;
    int has_capacity = 2 * (holdings->count + 1) <= holdings->places || grow(holdings) ||
                   holdings->count + 2 <= holdings->places; /* a full table is slow, but forgets nothing */
    if (has_capacity) {
        struct ct_holding *place = &holdings->place[seek(holdings, holding->held, holding->key)];
        if (place->held)
            update_line(memory, place, UINT64_MAX);
        update_line(memory, holding, 1);
        holdings->count += !place->held;
        *place = *holding;
    }
    unlock_holdings(memory);
    return has_capacity;
}

static int scan(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found, int is_taken)
{
    int is_found = 0;
    if (!memory)
        return 0;
    lock_holdings(memory);
    if (memory->holdings.count) {
        uint64_t at = seek(&memory->holdings, held, key);
        is_found = memory->holdings.place[at].held != CT_HELD_NOTHING;
        if (is_found)
            *found = memory->holdings.place[at];
        if (is_found && is_taken)
            drop(memory, at);
    }
    unlock_holdings(memory);
    return is_found;
}

int ct_holding_find(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found)
{
    return scan(memory, held, key, found, 0);
}

int ct_holding_take(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found)
{
    return scan(memory, held, key, found, 1);
}

void ct_holdings_forget(struct ct_memory *memory, enum ct_held held, uint64_t note)
{
    lock_holdings(memory);
    for (uint64_t at = 0; at < memory->holdings.places;) {
        const struct ct_holding *place = &memory->holdings.place[at];
        if (place->held == held && place->note == note)
            drop(memory, at); /* another entry may have moved here: check this place again */
        else
            at++;
    }
    unlock_holdings(memory);
}

int ct_holding_around(struct ct_memory *memory, enum ct_held held, uint64_t inside, struct ct_holding *found)
{
    int is_found = 0;
    if (!memory)
        return 0;
    lock_holdings(memory);
    for (uint64_t at = 0; at < memory->holdings.places && !is_found; at++) {
        *found = memory->holdings.place[at];
        is_found = found->held == held && inside >= found->key && inside - found->key < found->bytes;
    }
    unlock_holdings(memory);
    return is_found;
}

/* Memory that other processes have open stays in our account. */
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
    for (uint64_t at = 0; at < memory->holdings.places; at++)
        if (memory->holdings.place[at].held && memory->holdings.place[at].home == home)
            memory->holdings.place[at].home = to;
    unlock_holdings(memory);
}

void ct_holdings_end(struct ct_memory *memory, uint64_t home)
{
    if (!memory || !home)
        return;
    ct_deferred_context_ended(memory, home);
    lock_holdings(memory);
    struct ct_holdings *holdings = &memory->holdings;
    for (uint64_t at = 0; at < holdings->places;) {
        struct ct_holding gone = holdings->place[at];
        if (!gone.held || gone.home != home) {
            at++;
            continue;
        }
        drop(memory, at); /* another entry may have moved here: check this place again */
        if (!ct_supplies_end_holding(memory, &gone))
            release(memory, &gone);
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
