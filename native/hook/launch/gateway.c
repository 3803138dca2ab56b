/* Opens the gate on the pages of this process's membership, and reads from them whether other processes are
 * quiescent. */
#define _GNU_SOURCE
#include "hook/launch/gateway.h"

#include <sys/mman.h>

enum { MARGIN_NS = 20 * 1000, QUIET_NS = 10 * 1000 * 1000 };

struct ct_gateway *ct_gateway_open(const struct ct_membership *membership, const struct ct_clock *clock)
{
    if (!membership || !membership->table)
        return NULL;
    struct ct_gateway *gateway =
        mmap(NULL, sizeof *gateway, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (gateway == MAP_FAILED)
        return NULL;
    madvise(gateway, sizeof *gateway, MADV_DONTFORK);
    ct_instant_open(&gateway->instant, clock);
    ct_bursts_open(&gateway->requests.bursts);
    ct_gate_open(&gateway->gate, membership->table, membership->region, &membership->pages->gate,
                 membership->arbitration, load_relaxed(&membership->index),
                 load_relaxed(&membership->process_generation));
    return gateway;
}

void ct_gateway_close(struct ct_gateway *gateway)
{
    if (gateway)
        munmap(gateway, sizeof *gateway);
}

void ct_gateway_reattached(struct ct_session *session)
{
    struct ct_gate *gate = &session->gateway->gate;
    gate->index = load_relaxed(&session->membership->index);
    gate->generation = load_relaxed(&session->membership->process_generation);
    ct_gate_reread(gate);
}

/* ---- other processes ---------------------------------------------------------------------------------------------- */

/* Returns whether the tenant's host still waits for its work. Tenants of equal priority delay each other, so their work
 * ends later than they predicted. */
static int is_awaited(const struct ct_gate *gate, const struct ct_gate_peer *peer, uint64_t now_ns)
{
    const uint64_t waits_ns = load_acquire(&peer->page->waits_ns), busy_ns = load_acquire(&peer->page->busy_ns);
    const uint64_t from_ns = waits_ns > busy_ns ? waits_ns : busy_ns;
    return waits_ns && peer->priority == gate->priority && from_ns + CT_GATE_STUCK_NS > now_ns;
}

/* Returns whether some of the process's work may be running, or has been running until shortly before. */
static int may_be_busy(const struct ct_gate *gate, const struct ct_gate_peer *peer, uint64_t now_ns)
{
    const uint64_t quiet_ns = gate->must_share || peer->is_sibling ? QUIET_NS : 0;
    return load_acquire(&peer->page->busy_ns) + quiet_ns > now_ns || is_awaited(gate, peer, now_ns);
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

struct ct_quiescence ct_others_quiescent(struct ct_session *session)
{
    struct ct_gateway *gateway = session->gateway;
    ct_lock(session);
    uint64_t now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
    uint64_t busy_ns = load_acquire(&gateway->gate.mine->busy_ns);
    const uint64_t others = gateway->gate.has_entry ? launches_of(&gateway->gate, 0, now_ns, 1) : 0;
    const uint64_t siblings = launches_of(&gateway->gate, 1, now_ns, 1);
    ct_unlock(session);
    return (struct ct_quiescence){others, siblings, now_ns, busy_ns > now_ns ? busy_ns : now_ns};
}

int ct_siblings_were_quiescent(struct ct_session *session, const struct ct_quiescence *quiescence)
{
    struct ct_gate *gate = &session->gateway->gate;
    ct_lock(session);
    const uint64_t siblings = launches_of(gate, 1, 0, 0);
    ct_unlock(session);
    return quiescence->siblings && quiescence->siblings == siblings;
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

int ct_others_were_quiescent(struct ct_session *session, const struct ct_quiescence *quiescence, uint64_t length_ns,
                             uint64_t min_ns)
{
    struct ct_gate *gate = &session->gateway->gate;
    ct_lock(session);
    const uint64_t now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
    const uint64_t ours_ns = length_ns > min_ns ? length_ns : min_ns;
    uint64_t sum = launches_of(gate, 0, 0, 0);
    int were_quiescent = quiescence->launches && sum == quiescence->launches &&
        (!min_ns || now_ns > quiescence->start_ns + min_ns);
    if (quiescence->launches && sum > quiescence->launches) {
        uint64_t first_ns = first_launch_after(gate, sum - quiescence->launches, quiescence->from_ns);
        were_quiescent = first_ns != CT_GATE_NEVER && first_ns > quiescence->start_ns + ours_ns + ours_ns / 4 +
            MARGIN_NS;
    }
    ct_unlock(session);
    return were_quiescent;
}
