/* The claim: a word in the arbitration page that lets one waiting tenant at a time decide, and that expires by
 * itself. */
#ifndef COTENANT_GATE_CLAIM_H
#define COTENANT_GATE_CLAIM_H

#include "gate/gate.h"

/* Returns 1 and the word to release in `claim`, or 0 if another tenant holds the claim. */
int ct_gate_take_claim(struct ct_gate *gate, uint64_t now_ns, uint64_t *claim);
void ct_gate_give_claim(struct ct_gate *gate, uint64_t claim);

#endif
