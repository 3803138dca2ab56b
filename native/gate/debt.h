/* The debt: device time that higher-priority tenants lost to lower-priority ones, and for how long it closes the
 * gate. */
#ifndef COTENANT_GATE_DEBT_H
#define COTENANT_GATE_DEBT_H

#include "gate/gate.h"

/* Returns how long it takes to earn an amount at a rate. */
uint64_t ct_gate_time_to_earn(uint64_t amount_ns, uint64_t ppm);
/* Returns the fraction of time that higher-priority tenants may lose: the permitted delay times their duty cycle. */
uint64_t ct_gate_spared_ppm(const struct ct_gate *gate);
/* Returns how much longer the debt lasts. */
uint64_t ct_gate_debt(const struct ct_gate *gate, uint64_t now_ns);
/* Adds a loss to the debt. */
void ct_gate_charge(struct ct_gate *gate, uint64_t lost_ns, uint64_t now_ns);
/* Returns when an expected loss fits the budget, for a kernel of this duration; CT_GATE_NEVER if it never does. A loss
 * that is small compared with the duration is paid from unused budget. A larger one must have been earned since the
 * launch first asked, and requires that there is no debt: the longer a kernel waits, the worse a gap it accepts, so
 * that it takes about the best gap that occurs. */
uint64_t ct_gate_spendable_at(const struct ct_gate *gate, uint64_t loss_ns, uint64_t work_ns, uint64_t since_ns,
                              uint64_t now_ns);
/* Returns until when no loss is spent next to active holders, because a debt keeps launches waiting while they are idle:
 * there the same loss buys more device time. */
uint64_t ct_gate_idle_first_until(const struct ct_gate *gate);
/* Spends an expected loss from the budget. */
void ct_gate_spend(struct ct_gate *gate, uint64_t loss_ns, uint64_t now_ns);
/* Charges what higher-priority tenants lost since the last call: from their first launch to the end of our work that
 * ran then. */
void ct_gate_settle(struct ct_gate *gate, uint64_t now_ns);
/* Returns the mean number of kernels in a launch of a tenant, in tenths, limited to 1 to UINT16_MAX kernels whatever
 * the page contains. */
uint64_t ct_gate_kernels_per_launch(const struct ct_gate_page *page);
/* Returns the expected loss to preemptible work: half a block for each arriving kernel. */
uint64_t ct_gate_preemption_loss(uint64_t kernel_count, uint64_t granularity_ns);
/* Returns when a higher-priority tenant first launched after our last admission; CT_GATE_NEVER if it has not. */
uint64_t ct_gate_returned_at(const struct ct_gate *gate, struct ct_gate_peer *peer);

#endif
