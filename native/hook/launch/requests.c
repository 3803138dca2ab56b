/* Requests of this process: reported by the program through the exported functions, or else detected by the hook. */
#include "hook/launch/requests.h"

#include "gate/request.h"
#include "hook/launch/gateway.h"

static uintptr_t this_thread(void)
{
    return (uintptr_t)__builtin_thread_pointer();
}

/* Returns the tenant's latency objective from the grant page. */
static uint64_t slo_of(const struct ct_session *session)
{
    struct ct_grant grant;
    return ct_membership_grant(session->membership, &grant) ? grant.slo_ns : 0;
}

static uint64_t oldest_reported(const struct ct_requests *requests)
{
    uint64_t oldest_ns = 0;
    for (uint64_t i = 0; i < requests->end; i++)
        if (requests->began_ns[i] && (!oldest_ns || requests->began_ns[i] < oldest_ns))
            oldest_ns = requests->began_ns[i];
    return oldest_ns;
}

/* Publishes the oldest reported request or, if the program reports none, the oldest detected one. Called also after
 * another process of the tenant has begun to report: otherwise a detected request would never end. */
static void publish_oldest(struct ct_session *session)
{
    struct ct_gate *gate = &session->gateway->gate;
    const struct ct_requests *requests = &session->gateway->requests;
    const int is_reported = ct_gate_request_is_reported(gate);
    const uint64_t oldest_ns = is_reported ? oldest_reported(requests) : ct_bursts_oldest(&requests->bursts);
    ct_gate_request_oldest(gate->mine, oldest_ns, oldest_ns ? slo_of(session) : 0);
}

/* ---- detected requests -------------------------------------------------------------------------------------------- */

void ct_requests_resume(struct ct_session *session, uint32_t launch, uint64_t now_ns)
{
    struct ct_gateway *gateway = session->gateway;
    struct ct_bursts *bursts = &gateway->requests.bursts;
    struct ct_burst_ends ends;
    ct_burst_resume(bursts, launch, now_ns, &ends);
    for (uint32_t i = 0; i < ends.count && !ct_gate_request_is_reported(&gateway->gate); i++)
        ct_gate_request_ended(gateway->gate.mine, ends.latency_ns[i], slo_of(session));
    publish_oldest(session);
}

void ct_requests_waited(struct ct_session *session, uint64_t took_ns, uint64_t now_ns)
{
    struct ct_gateway *gateway = session->gateway;
    ct_burst_waited(&gateway->requests.bursts, this_thread(), took_ns, now_ns);
    publish_oldest(session);
}

void ct_requests_polled(CUresult result)
{
    struct ct_session *session = ct_session();
    struct ct_gateway *gateway = session ? session->gateway : NULL;
    if (!gateway || (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY))
        return;
    ct_lock(session);
    const uint64_t now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
    ct_burst_polled(&gateway->requests.bursts, this_thread(), result == CUDA_SUCCESS, now_ns);
    publish_oldest(session);
    ct_unlock(session);
}

/* ---- reported requests -------------------------------------------------------------------------------------------- */

/* Returns the session if it has a gate, or NULL. */
static struct ct_session *gated_session(void)
{
    struct ct_session *session = ct_session();
    return session && session->gateway ? session : NULL;
}

/* Limits an arrival to the present; an instant of another clock would look like a request of several hours. */
static uint64_t clamp_arrival(uint64_t arrived_ns, uint64_t now_ns)
{
    return arrived_ns && arrived_ns < now_ns ? arrived_ns : now_ns;
}

uint64_t cotenant_hook_request_begin(uint64_t arrived_ns, uint64_t *began_ns)
{
    struct ct_session *session = gated_session();
    uint64_t index = CT_REQUESTS_MAX;
    const uint64_t now_ns = ct_clock_monotonic_ns();
    *began_ns = clamp_arrival(arrived_ns, now_ns);
    if (!session)
        return index;
    struct ct_requests *requests = &session->gateway->requests;
    ct_lock(session);
    ct_gate_request_set_reported(session->gateway->gate.mine);
    for (index = 0; index < requests->end && requests->began_ns[index]; index++)
        ;
    if (index < CT_REQUESTS_MAX) {
        requests->began_ns[index] = *began_ns;
        requests->end += index == requests->end;
    }
    publish_oldest(session);
    ct_unlock(session);
    return index;
}

void cotenant_hook_request_end(uint64_t index, uint64_t began_ns)
{
    struct ct_session *session = gated_session();
    const uint64_t now_ns = ct_clock_monotonic_ns();
    if (!session)
        return;
    struct ct_requests *requests = &session->gateway->requests;
    ct_lock(session);
    if (index < CT_REQUESTS_MAX && requests->began_ns[index] == began_ns) /* a child may end what its parent began */
        requests->began_ns[index] = 0;
    while (requests->end && !requests->began_ns[requests->end - 1])
        requests->end--;
    ct_gate_request_set_reported(session->gateway->gate.mine);
    ct_gate_request_ended(session->gateway->gate.mine, now_ns > began_ns ? now_ns - began_ns : 0, slo_of(session));
    publish_oldest(session);
    ct_unlock(session);
}

void cotenant_hook_request_took(uint64_t latency_ns)
{
    struct ct_session *session = gated_session();
    if (!session)
        return;
    ct_lock(session);
    ct_gate_request_set_reported(session->gateway->gate.mine);
    ct_gate_request_ended(session->gateway->gate.mine, latency_ns, slo_of(session));
    publish_oldest(session);
    ct_unlock(session);
}
