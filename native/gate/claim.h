/* The claim: a word in the arbitration page that lets one waiting process at a time decide, and that expires by
 * itself. */
#ifndef COTENANT_GATE_CLAIM_H
#define COTENANT_GATE_CLAIM_H

#include "gate/gate.h"

/* Takes the claim. Returns 1, with the word for ct_gate_release_claim() in `claim`, or 0 if another process holds it. A
 * claim that was refused for CT_GATE_CLAIM_REFUSED_MAX_NS is ignored for a while. */
int ct_gate_take_claim(struct ct_gate *gate, uint64_t now_ns, uint64_t *claim);
void ct_gate_release_claim(struct ct_gate *gate, uint64_t claim);

#endif
