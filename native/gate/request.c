/* The requests of a tenant, as its page counts them. */
#include "gate/request.h"

#include "gate/words.h"

#define COUNT(place, more) atomic_fetch_add_explicit(&(place), (more), memory_order_relaxed)

void ct_gate_request_ended(struct ct_gate_page *page, uint64_t latency_ns, uint64_t slo_ns)
{
    struct ct_gate_requests *requests = &page->requests;
    COUNT(requests->bucket[ct_gate_request_bucket(latency_ns)], 1);
    COUNT(requests->sum_ns, latency_ns);
    if (slo_ns && latency_ns > slo_ns)
        COUNT(requests->over, 1);
    atomic_fetch_add_explicit(&requests->ended, 1, memory_order_release);
}

/* No gate's instant is further away: it was left behind. */
static int is_left_behind(uint64_t began_ns, uint64_t now_ns)
{
    return left(now_ns, began_ns) > CT_GATE_FAR_NS || left(began_ns, now_ns) > CT_GATE_FAR_NS;
}

void ct_gate_request_oldest(struct ct_gate_page *page, uint64_t was_ns, uint64_t began_ns, uint64_t now_ns)
{
    _Atomic uint64_t *oldest_ns = &page->requests.began_ns;
    uint64_t found_ns = LOAD(*oldest_ns);
    do {
        const int is_mine = found_ns == was_ns || is_left_behind(found_ns, now_ns);
        if (found_ns && !is_mine && (!began_ns || found_ns <= began_ns))
            return; /* an older one of another process */
        if (found_ns == began_ns)
            return;
    } while (!atomic_compare_exchange_weak_explicit(oldest_ns, &found_ns, began_ns, memory_order_relaxed, memory_order_relaxed));
}

void ct_gate_request_told(struct ct_gate_page *page)
{
    STORE(page->requests.is_told, 1);
}

int ct_gate_request_is_told(const struct ct_gate_page *page)
{
    return LOAD(page->requests.is_told) != 0;
}

void ct_gate_request_clear(struct ct_gate_page *page)
{
    _Atomic uint64_t *word = (_Atomic uint64_t *)&page->requests;
    for (size_t i = 0; i < sizeof page->requests / sizeof *word; i++)
        STORE(word[i], 0);
}
