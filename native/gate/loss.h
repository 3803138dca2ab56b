/* What have those above really lost, of what was charged? */
#ifndef COTENANT_GATE_LOSS_H
#define COTENANT_GATE_LOSS_H

#include "gate/gate.h"

/* The holder's side: work was announced, and (after a call that waited for all of it) is over. */
void ct_loss_announced(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns);
void ct_loss_drained(struct ct_gate *gate, uint64_t now_ns);

/* The side of those below: work of ours is expected to run until then; what they say of their losses is taken in. */
void ct_loss_show(struct ct_gate *gate);
void ct_loss_look(struct ct_gate *gate);
/* What was thought to be lost, as far as it is. */
uint64_t ct_loss_scaled(const struct ct_gate *gate, uint64_t thought_ns);

#endif
