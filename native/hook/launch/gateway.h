/* The gate of this process: its mapped pages, its submitted work, and the state needed to pass launches through it. */
#ifndef COTENANT_HOOK_LAUNCH_GATEWAY_H
#define COTENANT_HOOK_LAUNCH_GATEWAY_H

#include "gate/gate.h"
#include "gate/quiescence.h"
#include "hook/timing/clock.h"
#include "hook/launch/completion_events.h"
#include "hook/launch/requests.h"
#include "hook/entry/session.h"

struct ct_launch;

enum { CT_SEVERAL_THREADS_NS = 1000 * 1000 * 1000 }; /* for so long after a change the process has several launching
                                                        * threads */

/* Accessed with the session's lock held. */
struct ct_gateway {
    /* The gate and the process's gate page both begin at a page boundary. A processor takes a load from one for a load of
     * what was just stored at the same offset of the other, and delays it, which costs 5 ns per launch. */
    char offset_in_page[2048];
    struct ct_gate gate;
    struct ct_instant instant;
    /* to decide whether a wait for one stream is a wait for all work, and whether only one thread launches */
    uintptr_t thread;
    uint64_t thread_changed_ns; /* when the launching thread last changed; 0: never */
    uint64_t stream; /* that of all launches since the last wait for all work, by ct_stream_word(); CT_NO_WORD: none yet */
    int has_several_streams;
    uint64_t drained_ns; /* when the host last returned from a call that waited for all work */
    /* The thread that launches a kernel in parts; 0: none does. The parts are one launch for the program, so other threads'
     * launches wait meanwhile. */
    uintptr_t parts_thread;
    /* since the host returned from a call that waited */
    int has_synced;
    uint64_t synced_ticks;
    /* by how much completion, as the host sees it, is later than predicted */
    struct ct_forecast late;
    uint64_t awaited_ns; /* predicted completion of the work that the host waits for; 0: it was already due */
    struct ct_completions completions;
    struct ct_requests requests;
    _Atomic uint32_t is_leased; /* a launch under a lease is not yet submitted to the driver; cleared without the lock */
    uint32_t admitted_count; /* launches that were admitted and are not submitted to the driver yet */
    _Atomic uint32_t parts_ended; /* a futex: how many kernels were launched in parts */
    uint32_t sm_step_ppm; /* launches of a kernel can be limited to multiples of this part of the SMs; 0: they cannot */
};

/* Returns NULL if the process is unmanaged (NULL), or the node has no device for it. */
struct ct_gateway *ct_gateway_open(const struct ct_membership *membership, const struct ct_clock *clock);
void ct_gateway_close(struct ct_gateway *gateway);
/* Uses the pages that the node passed when the process was attached again. Called with the lock held. */
void ct_gateway_reattached(struct ct_session *session);

static inline uint64_t ct_gateway_now(struct ct_session *session, uint64_t ticks)
{
    return ct_instant_ns(&session->gateway->instant, &session->clock, ticks);
}

/* Returns a word that distinguishes streams, as a launch names them. */
#define CT_NO_WORD UINT64_MAX
static inline uint64_t ct_stream_word(CUstream stream, int is_per_thread)
{
    return (uint64_t)(uintptr_t)stream << 1 | (uint64_t)is_per_thread;
}

/* Returns whether only this thread launches. With several launching threads a wait of one predicts nothing, because
 * another may launch at any instant. */
static inline int ct_gateway_is_sole_thread(const struct ct_gateway *gateway, uint64_t now_ns)
{
    return gateway->thread == (uintptr_t)__builtin_thread_pointer() &&
           (!gateway->thread_changed_ns || now_ns - gateway->thread_changed_ns > CT_SEVERAL_THREADS_NS);
}

/* Called when all parts of a kernel have been submitted: other threads may launch again. */
void ct_gate_end_parts(struct ct_session *session);
/* Asks until the launch may pass. Called with the lock held, which is released on return. */
/* Limits a launch that need not ask, if the gate is open and the operator states a part of the SMs. */
void ct_gate_limit_open(struct ct_session *session, struct ct_launch *launch);
void ct_gate_wait(struct ct_session *session, struct ct_launch *launch, uint64_t since_ns);

/* Called around a call in which the host waits for the device: for all work, for one stream, or for an unknown part. */
enum ct_awaited { CT_AWAITED_ALL, CT_AWAITED_STREAM, CT_AWAITED_SOME };
uint64_t ct_sync_begin(void); /* returns its ticks, which ct_sync_end() needs */
void ct_sync_end(uint64_t began_ticks, enum ct_awaited awaited, CUstream stream, int is_per_thread, CUresult result);

struct ct_quiescence ct_others_quiescent(struct ct_session *session);
/* Returns whether the tenant's other processes, whose time slices also extend our measurements, launched nothing
 * since. */
int ct_siblings_were_quiescent(struct ct_session *session, const struct ct_quiescence *quiescence);
/* Returns whether no other tenant launched from then until our work of this length ended, and at least for `min_ns`: if
 * launches of one kernel vary, short ones would otherwise be found undisturbed more often than long ones. */
int ct_others_were_quiescent(struct ct_session *session, const struct ct_quiescence *quiescence, uint64_t length_ns,
                             uint64_t min_ns);

#endif
