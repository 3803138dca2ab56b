/* The claim: a word in the arbitration page that lets one waiting process at a time decide, and that expires by
 * itself. */
#include "gate/claim.h"

#include "arithmetic.h"

/* Layout of the word: the expiry in units of 1,024 ns (40 bits, 13 days), the generation (13 bits), the index plus
 * one. */
enum { INDEX_BITS = 11, GENERATION_BITS = 13, TICK_BITS = 10, OWNER_BITS = INDEX_BITS + GENERATION_BITS };
/* An expiry further ahead is corrupt or from another boot. The bound is far larger than a claim's duration: the reader
 * may have been descheduled since it read the clock, and must not treat a claim that is younger than its instant as
 * expired. */
enum { AHEAD_MAX_TICKS = 1 << 20 };

/* Returns the word of a claim by this process that expires after CT_GATE_CLAIM_NS. */
static uint64_t make_claim(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t owner = ((uint64_t)(gate->generation & ((1u << GENERATION_BITS) - 1)) << INDEX_BITS) |
                   ((gate->index + 1) & ((1u << INDEX_BITS) - 1));
    uint64_t tick = ((now_ns + CT_GATE_CLAIM_NS) >> TICK_BITS) + 1;
    return (tick << OWNER_BITS) | owner;
}

/* Returns whether a claim has expired. The 40-bit tick wraps around, so ticks are compared by their distance. */
static int has_expired(uint64_t claim, uint64_t now_ns)
{
    int64_t ahead =
        (int64_t)(((claim >> OWNER_BITS) << OWNER_BITS) - ((now_ns >> TICK_BITS) << OWNER_BITS)) >> OWNER_BITS;
    return claim == 0 || ahead <= 0 || ahead > AHEAD_MAX_TICKS;
}

/* Any process that waits can write the word at any time. One that keeps renewing a claim delays the others once a
 * second, not at every launch. */
static int ignores_claim(struct ct_gate *gate, uint64_t now_ns)
{
    if (now_ns < gate->claim_ignored_ns)
        return 1;
    if (!gate->claim_refused_ns)
        gate->claim_refused_ns = now_ns;
    if (++gate->claim_refusals < CT_GATE_CLAIM_REFUSALS ||
        sat_sub_u64(now_ns, gate->claim_refused_ns) < CT_GATE_CLAIM_REFUSED_MAX_NS)
        return 0;
    gate->claim_refused_ns = gate->claim_refusals = 0;
    gate->claim_ignored_ns = sat_add_u64(now_ns, CT_GATE_CLAIM_IGNORED_NS);
    return 1;
}

static int replace(struct ct_gate *gate, uint64_t before, uint64_t claim)
{
    return atomic_compare_exchange_strong_explicit(&gate->arbitration->claim, &before, claim, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

int ct_gate_take_claim(struct ct_gate *gate, uint64_t now_ns, uint64_t *claim)
{
    uint64_t before = load_relaxed(&gate->arbitration->claim);
    *claim = make_claim(gate, now_ns);
    if (has_expired(before, now_ns) && replace(gate, before, *claim)) {
        gate->claim_refused_ns = gate->claim_refusals = 0;
        return 1;
    }
    if (!ignores_claim(gate, now_ns))
        return 0;
    replace(gate, before, *claim); /* if it fails, ct_gate_release_claim() finds another word, which stays */
    return 1;
}

void ct_gate_release_claim(struct ct_gate *gate, uint64_t claim)
{
    /* If the claim expired, the word may belong to another process, and stays. */
    atomic_compare_exchange_strong_explicit(&gate->arbitration->claim, &claim, 0, memory_order_release,
                                            memory_order_relaxed);
}
