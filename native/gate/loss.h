/* The actual loss of higher-priority tenants compared with the charged loss. */
#ifndef COTENANT_GATE_LOSS_H
#define COTENANT_GATE_LOSS_H

#include "arithmetic.h"
#include "gate/gate.h"

/* Called by a holder: work was announced; all work has completed after a call that waited for it. */
static inline void ct_loss_announced(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns)
{
    struct ct_gate_burst *burst = &gate->burst;
    if (__builtin_expect(!burst->begin_ns, 0)) {
        burst->begin_ns = now_ns;
        burst->has_unknown = 0;
    }
    burst->end_ns = sat_add_u64(max_u64(burst->end_ns, now_ns), expect_ns);
    if (__builtin_expect(!expect_ns, 0))
        burst->has_unknown = 1;
}
void ct_loss_drained(struct ct_gate *gate, uint64_t now_ns);

/* Called by lower-priority tenants: publish until when their work is expected to run; read the reported losses. */
static inline void ct_loss_publish(struct ct_gate *gate, uint64_t now_ns)
{
    const uint64_t busy_ns = load_relaxed(&gate->mine->busy_ns),
        published_ns = load_relaxed(&gate->mine->admitted_until_ns);
    /* An instant beyond the horizon, from another boot, does not count. */
    if (published_ns < busy_ns || sat_sub_u64(published_ns, now_ns) > CT_GATE_HORIZON_NS)
        store_relaxed(&gate->mine->admitted_until_ns, busy_ns);
}
void ct_loss_update(struct ct_gate *gate);
/* Returns the total loss that a tenant has reported; 0 while the page still belongs to the previous tenant of the
 * slot. */
uint64_t ct_loss_reported(const struct ct_gate_peer *peer);
/* Scales an estimated loss by the measured ratio. */
uint64_t ct_loss_scaled(const struct ct_gate *gate, uint64_t estimated_ns);

#endif
