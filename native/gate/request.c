/* Counts a process's requests in its page. */
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

void ct_gate_request_oldest(struct ct_gate_page *page, uint64_t began_ns)
{
    store_relaxed(&page->requests.began_ns, began_ns);
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
