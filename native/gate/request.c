/* Counts a process's requests in its page. */
#include "gate/request.h"

#include "gate/internal.h"

enum {
    URGENT_DIVISOR = 4, /* a request is urgent after this part of its objective, */
    LOST_FACTOR = 50,   /* and is lost after this multiple of it */
};

void ct_gate_request_ended(struct ct_gate_page *page, uint64_t latency_ns, uint64_t slo_ns)
{
    struct ct_gate_requests *requests = &page->requests;
    fetch_add_relaxed(&requests->bucket[ct_gate_request_bucket(latency_ns)], 1);
    fetch_add_relaxed(&requests->sum_ns, latency_ns);
    if (slo_ns && latency_ns > slo_ns)
        fetch_add_relaxed(&requests->over, 1);
    fetch_add_release(&requests->ended, 1);
}

void ct_gate_request_oldest(struct ct_gate_page *page, uint64_t began_ns, uint64_t slo_ns)
{
    store_relaxed(&page->requests.began_ns, began_ns);
    store_relaxed(&page->requests.urgent_ns, began_ns && slo_ns ? sat_add_u64(began_ns, slo_ns / URGENT_DIVISOR) : 0);
}

int ct_gate_request_is_urgent(const struct ct_gate_page *page, uint64_t now_ns)
{
    const uint64_t urgent_ns = load_relaxed(&page->requests.urgent_ns), began_ns = load_relaxed(&page->requests.began_ns);
    const uint64_t slo_ns = min_u64(sat_sub_u64(urgent_ns, began_ns), CT_GATE_HORIZON_NS) * URGENT_DIVISOR;
    return urgent_ns && now_ns >= urgent_ns && now_ns - urgent_ns <= min_u64(LOST_FACTOR * slo_ns, CT_GATE_HORIZON_NS);
}

void ct_gate_request_set_reported(struct ct_gate_page *page)
{
    store_relaxed(&page->requests.is_reported, 1);
}

int ct_gate_request_is_reported(const struct ct_gate *gate)
{
    for (uint32_t i = 0; i < gate->peer_count && gate->sibling_count; i++)
        if (gate->peers[i].is_sibling && load_acquire(&gate->peers[i].page->generation) == gate->peers[i].generation &&
            load_relaxed(&gate->peers[i].page->requests.is_reported))
            return 1;
    return load_relaxed(&gate->mine->requests.is_reported) != 0;
}

void ct_gate_request_clear(struct ct_gate_page *page)
{
    _Atomic uint64_t *word = (_Atomic uint64_t *)&page->requests;
    for (size_t i = 0; i < sizeof page->requests / sizeof *word; i++)
        store_relaxed(&word[i], 0);
}
