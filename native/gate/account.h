/* The tenant's account: what all its processes have used of its share and of its minimum share.
 *
 * Each process publishes its own use as a total and keeps a replica of the account, to which it adds what its siblings
 * have used since it last looked. So every word has one writer, and no charge is lost. */
#ifndef COTENANT_GATE_ACCOUNT_H
#define COTENANT_GATE_ACCOUNT_H

#include "gate/gate.h"

/* Begins with the present totals of a process that was attached. */
void ct_account_begin(struct ct_gate_peer *peer);
/* Restores the replica from the process's own page, if the gate was opened again. */
void ct_account_restore(struct ct_gate *gate);
/* Collects what the siblings have used since the last call. */
void ct_account_gather(struct ct_gate *gate);
/* Collects it and adds it to the replica; called before each decision. */
void ct_account_update(struct ct_gate *gate, uint64_t now_ns);

/* Charge or refund an amount of the share. `from_ns` is the use up to now, as an instant. */
void ct_account_charge(struct ct_gate *gate, uint64_t from_ns, uint64_t use_ns, uint64_t now_ns);
void ct_account_refund(struct ct_gate *gate, uint64_t from_ns, uint64_t use_ns);
/* Converts the debt after the share has changed. */
void ct_account_rescale(struct ct_gate *gate, uint64_t now_ns);
/* Returns how long it takes until all that the tenant used is earned, as far as this process or a sibling knows. */
uint64_t ct_account_ahead(const struct ct_gate *gate, uint64_t now_ns);

/* Returns whether a sibling states that the tenant has used up its share. */
int ct_account_sibling_is_over(const struct ct_gate *gate, uint64_t now_ns);

/* Charge the minimum share, and return how long it takes until all that was used of it is earned. */
void ct_account_charge_min_share(struct ct_gate *gate, uint64_t use_ns, uint64_t now_ns);
uint64_t ct_account_min_share_ahead(const struct ct_gate *gate, uint64_t now_ns);

#endif
