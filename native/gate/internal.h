/* Functions that the files of the gate share. */
#ifndef COTENANT_GATE_INTERNAL_H
#define COTENANT_GATE_INTERNAL_H

#include "arithmetic.h"
#include "atomics.h"
#include "gate/gate.h"

/* Returns the instant, or 0 if it is beyond the prediction horizon: corrupt, or from another boot. */
static inline uint64_t plausible(uint64_t instant_ns, uint64_t now_ns)
{
    return sat_sub_u64(instant_ns, now_ns) <= CT_GATE_HORIZON_NS ? instant_ns : 0;
}

/* Returns what a kernel counts against a bound; a kernel of unknown length counts as the whole bound. */
static inline uint64_t weight_of(const struct ct_gate *gate, uint64_t expect_ns)
{
    return expect_ns ? expect_ns : gate->bound_ns;
}

#endif
