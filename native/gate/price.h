/* What would a kernel cost those above, and how much of such work may be under way? */
#ifndef COTENANT_GATE_PRICE_H
#define COTENANT_GATE_PRICE_H

#include "gate/gate.h"

/* What is seen of the others. */
struct sight {
    int is_active;         /* somebody above has work, or is expected back */
    uint64_t open_ns;      /* their work is over by then */
    uint64_t end_ns;       /* the first of them is expected back then at the earliest */
    uint64_t latest_ns;    /* and hardly after then */
    uint64_t opens_ns;     /* what it launches then is over by then, if it is like the last */
    uint64_t quiet_ns;     /* all of them are quiet by then */
    uint64_t pieces_per_s; /* kernels that they launch, as far as they are expected to */
    uint64_t submitted_ns; /* expected device time of what we and those beside us have submitted */
    uint64_t sequence[CT_GATE_SEATS];
};

/* What a change of the process on the device costs, when ours would be the first since one above launched. */
uint64_t ct_price_switch(const struct ct_gate *gate);
/* What those above lose in the mean: by this kernel in a gap, and by one that gives way block by block. */
uint64_t ct_price_gap(const struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                      uint64_t now_ns);
uint64_t ct_price_beside(const struct ct_gate_wish *wish, const struct sight *sight, uint64_t now_ns);
/* Of an amount, a part in millionths, and no more than all of it. */
uint64_t ct_price_part(uint64_t amount_ns, uint64_t ppm);
/* What may be submitted and not be over while nobody above is active; whether that is as much as may be while somebody is. */
uint64_t ct_price_bound(const struct ct_gate *gate, const struct ct_gate_wish *wish);
int ct_price_is_deep(const struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                     uint64_t now_ns);

#endif
