/* The agreement of the ranks of a job about each collective. */
#include "gate/gang.h"

#include "arithmetic.h"

#include <string.h>

enum { NUMBER_BITS = 32, TRIES = 64 };

static uint64_t bits_of(uint64_t round)
{
    return round & UINT32_MAX;
}

static uint64_t round_of(uint32_t number, uint64_t bits)
{
    return (uint64_t)number << NUMBER_BITS | bits;
}

/* Returns by how many collectives a round is ahead of this number. Numbers wrap around. */
static int32_t ahead(uint64_t round, uint32_t number)
{
    return (int32_t)((uint32_t)(round >> NUMBER_BITS) - number);
}

static uint64_t all_bits(const struct ct_gang *gang)
{
    return (UINT64_C(1) << gang->rank_count) - 1;
}

static int is_full(const struct ct_gang *gang, uint64_t round)
{
    return (bits_of(round) & all_bits(gang)) == all_bits(gang);
}

static int replace(struct ct_gang *gang, uint64_t *before, uint64_t after)
{
    return atomic_compare_exchange_strong_explicit(&gang->page->round, before, after, memory_order_acq_rel,
                                                   memory_order_acquire);
}

/* ---- entries ------------------------------------------------------------------------------------------------------ */

void ct_gang_join(struct ct_gang *gang, struct ct_gang_page *page, uint32_t rank_count, uint32_t generation)
{
    const uint32_t passed = gang->passed;
    const uint64_t patience_ns = gang->page ? gang->patience_ns : CT_GANG_PATIENCE_MAX_NS;
    memset(gang, 0, sizeof *gang);
    gang->rank = CT_GANG_RANKS;
    gang->passed = passed;
    gang->patience_ns = patience_ns;
    if (!page || rank_count < 2 || rank_count > CT_GANG_RANKS || !generation)
        return;
    gang->page = page;
    gang->rank_count = rank_count;
    gang->generation = generation;
}

/* Returns the number of the latest collective that any rank has launched. A process that replaces one that left begins
 * there, because the others do not begin anew. */
static uint32_t latest_passed(const struct ct_gang *gang)
{
    uint32_t latest = gang->passed;
    for (uint32_t i = 0; i < gang->rank_count; i++) {
        const uint32_t passed = (uint32_t)load_relaxed(&gang->page->ranks[i].passed);
        if (load_acquire(&gang->page->ranks[i].generation) && (int32_t)(passed - latest) > 0)
            latest = passed;
    }
    return latest;
}

static int claim(struct ct_gang *gang)
{
    const uint32_t first = load_acquire(&gang->page->departures) ? latest_passed(gang) : gang->passed;
    for (uint32_t i = 0; i < gang->rank_count; i++) {
        struct ct_gang_rank *entry = &gang->page->ranks[i];
        uint64_t generation = 0;
        if (!atomic_compare_exchange_strong(&entry->generation, &generation, gang->generation) &&
            generation != gang->generation)
            continue;
        gang->rank = i;
        gang->passed = first;
        store_relaxed(&entry->asked_ns, 0);
        store_release(&entry->passed, first);
        return 1;
    }
    return 0;
}

int ct_gang_begin(struct ct_gang *gang, int is_contended, uint64_t now_ns)
{
    if (!gang->page)
        return 0;
    if (gang->rank == CT_GANG_RANKS || load_relaxed(&gang->page->ranks[gang->rank].generation) != gang->generation) {
        gang->rank = CT_GANG_RANKS;
        gang->is_prepared = 0;
        if (!claim(gang))
            return 0;
    }
    store_release(&gang->page->ranks[gang->rank].is_contended, is_contended != 0);
    if (!gang->arrived_ns)
        gang->arrived_ns = now_ns ? now_ns : 1;
    return 1;
}

int ct_gang_is_uncontended(const struct ct_gang *gang)
{
    for (uint32_t i = 0; i < gang->rank_count; i++)
        if (load_acquire(&gang->page->ranks[i].generation) && load_acquire(&gang->page->ranks[i].is_contended))
            return 0;
    return 1;
}

void ct_gang_held(struct ct_gang *gang, uint64_t now_ns)
{
    if (gang->page && gang->rank < CT_GANG_RANKS && load_relaxed(&gang->page->ranks[gang->rank].asked_ns) != now_ns)
        store_release(&gang->page->ranks[gang->rank].asked_ns, now_ns);
}

void ct_gang_leave(struct ct_gang_page *page, uint32_t generation)
{
    for (uint32_t i = 0; i < CT_GANG_RANKS; i++)
        if (generation && load_relaxed(&page->ranks[i].generation) == generation) {
            fetch_add_release(&page->departures, 1); /* first, so that a process that takes the entry sees it */
            store_relaxed(&page->ranks[i].is_contended, 0);
            store_release(&page->ranks[i].generation, 0);
        }
}

/* ---- the agreement ------------------------------------------------------------------------------------------------ */

