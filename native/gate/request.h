/* How long did a tenant's requests take? Running sums in its page, that whoever reads them takes the differences of.
 *
 * More than one thread and process of a tenant may write at once: every word is added to in one. A reader sees each word
 * by itself; between two looks it may find an ended request in one word and not yet in the other. */
#ifndef COTENANT_GATE_REQUEST_H
#define COTENANT_GATE_REQUEST_H

#include "gate/pages.h"

/* Sixteen buckets for each power of two: [0] also holds what is shorter than 2^14 ns, the last what is longer than 2^36. */
static inline uint32_t ct_gate_request_bucket(uint64_t latency_ns)
{
    if (latency_ns < UINT64_C(1) << CT_GATE_REQUEST_LEAST)
        return 0;
    const uint32_t power = 63 - (uint32_t)__builtin_clzll(latency_ns);
    const uint32_t bucket = (power - CT_GATE_REQUEST_LEAST) * 16 + (uint32_t)((latency_ns >> (power - 4)) & 15);
    return bucket < CT_GATE_REQUEST_BUCKETS ? bucket : CT_GATE_REQUEST_BUCKETS - 1;
}

/* One is over that took so long; `slo_ns` is what it should have taken at most, 0: nobody said. */
void ct_gate_request_ended(struct ct_gate_page *page, uint64_t latency_ns, uint64_t slo_ns);

/* The oldest request of this process that is under way began then, and before this `was_ns` (0: there is none). The page
 * has the oldest of all processes of the tenant; what one of them left there that died is replaced once it is as old as no
 * instant of a gate is. */
void ct_gate_request_oldest(struct ct_gate_page *page, uint64_t was_ns, uint64_t began_ns, uint64_t now_ns);

/* Whoever knows its requests says so, by telling the first of them: from then on what is merely seen does not count. */
void ct_gate_request_told(struct ct_gate_page *page);
int ct_gate_request_is_told(const struct ct_gate_page *page);

/* Nothing has been requested yet; for the first process of a tenant. */
void ct_gate_request_clear(struct ct_gate_page *page);

#endif
