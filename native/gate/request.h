/* Latencies of a process's requests: running totals in its gate page, from which readers compute differences.
 *
 * Several threads may write at once, so every word is updated by an atomic addition. A reader sees each word separately:
 * a request that has ended may be visible in one word and not yet in another. */
#ifndef COTENANT_GATE_REQUEST_H
#define COTENANT_GATE_REQUEST_H

#include "gate/gate.h"

/* There are sixteen buckets for each power of two. The first also counts what is shorter than 2^14 ns, the last what is
 * longer than 2^36 ns. */
static inline uint32_t ct_gate_request_bucket(uint64_t latency_ns)
{
    if (latency_ns < UINT64_C(1) << CT_GATE_REQUEST_MIN_POWER)
        return 0;
    const uint32_t power = 63 - (uint32_t)__builtin_clzll(latency_ns);
    const uint32_t bucket = (power - CT_GATE_REQUEST_MIN_POWER) * 16 + (uint32_t)((latency_ns >> (power - 4)) & 15);
    return bucket < CT_GATE_REQUEST_BUCKETS ? bucket : CT_GATE_REQUEST_BUCKETS - 1;
}

/* Counts a request that took `latency_ns`; `slo_ns` is its objective, 0 if there is none. */
void ct_gate_request_ended(struct ct_gate_page *page, uint64_t latency_ns, uint64_t slo_ns);

/* Publishes when the oldest request in progress began, and from when on it is urgent; 0: none is in progress. */
void ct_gate_request_oldest(struct ct_gate_page *page, uint64_t began_ns, uint64_t slo_ns);

/* Returns whether the oldest request in progress is urgent: lower-priority work must not delay it any more, whatever the
 * delay budget is. One that has been urgent for so long that it cannot meet its objective any more is ignored, because its
 * end was never reported, or the objective is out of reach. */
int ct_gate_request_is_urgent(const struct ct_gate_page *page, uint64_t now_ns);

/* A program that reports its requests sets this with the first one: from then on detected requests are not counted. */
void ct_gate_request_set_reported(struct ct_gate_page *page);
/* Returns whether this process or another one of its tenant reports requests. */
int ct_gate_request_is_reported(const struct ct_gate *gate);

/* Resets the counters; called when the process gets another generation. */
void ct_gate_request_clear(struct ct_gate_page *page);

#endif
