/* Whether other processes were quiescent during a measurement. */
#include "gate/quiescence.h"

#include "gate/internal.h"

enum { MARGIN_NS = 20 * 1000, QUIET_NS = 10 * 1000 * 1000 };

/* Returns whether the tenant's host still waits for its work, or work of doubtful length was not seen to complete: tenants
 * delay each other, so their work ends later than they predicted. */
static int is_awaited(const struct ct_gate_peer *peer, uint64_t now_ns)
{
    const uint64_t waits_ns = load_acquire(&peer->page->waits_ns), busy_ns = load_acquire(&peer->page->busy_ns);
    const uint64_t from_ns = waits_ns > busy_ns ? waits_ns : busy_ns;
    return (waits_ns && sat_add_u64(from_ns, CT_GATE_STUCK_NS) > now_ns) ||
           plausible(load_acquire(&peer->page->unfinished_ns), now_ns) > now_ns;
}

/* Returns whether some of the process's work may be running, or has been running until shortly before. */
static int may_be_busy(const struct ct_gate *gate, const struct ct_gate_peer *peer, uint64_t now_ns)
{
    const uint64_t quiet_ns = gate->must_share || peer->is_sibling ? QUIET_NS : 0;
    return load_acquire(&peer->page->busy_ns) + quiet_ns > now_ns || is_awaited(peer, now_ns);
}

/* Returns the number of launches of the tenant's other processes, or of all other tenants, plus one; 0 if some of their
 * work may be running, or if one does not show its page: it may not have mapped it yet, or use the device without the
 * hook. */
static uint64_t launches_of(const struct ct_gate *gate, int are_siblings, uint64_t now_ns, int must_be_idle)
{
    uint64_t sum = 1 + (gate->writes << 48); /* changes also when a process joins or leaves */
    for (uint32_t i = 0; i < gate->higher_count + gate->peer_count; i++) {
        const struct ct_gate_peer *peer =
            i < gate->higher_count ? &gate->higher[i] : &gate->peers[i - gate->higher_count];
        if (!peer->is_sibling != !are_siblings)
            continue;
        sum += load_acquire(&peer->page->sequence);
        if (load_acquire(&peer->page->generation) != peer->generation ||
            (must_be_idle && may_be_busy(gate, peer, now_ns)))
            return 0;
    }
    return sum;
}

struct ct_quiescence ct_quiescence_of(const struct ct_gate *gate, uint64_t now_ns)
{
    const uint64_t busy_ns = load_acquire(&gate->mine->busy_ns);
    return (struct ct_quiescence){gate->has_entry ? launches_of(gate, 0, now_ns, 1) : 0, launches_of(gate, 1, now_ns, 1),
                                  now_ns, max_u64(busy_ns, now_ns)};
}

int ct_quiescence_of_siblings_lasted(const struct ct_gate *gate, const struct ct_quiescence *quiescence)
{
    return quiescence->siblings && quiescence->siblings == launches_of(gate, 1, 0, 0);
}

/* Returns the first launch of another tenant after an instant, or 0 if it is no longer recorded. */
static uint64_t first_launch_after(const struct ct_gate *gate, uint64_t launches, uint64_t after_ns)
{
    uint64_t first_ns = CT_GATE_NEVER;
    if (launches > CT_GATE_RECENT - 2)
        return 0;
    for (uint32_t i = 0; i < gate->higher_count + gate->peer_count; i++) {
        const struct ct_gate_peer *peer =
            i < gate->higher_count ? &gate->higher[i] : &gate->peers[i - gate->higher_count];
        const struct ct_gate_page *page = peer->page;
        if (peer->is_sibling)
            continue;
        uint64_t sequence = load_acquire(&page->sequence);
        for (uint64_t back = 0; back < launches && back < sequence; back++) {
            uint64_t at_ns = load_acquire(&page->recent_ns[(sequence - back) % CT_GATE_RECENT]);
            if (at_ns > after_ns && at_ns < first_ns)
                first_ns = at_ns;
        }
    }
    return first_ns;
}

int ct_quiescence_lasted(const struct ct_gate *gate, const struct ct_quiescence *quiescence, uint64_t length_ns,
                         uint64_t min_ns, uint64_t now_ns)
{
    const uint64_t ours_ns = max_u64(length_ns, min_ns), sum = launches_of(gate, 0, 0, 0);
    if (quiescence->launches && sum > quiescence->launches) {
        const uint64_t first_ns = first_launch_after(gate, sum - quiescence->launches, quiescence->from_ns);
        return first_ns != CT_GATE_NEVER && first_ns > quiescence->start_ns + ours_ns + ours_ns / 4 + MARGIN_NS;
    }
    return quiescence->launches && sum == quiescence->launches && (!min_ns || now_ns > quiescence->start_ns + min_ns);
}
