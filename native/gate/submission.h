/* What the parts of the gate share about submitted launches. */
#ifndef COTENANT_GATE_SUBMISSION_H
#define COTENANT_GATE_SUBMISSION_H

#include "gate/gate.h"

/* Removes a launch that was admitted and has completed, or was never submitted. */
void ct_submission_remove(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns);
/* Counts a launch that was submitted after a higher-priority tenant's launch, if it was. */
void ct_submission_count_late(struct ct_gate *gate, uint64_t now_ns);

#endif
