/* Sharing in space: next to an active holder, launches pass at once but may occupy a part of the SMs only. The part
 * follows what the holders measurably lose. Under MPS only, where kernels of different processes run concurrently. */
#ifndef COTENANT_GATE_SPACE_H
#define COTENANT_GATE_SPACE_H

#include "gate/gate.h"

/* Adjusts the part of the SMs to the measured loss; to be called at every decision. */
void ct_space_update(struct ct_gate *gate, uint64_t now_ns);
/* Returns whether decisions depend on what holders measure as their loss. */
int ct_space_needs_losses(const struct ct_gate *gate);
/* Returns whether launches may pass next to an active holder. */
int ct_space_is_open(const struct ct_gate *gate);
/* Returns whether holders pause so often that losses next to an active one are better spent in the pauses. */
int ct_space_prefers_idle(const struct ct_gate *gate);
/* Returns whether this launch may pass next to an active holder, and limits it to its part of the SMs: it then takes
 * longer. */
int ct_space_limit(const struct ct_gate *gate, struct ct_launch_request *request, uint64_t now_ns);
/* Limits a launch that need not ask, if the gate is open and the operator states a part: it then holds at all times, as
 * a fixed share of the SMs. */
void ct_space_limit_open(const struct ct_gate *gate, struct ct_launch_request *request);
/* Returns whether holders may lose the whole time of the launch within one of their requests. */
int ct_space_permits_loss(const struct ct_gate *gate, const struct ct_launch_request *request);
/* Returns how much device time may be in flight next to an active holder. */
uint64_t ct_space_bound(const struct ct_gate *gate);
/* Forgets the measurements in progress, because the holders have changed. */
void ct_space_restart(struct ct_gate *gate);

#endif
