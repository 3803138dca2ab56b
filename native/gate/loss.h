/* The actual loss of higher-priority tenants compared with the charged loss. */
#ifndef COTENANT_GATE_LOSS_H
#define COTENANT_GATE_LOSS_H

#include "gate/gate.h"

/* Called by a holder: work was announced; all work has completed after a call that waited for it. */
void ct_loss_announced(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns);
void ct_loss_drained(struct ct_gate *gate, uint64_t now_ns);

/* Called by lower-priority tenants: publish until when their work is expected to run; read the reported losses. */
void ct_loss_publish(struct ct_gate *gate, uint64_t now_ns);
void ct_loss_update(struct ct_gate *gate);
/* Returns the total loss that a tenant has reported; 0 while the page still belongs to the previous tenant of the
 * slot. */
uint64_t ct_loss_reported(const struct ct_gate_peer *peer);
/* Scales an estimated loss by the measured ratio. */
uint64_t ct_loss_scaled(const struct ct_gate *gate, uint64_t estimated_ns);

#endif
