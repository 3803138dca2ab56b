/* Which of those who wait decides at this instant? One word on the floor, which lapses by itself. */
#include "gate/claim.h"

/* The lapse in units of 1,024 ns (40 bits: 13 days of them), generation (13 bits), slot and one. */
enum { SLOT_BITS = 11, GENERATION_BITS = 13, TICK_BITS = 10, WHO_BITS = SLOT_BITS + GENERATION_BITS };
/* Further ahead it is a scribble, or of another boot. Far more than a claim lasts: whoever compares may have been kept from
 * running since it read the clock, and must not take a claim for lapsed that is younger than its instant. */
enum { AHEAD_TICKS = 1 << 20 };

static uint64_t claim_until(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t who = ((uint64_t)(gate->generation & ((1u << GENERATION_BITS) - 1)) << SLOT_BITS) |
                   ((gate->slot + 1) & ((1u << SLOT_BITS) - 1));
    uint64_t tick = ((now_ns + CT_GATE_CLAIM_NS) >> TICK_BITS) + 1;
    return (tick << WHO_BITS) | who;
}

/* Forty bits of ticks wrap: compared as a distance. */
static int has_lapsed(uint64_t claim, uint64_t now_ns)
{
    int64_t ahead = (int64_t)(((claim >> WHO_BITS) << WHO_BITS) - ((now_ns >> TICK_BITS) << WHO_BITS)) >> WHO_BITS;
    return claim == 0 || ahead <= 0 || ahead > AHEAD_TICKS;
}

int ct_gate_take_claim(struct ct_gate *gate, uint64_t now_ns, uint64_t *claim)
{
    uint64_t before = atomic_load_explicit(&gate->floor->claim, memory_order_relaxed);
    *claim = claim_until(gate, now_ns);
    if (!has_lapsed(before, now_ns))
        return 0;
    return atomic_compare_exchange_strong_explicit(&gate->floor->claim, &before, *claim, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

void ct_gate_give_claim(struct ct_gate *gate, uint64_t claim)
{
    /* If it lapsed meanwhile it may be another's: then that one gives it back. */
    atomic_compare_exchange_strong_explicit(&gate->floor->claim, &claim, 0, memory_order_release, memory_order_relaxed);
}
