/* Whether other processes were quiescent during a measurement, so that it shows the time of a kernel alone. */
#ifndef COTENANT_GATE_QUIESCENCE_H
#define COTENANT_GATE_QUIESCENCE_H

#include "gate/gate.h"

/* What the other processes on the device have launched so far. */
struct ct_quiescence {
    uint64_t launches;          /* by other tenants; 0: some of their work may be running */
    uint64_t siblings;          /* by the tenant's other processes; 0: likewise */
    uint64_t from_ns, start_ns; /* when this was read, and when our own earlier work is expected to end */
};

/* Returns the state before a measurement, which begins when the process's earlier work is over. */
struct ct_quiescence ct_quiescence_of(const struct ct_gate *gate, uint64_t now_ns);
/* Return after a measurement whether the other processes of the tenant, and those of other tenants, remained quiescent
 * until it was over. `min_ns`: how long it might have taken at least. */
int ct_quiescence_of_siblings_lasted(const struct ct_gate *gate, const struct ct_quiescence *quiescence);
int ct_quiescence_lasted(const struct ct_gate *gate, const struct ct_quiescence *quiescence, uint64_t length_ns,
                         uint64_t min_ns, uint64_t now_ns);

#endif
