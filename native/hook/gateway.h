/* The gate as this process has it: its pages, what it has submitted, how its launches go through it. */
#ifndef COTENANT_HOOK_GATEWAY_H
#define COTENANT_HOOK_GATEWAY_H

#include "gate/gate.h"
#include "hook/clock.h"
#include "hook/marks.h"
#include "hook/requests.h"
#include "hook/seen.h"

struct ct_piece;

/* All under the session's lock. */
struct ct_gateway {
    struct ct_gate gate;
    struct ct_instant instant;
    /* whether a wait for one stream is a wait for everything, and for the only thread that launches */
    uintptr_t thread;
    uint64_t several_ns; /* when a launch last came from another thread than the one before; 0: never */
    CUstream stream;
    int stream_is_twin, has_stream, has_streams;
    /* since the host came out of a call that waited */
    int has_rested;
    uint64_t rested_ticks;
    /* how much later than expected the work is over that the host waits for, as the host sees it */
    struct ct_forecast late;
    uint64_t awaited_ns; /* when it was expected to be, by the wait that is under way; 0: by then it was */
    struct ct_marks marks;
    uint64_t kin, kin_ns; /* launches of our tenant's other processes, and when that last changed as we saw it */
    struct ct_requests requests;
    const void *file;
    size_t bytes;
};

/* The pages of our tenant's device; NULL when the node gave none, or what it gave is nothing of the kind. */
struct ct_gateway *ct_gateway_open(const struct ct_beside *beside, const struct ct_clock *clock, const char *records);
void ct_gateway_close(struct ct_gateway *gateway);

static inline uint64_t ct_gateway_now(struct ct_session *session, uint64_t ticks)
{
    return ct_instant_ns(&session->gateway->instant, &session->clock, ticks);
}

/* The slow side of a launch below a holder: asks until it may pass, with the lock held on entry and not on return. */
void ct_gate_wait(struct ct_session *session, struct ct_piece *piece, uint64_t since_ns);

/* Around a call in which the host waits for the device: for all of it, for one stream, or for nobody knows what. */
enum ct_awaited { CT_AWAITED_ALL, CT_AWAITED_STREAM, CT_AWAITED_SOME };
uint64_t ct_rest_begin(void); /* its ticks, for the end of it */
void ct_rest_end(uint64_t began_ticks, enum ct_awaited awaited, CUstream stream, int is_twin, CUresult result);

/* What the others of the device have launched so far. */
struct ct_still {
    uint64_t launches;          /* of all others; 0: something of theirs may run */
    uint64_t kin;               /* of our tenant's other processes, plus one; 0: likewise */
    uint64_t from_ns, start_ns; /* when this was seen, and when our own work before is expected to be over */
};
struct ct_still ct_others_still(struct ct_session *session);
/* Whether our tenant's other processes, whose time slices are in our events too, did nothing meanwhile. */
int ct_kin_was_still(struct ct_session *session, const struct ct_still *still);
/* Whether none of them launched from then on until work of ours that took so long was over; `least_ns`: nor for so long,
 * whatever ours took. Where launches of one name differ, short ones would else be found undisturbed more often than long ones. */
int ct_others_were_still(struct ct_session *session, const struct ct_still *still, uint64_t length_ns, uint64_t least_ns);

#endif
