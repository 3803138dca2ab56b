/* What does this process hold, and what does it end with? A table by handle. */
#define _GNU_SOURCE
#include "hook/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { FIRST_PLACES = 256 };

static void hold(struct ct_memory *memory)
{
    if (atomic_exchange_explicit(&memory->lock, 1, memory_order_acquire))
        ct_hold_late(&memory->lock);
}

static void let_go(struct ct_memory *memory)
{
    atomic_store_explicit(&memory->lock, 0, memory_order_release);
}

static uint64_t wish(const struct ct_holdings *holdings, unsigned held, uint64_t key)
{
    uint64_t mixed = (key ^ (uint64_t)held << 56) * UINT64_C(0x9e3779b97f4a7c15);
    return (mixed ^ mixed >> 32) & (holdings->places - 1);
}

/* Its place, or the free one where it would be. There always is a free one. */
static uint64_t seek(const struct ct_holdings *holdings, unsigned held, uint64_t key)
{
    uint64_t at = wish(holdings, held, key);
    while (holdings->place[at].held && !(holdings->place[at].held == held && holdings->place[at].key == key))
        at = (at + 1) & (holdings->places - 1);
    return at;
}

/* What contexts there are and what code, as the node wants to know it. */
static void tell(struct ct_memory *memory, const struct ct_holding *holding, uint64_t sign)
{
    struct ct_ledger_line *line = atomic_load(&memory->ledger.line);
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

/* Closes the hole, so that whoever was put behind it is still found. */
static void drop(struct ct_memory *memory, uint64_t hole)
{
    struct ct_holdings *holdings = &memory->holdings;
    tell(memory, &holdings->place[hole], UINT64_MAX);
    const uint64_t mask = holdings->places - 1;
    for (uint64_t at = (hole + 1) & mask; holdings->place[at].held; at = (at + 1) & mask) {
        uint64_t wished = wish(holdings, holdings->place[at].held, holdings->place[at].key);
        if (((at - wished) & mask) >= ((at - hole) & mask)) {
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
    hold(memory);
    struct ct_holdings *holdings = &memory->holdings;
    int has_room = 2 * (holdings->count + 1) <= holdings->places || grow(holdings) ||
                   holdings->count + 2 <= holdings->places; /* full is slow, and better than forgotten */
    if (has_room) {
        struct ct_holding *place = &holdings->place[seek(holdings, holding->held, holding->key)];
        if (place->held)
            tell(memory, place, UINT64_MAX);
        tell(memory, holding, 1);
        holdings->count += !place->held;
        *place = *holding;
    }
    let_go(memory);
    return has_room;
}

static int look(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found, int is_taken)
{
    int is_found = 0;
    if (!memory)
        return 0;
    hold(memory);
    if (memory->holdings.count) {
        uint64_t at = seek(&memory->holdings, held, key);
        is_found = memory->holdings.place[at].held != CT_HELD_NOTHING;
        if (is_found)
            *found = memory->holdings.place[at];
        if (is_found && is_taken)
            drop(memory, at);
    }
    let_go(memory);
    return is_found;
}

int ct_holding_find(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found)
{
    return look(memory, held, key, found, 0);
}

int ct_holding_take(struct ct_memory *memory, enum ct_held held, uint64_t key, struct ct_holding *found)
{
    return look(memory, held, key, found, 1);
}

void ct_holdings_forget(struct ct_memory *memory, enum ct_held held, uint64_t note)
{
    hold(memory);
    for (uint64_t at = 0; at < memory->holdings.places;) {
        const struct ct_holding *place = &memory->holdings.place[at];
        if (place->held == held && place->note == note)
            drop(memory, at); /* another may have moved here: this place once more */
        else
            at++;
    }
    let_go(memory);
}

int ct_holding_around(struct ct_memory *memory, enum ct_held held, uint64_t inside, struct ct_holding *found)
{
    int is_found = 0;
    if (!memory)
        return 0;
    hold(memory);
    for (uint64_t at = 0; at < memory->holdings.places && !is_found; at++) {
        *found = memory->holdings.place[at];
        is_found = found->held == held && inside >= found->key && inside - found->key < found->bytes;
    }
    let_go(memory);
    return is_found;
}

/* Memory that others may have open stays in our account while they do. */
static void give(struct ct_memory *memory, const struct ct_holding *holding)
{
    ct_share_freed(memory, holding->kind, holding->bytes, holding->held == CT_HELD_MEMORY ? holding->note : 0);
}

void ct_holdings_move(struct ct_memory *memory, uint64_t home, uint64_t to)
{
    if (!memory)
        return;
    ct_late_move(memory, home, to);
    hold(memory);
    for (uint64_t at = 0; at < memory->holdings.places; at++)
        if (memory->holdings.place[at].held && memory->holdings.place[at].home == home)
            memory->holdings.place[at].home = to;
    let_go(memory);
}

void ct_holdings_end(struct ct_memory *memory, uint64_t home)
{
    if (!memory || !home)
        return;
    ct_late_ended(memory, home);
    hold(memory);
    struct ct_holdings *holdings = &memory->holdings;
    for (uint64_t at = 0; at < holdings->places;) {
        struct ct_holding gone = holdings->place[at];
        if (!gone.held || gone.home != home) {
            at++;
            continue;
        }
        drop(memory, at); /* another may have moved here: this place once more */
        if (!ct_beyond_ended(memory, &gone))
            give(memory, &gone);
    }
    let_go(memory);
    ct_beyond_settle(memory, 0);
}

CUresult ct_memory_settle(struct ct_memory *memory, const struct ct_holding *holding, CUresult result)
{
    struct ct_holding earlier;
    if (result == CUDA_SUCCESS) {
        if (ct_holding_take(memory, holding->held, holding->key, &earlier))
            give(memory, &earlier); /* it was freed past us: the driver does not give the same twice */
        ct_holding_add(memory, holding);
    } else {
        ct_memory_give(memory, holding->kind, holding->bytes);
    }
    ct_memory_end(memory);
    return ct_fault_seen(result);
}

CUresult ct_memory_settle_free(struct ct_memory *memory, const struct ct_holding *holding, int was_held, CUresult result)
{
    if (was_held && result == CUDA_SUCCESS)
        give(memory, holding);
    else if (was_held)
        ct_holding_add(memory, holding);
    ct_memory_end(memory);
    return ct_fault_seen(result);
}
