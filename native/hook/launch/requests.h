/* The requests of this process and their latencies, as reported by the program or detected by the hook. */
#ifndef COTENANT_HOOK_LAUNCH_REQUESTS_H
#define COTENANT_HOOK_LAUNCH_REQUESTS_H

#include "hook/launch/bursts.h"
#include "hook/entry/session.h"

enum { CT_REQUESTS_MAX = 256 }; /* reported requests in progress; of further ones only the end is recorded */

/* Accessed with the session's lock held. */
struct ct_requests {
    struct ct_bursts bursts;
    uint64_t end; /* all entries from this index on are free */
    uint64_t began_ns[CT_REQUESTS_MAX];
};

/* Called for the first launch of a thread, and for its first launch after a wait: requests may have ended. */
void ct_requests_resume(struct ct_session *session, uint32_t launch, uint64_t now_ns);

/* Called when the host returns from a call that waited, and when it has polled the device. */
void ct_requests_waited(struct ct_session *session, uint64_t took_ns, uint64_t now_ns);
void ct_requests_polled(CUresult result);

/* Called by the program, through include/cotenant/request.h and the Python package. Instants are those of
 * CLOCK_MONOTONIC. */
CT_EXPORT uint64_t cotenant_hook_request_begin(uint64_t arrived_ns, uint64_t *began_ns);
CT_EXPORT void cotenant_hook_request_end(uint64_t index, uint64_t began_ns);
CT_EXPORT void cotenant_hook_request_took(uint64_t latency_ns);

#endif
