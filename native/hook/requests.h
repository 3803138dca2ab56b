/* What were this process's requests, and how long did they take? As the program tells them, or as they look. */
#ifndef COTENANT_HOOK_REQUESTS_H
#define COTENANT_HOOK_REQUESTS_H

#include "hook/bursts.h"
#include "hook/seen.h"

enum { CT_REQUESTS_ROOM = 256 }; /* requests that are told and under way; of further ones only the end is noted */

/* All under the session's lock. */
struct ct_requests {
    struct ct_bursts bursts;
    uint64_t oldest_ns; /* as we told the page; it may have an older one of another process */
    uint64_t top; /* all places from here on are free: a look at those under way takes no longer than there are many */
    uint64_t began_ns[CT_REQUESTS_ROOM];
};

/* The first launch of a thread, or its first after a wait: what was under way may be over by it. */
void ct_requests_resume(struct ct_session *session, uint32_t launch, uint64_t now_ns);

/* The host comes out of a call that waited; or has asked whether the device is done. */
void ct_requests_waited(struct ct_session *session, uint64_t took_ns, uint64_t now_ns);
void ct_requests_polled(CUresult result);

/* Told by the program: what include/cotenant/request.h and the Python package look for. Instants are those of CLOCK_MONOTONIC. */
CT_EXPORT uint64_t cotenant_hook_request_begin(uint64_t arrived_ns, uint64_t *began_ns);
CT_EXPORT void cotenant_hook_request_end(uint64_t place, uint64_t began_ns);
CT_EXPORT void cotenant_hook_request_took(uint64_t latency_ns);

#endif
