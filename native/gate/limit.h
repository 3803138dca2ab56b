/* How much of the device may a tenant use, and which of its equals has not had its share yet? */
#ifndef COTENANT_GATE_LIMIT_H
#define COTENANT_GATE_LIMIT_H

#include "gate/gate.h"

/* Our choices; docs/limit.md says what each was measured by. */
enum {
    CT_LIMIT_AHEAD_NS = 4 * 1000 * 1000,    /* a limited tenant works so far ahead, then waits for all of it at once */
    CT_LIMIT_WINDOW_NS = 100 * 1000 * 1000, /* what is not used in so long is lost */
    CT_LIMIT_HELD_MOST_NS = 1000 * 1000 * 1000, /* but for twice this at most of what one was held up by its equals, */
    CT_LIMIT_HELD_FOR_NS = 2000 * 1000 * 1000,  /* within so long */
    CT_LIMIT_LATE_NS = 10 * 1000 * 1000,    /* work that a host waits for is over this much later than expected at most */
    CT_LIMIT_ASLEEP_NS = CT_GATE_NAP_NS + 1000 * 1000, /* who has not asked for longer does not just sleep at the gate */
    CT_LIMIT_LOOK_NS = 1000 * 1000,         /* how long one that waits for its equals sleeps unless a bell rings */
    CT_LIMIT_POLL_NS = 250 * 1000,          /* how often one looks whether what it submitted has ended, once it should have */
    CT_LIMIT_LEAST_PART_PPM = 250 * 1000,   /* work of fewer blocks is not submitted further ahead than of so many */
    CT_LIMIT_KEPT_OUT = 16,                 /* one without a share waits for so many times its kernel's length, and a while */
    CT_LIMIT_WHOLE_PPM = 1000 * 1000,
    CT_LIMIT_NEAR_PPM = 20 * 1000, /* a part of the SMs is given in whole ones */
};

/* Whether the shares on this device concern us at all: ours, or that of an equal. */
int ct_limit_must_ask(const struct ct_gate *gate);

/* May this kernel go, as far as shares are concerned? 0, or the reason to wait, until then. `is_active`: somebody above is;
 * then it is those above who decide who goes, and nobody holds back for an equal. */
uint32_t ct_limit_ask(struct ct_gate *gate, const struct ct_gate_wish *wish, int is_active, uint64_t since_ns,
                      uint64_t now_ns, uint64_t *until_ns);

/* Whether what it has submitted already keeps it from submitting more, and when to look whether there is room again. */
int ct_limit_is_full(const struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns);
uint64_t ct_limit_room_at(const struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns);

/* Work of ours was over so much later than it would have been alone, or is still not, for that of equals came first. */
void ct_limit_held(struct ct_gate *gate, uint64_t held_ns, uint64_t now_ns);

/* It passes: what it is expected to use is written down, unless it was lent. Or it does not come: that is given back. */
void ct_limit_charge(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns);
void ct_limit_refund(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns);

#endif
