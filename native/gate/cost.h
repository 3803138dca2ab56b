/* The expected cost of a kernel to higher-priority tenants, and the amount of such work that may be in flight. */
#ifndef COTENANT_GATE_COST_H
#define COTENANT_GATE_COST_H

#include "arithmetic.h"
#include "gate/gate.h"

enum { CT_COST_WHOLE_PPM = 1000 * 1000 };

/* The other tenants of the device as read at one instant. */
struct snapshot {
    int is_active;              /* a higher-priority tenant has work, or is expected to launch soon */
    uint64_t gap_begin_ns;      /* when their announced work is expected to be complete */
    uint64_t gap_end_ns;        /* the earliest instant at which one of them is expected to launch */
    uint64_t gap_end_latest_ns; /* the latest instant at which it is expected to launch */
    uint64_t next_gap_ns;       /* when that launch is expected to be complete, if it takes as long as the last one */
    uint64_t quiet_ns;          /* when all of them will be quiet */
    uint64_t kernels_per_s;     /* expected launch rate of their kernels */
    uint64_t submitted_ns;      /* expected device time of what this tenant and its peers have submitted */
    int is_urgent;              /* a request of one of them meets its objective only with the whole device */
    int is_clean_wanted;        /* one of them needs a wait next to which no lower-priority work runs */
    uint64_t sequence[CT_PROCESSES];
};

/* Returns the cost of a context switch if this launch would be the first since a higher-priority tenant launched. */
uint64_t ct_cost_switch(const struct ct_gate *gate);
/* Return the expected loss of higher-priority tenants if the kernel runs in a gap, and if it runs concurrently with
 * them, giving way block by block. */
uint64_t ct_cost_gap(const struct ct_gate *gate, const struct ct_launch_request *request,
                     const struct snapshot *snapshot,
                      uint64_t now_ns);
uint64_t ct_cost_corun(const struct ct_launch_request *request, const struct snapshot *snapshot, uint64_t now_ns);
/* Returns a fraction of an amount, at most the whole amount. */
uint64_t ct_cost_fraction(uint64_t amount_ns, uint64_t ppm);
/* Returns how long an arriving kernel of a holder waits for this one at most; 0: until it ends. Where the priorities of MPS
 * clients have no effect on a part of such kernels, this is the mean. */
static inline uint64_t ct_cost_granularity(const struct ct_gate *gate, const struct ct_launch_request *request)
{
    const uint64_t granularity_ns = request->granularity_ns, ignored_ppm = gate->ignored_priority_ppm;
    if (__builtin_expect(!ignored_ppm || !granularity_ns, 1))
        return granularity_ns;
    if (ignored_ppm >= CT_COST_WHOLE_PPM)
        return 0;
    return granularity_ns + ct_cost_fraction(sat_sub_u64(request->expect_ns, granularity_ns), ignored_ppm);
}
/* Returns how much device time may be in flight because holders have been idle for long: they are expected to remain so
 * for about as long again. */
uint64_t ct_cost_idle_depth(const struct ct_gate *gate, uint64_t now_ns);
/* Return how much device time may be in flight while no higher-priority tenant is active, and whether this launch would
 * exceed the bound that applies while one is active. */
uint64_t ct_cost_bound(const struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns);
int ct_cost_reaches_bound(const struct ct_gate *gate, const struct ct_launch_request *request,
                          const struct snapshot *snapshot,
                     uint64_t now_ns);

#endif
