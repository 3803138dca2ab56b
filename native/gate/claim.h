/* Which of those who wait decides at this instant? One word on the floor, which lapses by itself. */
#ifndef COTENANT_GATE_CLAIM_H
#define COTENANT_GATE_CLAIM_H

#include "gate/gate.h"

/* 1: it is ours, as the word says that is to be given back. 0: another has it. */
int ct_gate_take_claim(struct ct_gate *gate, uint64_t now_ns, uint64_t *claim);
void ct_gate_give_claim(struct ct_gate *gate, uint64_t claim);

#endif
