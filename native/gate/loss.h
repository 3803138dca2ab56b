/* The actual loss of higher-priority tenants compared with the charged loss. */
#ifndef COTENANT_GATE_LOSS_H
#define COTENANT_GATE_LOSS_H

#include "arithmetic.h"
#include "gate/gate.h"

/* Called by a holder: work was announced, and if `expect_ns` is 0 it then sets `has_unknown`; all work has completed after a
 * call that waited for it. */
static inline void ct_loss_announced(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns)
{
    struct ct_gate_burst *burst = &gate->burst;
    if (__builtin_expect(!burst->begin_ns, 0)) {
        burst->begin_ns = now_ns;
        burst->has_unknown = 0;
    }
    burst->end_ns = sat_add_u64(max_u64(burst->end_ns, now_ns), expect_ns);
}
void ct_loss_drained(struct ct_gate *gate, uint64_t now_ns);

/* Called by lower-priority tenants: publish that their work may run, until it is seen to have ended; read the reported
 * losses. Next to a holder the work takes longer than expected, so its expected end is no proof that it has ended. A
 * process that does not look for the end is believed for CT_GATE_STUCK_NS past the expected one. */
static inline void ct_loss_publish(struct ct_gate *gate, uint64_t now_ns)
{
    const uint64_t until_ns = min_u64(sat_add_u64(load_relaxed(&gate->mine->busy_ns), CT_GATE_STUCK_NS),
                                      sat_add_u64(now_ns, CT_GATE_HORIZON_NS)),
        published_ns = load_relaxed(&gate->mine->admitted_until_ns);
    /* An instant beyond the horizon, from another boot, does not count. */
    if (published_ns < until_ns || sat_sub_u64(published_ns, now_ns) > CT_GATE_HORIZON_NS)
        store_relaxed(&gate->mine->admitted_until_ns, until_ns);
}
static inline void ct_loss_ended(struct ct_gate *gate, uint64_t now_ns)
{
    if (load_relaxed(&gate->mine->admitted_until_ns) > now_ns)
        store_relaxed(&gate->mine->admitted_until_ns, now_ns);
}
void ct_loss_update(struct ct_gate *gate);
/* Returns the total loss that a tenant has reported; 0 while the page still belongs to the previous tenant of the
 * slot. */
uint64_t ct_loss_reported(const struct ct_gate_peer *peer);
/* Scales an estimated loss by the measured ratio. */
uint64_t ct_loss_scaled(const struct ct_gate *gate, uint64_t estimated_ns);

#endif
