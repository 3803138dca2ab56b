/* What have those above lost to those below, and how long does that keep the gate closed? */
#ifndef COTENANT_GATE_DEBT_H
#define COTENANT_GATE_DEBT_H

#include "gate/gate.h"

/* An amount as the time in which it is earned at a rate. */
uint64_t ct_gate_earned_in(uint64_t amount_ns, uint64_t ppm);
/* What those above can spare, of all the time: a part of the time for which they are active. */
uint64_t ct_gate_spared_ppm(const struct ct_gate *gate);
/* How much longer the debt lasts. */
uint64_t ct_gate_debt(const struct ct_gate *gate, uint64_t now_ns);
void ct_gate_charge(struct ct_gate *gate, uint64_t lost_ns, uint64_t now_ns);
/* When a loss can be spared on purpose, for work of this worth; CT_GATE_NEVER: not at all. What costs little of its worth is
 * paid out of what was saved up. What costs more must have been earned since it asked, and there must be no debt: the
 * longer a kernel waits, the worse a gap it takes; so it takes about the best that comes by. */
uint64_t ct_gate_spendable_at(const struct ct_gate *gate, uint64_t loss_ns, uint64_t worth_ns, uint64_t since_ns,
                              uint64_t now_ns);
void ct_gate_spend(struct ct_gate *gate, uint64_t loss_ns, uint64_t now_ns);
/* What those above lost since we last looked: from their first launch to the end of our work that ran then. */
void ct_gate_settle(struct ct_gate *gate, uint64_t now_ns);
/* Kernels in a launch of one above in the mean, in tenths; whatever its page says, from one to UINT16_MAX of them. */
uint64_t ct_gate_tenths(const struct ct_gate_page *page);
/* What is lost to work that gives way block by block: half a block in the mean for each kernel that comes. */
uint64_t ct_gate_yielded(uint64_t pieces, uint64_t grain_ns);
/* When one above launched for the first time since our last admission; CT_GATE_NEVER: it has not. */
uint64_t ct_gate_came_back(const struct ct_gate *gate, struct ct_gate_peer *peer);

#endif
