/* Opens the gate on the pages of this process's membership, and reads from them whether other processes are
 * quiescent. */
#define _GNU_SOURCE
#include "hook/launch/gateway.h"

#include <sys/mman.h>

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
    gateway->stream = CT_NO_WORD;
    ct_gate_open(&gateway->gate, membership->table, membership->region, &membership->pages->gate,
                 membership->arbitration, load_relaxed(&membership->index),
                 load_relaxed(&membership->process_generation));
    ct_gang_join(&gateway->gate.gang, load_acquire(&membership->gang), load_relaxed(&membership->gang_ranks),
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
    ct_gang_join(&gate->gang, load_acquire(&session->membership->gang), load_relaxed(&session->membership->gang_ranks),
                 gate->generation);
    ct_gate_reread(gate);
}

/* ---- other processes ---------------------------------------------------------------------------------------------- */

struct ct_quiescence ct_others_quiescent(struct ct_session *session)
{
    struct ct_gate *gate = &session->gateway->gate;
    ct_lock(session);
    const struct ct_quiescence quiescence = ct_quiescence_of(gate, ct_gateway_now(session,
                                                                                  ct_clock_ticks(&session->clock)));
    ct_unlock(session);
    return quiescence;
}

int ct_siblings_were_quiescent(struct ct_session *session, const struct ct_quiescence *quiescence)
{
    ct_lock(session);
    const int were_quiescent = ct_quiescence_of_siblings_lasted(&session->gateway->gate, quiescence);
    ct_unlock(session);
    return were_quiescent;
}

int ct_others_were_quiescent(struct ct_session *session, const struct ct_quiescence *quiescence, uint64_t length_ns,
                             uint64_t min_ns)
{
    ct_lock(session);
    const uint64_t now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
    const int were_quiescent = ct_quiescence_lasted(&session->gateway->gate, quiescence, length_ns, min_ns, now_ns);
    ct_unlock(session);
    return were_quiescent;
}
