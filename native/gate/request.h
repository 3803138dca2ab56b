/* Latencies of a tenant's requests: running totals in its page, from which readers compute differences.
 *
 * Several threads and processes of a tenant may write at once, so every word is updated by an atomic addition. A reader
 * sees each word separately: a request that has ended may be visible in one word and not yet in another. */
#ifndef COTENANT_GATE_REQUEST_H
#define COTENANT_GATE_REQUEST_H

#include "gate/pages.h"

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

/* Publishes when the oldest request in progress of this process began; `previous_ns` is what it published before (0:
 * none). The page has the oldest one of all processes of the tenant. An entry of a dead process is replaced once it is
 * older than the horizon. */
void ct_gate_request_oldest(struct ct_gate_page *page, uint64_t previous_ns, uint64_t began_ns, uint64_t now_ns);

/* A program that reports its requests sets this with the first one: from then on detected requests are not counted. */
void ct_gate_request_set_reported(struct ct_gate_page *page);
int ct_gate_request_is_reported(const struct ct_gate_page *page);

/* Resets the counters; called by the first process of a tenant. */
void ct_gate_request_clear(struct ct_gate_page *page);

#endif