/* Returns whether a rank shows no sign of life: it is not held by its gate, and the patience with it is over. */
static int is_silent(const struct ct_gang *gang, const struct ct_gang_rank *rank, uint64_t now_ns)
{
    const int is_absent = !load_acquire(&rank->generation);
    uint64_t asked_ns = load_acquire(&rank->asked_ns);
    if (is_absent && gang->ignores_absent)
        return 1;
    if (is_absent || sat_sub_u64(asked_ns, now_ns) > CT_GANG_HELD_NS) /* it left, or is corrupt */
        asked_ns = 0;
    const int is_held = asked_ns && sat_sub_u64(now_ns, asked_ns) < CT_GANG_HELD_NS;
    const uint64_t last_ns = max_u64(gang->arrived_ns, asked_ns);
    return !is_held && sat_sub_u64(now_ns, last_ns) >= gang->patience_ns;
}

/* Returns the bits of the ranks that are not waited for: they have launched this collective already, or are silent. */
static uint64_t others_bits(struct ct_gang *gang, uint32_t number, uint64_t now_ns)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < gang->rank_count; i++) {
        const struct ct_gang_rank *rank = &gang->page->ranks[i];
        if (i == gang->rank)
            continue;
        if (load_acquire(&rank->generation) && (int32_t)((uint32_t)load_acquire(&rank->passed) - number) >= 0) {
            bits |= UINT64_C(1) << i;
        } else if (is_silent(gang, rank, now_ns)) {
            bits |= UINT64_C(1) << i;
            gang->has_given_up |= !gang->ignores_absent || load_relaxed(&rank->generation);
            gang->ignores_absent |= !load_relaxed(&rank->generation);
        }
    }
    return bits;
}

int ct_gang_is_agreed(const struct ct_gang *gang)
{
    const uint64_t round = load_acquire(&gang->page->round);
    const int32_t distance = ahead(round, gang->passed + 1);
    return gang->is_prepared && (distance > 0 || (distance == 0 && is_full(gang, round)));
}

/* Records an agreement that this process completed. */
static int complete(struct ct_gang *gang)
{
    fetch_add_release(&gang->page->wake_word, 1);
    gang->must_wake = 1;
    return 1;
}

int ct_gang_open(struct ct_gang *gang, uint64_t now_ns)
{
    const uint32_t number = gang->passed + 1;
    const uint64_t own = UINT64_C(1) << gang->rank;
    uint64_t round = load_acquire(&gang->page->round);
    for (int tries = 0; tries < TRIES; tries++) {
        const int32_t distance = ahead(round, number);
        if (distance > 0 || (distance == 0 && is_full(gang, round))) /* others have launched it, or do so now */
            return 1;
        const uint64_t bits =
            bits_of(round) | own | others_bits(gang, distance < 0 ? number + (uint32_t)distance : number, now_ns);
        if (distance < 0) {
            /* An earlier round, which this process has launched: it ends when the other ranks have, too. */
            const uint64_t next = round_of(number, 0);
            const uint64_t ended = round_of(number + (uint32_t)distance, bits);
            if (!replace(gang, &round, is_full(gang, ended) ? next : ended))
                continue;
            if (!is_full(gang, ended))
                return 0;
            round = next;
            continue;
        }
        if (bits != bits_of(round) && !replace(gang, &round, round_of(number, bits)))
            continue;
        gang->is_prepared = 1;
        return is_full(gang, round_of(number, bits)) ? complete(gang) : 0;
    }
    return 0; /* others change the word all the time: ask again */
}

int ct_gang_close(struct ct_gang *gang)
{
    const uint64_t own = UINT64_C(1) << gang->rank;
    uint64_t round = load_acquire(&gang->page->round);
    for (int tries = 0; tries < TRIES; tries++) {
        const int32_t distance = ahead(round, gang->passed + 1);
        if (distance > 0 || (distance == 0 && is_full(gang, round)))
            return gang->is_prepared;
        /* Another rank may have set the bit, because this one was silent. */
        if (distance < 0 || !(bits_of(round) & own) || replace(gang, &round, round & ~own)) {
            gang->is_prepared = 0;
            return 0;
        }
    }
    return 0; /* others change the word all the time: ask again */
}

void ct_gang_passed(struct ct_gang *gang)
{
    uint64_t *patience_ns = &gang->patience_ns;
    *patience_ns = gang->has_given_up ? max_u64(*patience_ns / 2, CT_GANG_PATIENCE_MIN_NS)
                                      : min_u64(*patience_ns * 2, CT_GANG_PATIENCE_MAX_NS);
    gang->is_prepared = gang->has_given_up = 0;
    gang->arrived_ns = 0;
    store_release(&gang->page->ranks[gang->rank].passed, ++gang->passed);
}

uint64_t ct_gang_recheck_at(const struct ct_gang *gang, uint64_t now_ns)
{
    const int is_long = sat_sub_u64(now_ns, gang->arrived_ns) > CT_GANG_LONG_NS;
    return sat_add_u64(now_ns, is_long ? CT_GANG_RECHECK_LONG_NS : CT_GANG_RECHECK_NS);
}
