/* Counts a tenant's requests in its page. */
#include "gate/request.h"

#include "gate/internal.h"

void ct_gate_request_ended(struct ct_gate_page *page, uint64_t latency_ns, uint64_t slo_ns)
{
    struct ct_gate_requests *requests = &page->requests;
    fetch_add_relaxed(&requests->bucket[ct_gate_request_bucket(latency_ns)], 1);
    fetch_add_relaxed(&requests->sum_ns, latency_ns);
    if (slo_ns && latency_ns > slo_ns)
        fetch_add_relaxed(&requests->over, 1);
    fetch_add_release(&requests->ended, 1);
}

/* Returns whether the instant is beyond the horizon: a dead process left it behind. */
static int is_stale(uint64_t began_ns, uint64_t now_ns)
{
    return sat_sub_u64(now_ns, began_ns) > CT_GATE_HORIZON_NS || sat_sub_u64(began_ns, now_ns) > CT_GATE_HORIZON_NS;
}

void ct_gate_request_oldest(struct ct_gate_page *page, uint64_t previous_ns, uint64_t began_ns, uint64_t now_ns)
{
    _Atomic uint64_t *oldest_ns = &page->requests.began_ns;
    uint64_t published_ns = load_relaxed(oldest_ns);
    do {
        const int is_ours = published_ns == previous_ns || is_stale(published_ns, now_ns);
        if (published_ns && !is_ours && (!began_ns || published_ns <= began_ns))
            return; /* another process has an older one */
        if (published_ns == began_ns)
            return;
    } while (!atomic_compare_exchange_weak_explicit(oldest_ns, &published_ns, began_ns, memory_order_relaxed,
                                                    memory_order_relaxed));
}

void ct_gate_request_set_reported(struct ct_gate_page *page)
{
    store_relaxed(&page->requests.is_reported, 1);
}

int ct_gate_request_is_reported(const struct ct_gate_page *page)
{
    return load_relaxed(&page->requests.is_reported) != 0;
}

void ct_gate_request_clear(struct ct_gate_page *page)
{
    _Atomic uint64_t *word = (_Atomic uint64_t *)&page->requests;
    for (size_t i = 0; i < sizeof page->requests / sizeof *word; i++)
        store_relaxed(&word[i], 0);
}
