/* Events that show the completion of admitted launches, so that the gate does not rely on predictions alone. */
#ifndef COTENANT_HOOK_LAUNCH_COMPLETION_EVENTS_H
#define COTENANT_HOOK_LAUNCH_COMPLETION_EVENTS_H

#include "atomics.h"
#include "gate/gate.h"
#include "hook/entry/driver.h"

#include <stdint.h>

struct ct_session;

enum { CT_COMPLETIONS = 64, CT_TRACKED_STREAMS = 8 };
/* A kernel of CT_COMPLETION_LONG_NS or more gets its own event; at most CT_COMPLETION_SHARED_MAX short ones share one. Less
 * than an eighth of the bound that was launched into a stream no longer in use is assumed to have ended after
 * CT_COMPLETION_EXPIRY_NS. */
enum {
    CT_COMPLETION_LONG_NS = 50 * 1000,
    CT_COMPLETION_SHARED_MAX = 64,
    CT_COMPLETION_BOUND_DIVISOR = 8,
    CT_COMPLETION_EXPIRY_NS = 20 * 1000 * 1000,
};

enum ct_completion_state { CT_COMPLETION_EMPTY = 0, CT_COMPLETION_SPARE = 1, CT_COMPLETION_TAKEN = 2,
                          CT_COMPLETION_WAITING = 3, CT_COMPLETION_DONE = 4 };

/* Launches whose completion one event shows. */
struct ct_batch {
    uint64_t expect_ns;
    uint32_t launches, unknown; /* launches of known and of unknown length */
};

struct ct_completion {
    CUevent event;
    CUcontext context;
    struct ct_batch batch;
    uint32_t state;
    int stream_state;
};

/* Launches into one stream: an event in it shows the completion of all of them. */
struct ct_stream_state {
    CUstream stream;
    int is_per_thread, is_used;
    uintptr_t thread; /* of a per-thread default stream; otherwise 0 */
    uint64_t used_ns;
    struct ct_batch open; /* launches after the last event */
};

/* Accessed with the session's lock held, except by the collecting thread. */
struct ct_completions {
    _Atomic int is_collecting;
    unsigned generation;   /* incremented when all events are dropped */
    uint32_t outstanding;  /* launches that the gate expects to be confirmed */
    uint32_t first, count; /* of the queue */
    uint8_t queue[CT_COMPLETIONS];
    int last_stream_index;
    uint64_t switched_ns;  /* when launches last changed to another stream */
    uint64_t collected_ns; /* when events were last collected */
    uint64_t ended_ns;     /* the last completion, or the first submission after it */
    struct ct_completion slots[CT_COMPLETIONS];
    struct ct_stream_state streams[CT_TRACKED_STREAMS];
};

/* Called after an admitted launch: counts it, and records an event if one is due. */
void ct_completions_note(struct ct_session *session, const struct ct_launch_request *request, CUstream stream,
                         int is_per_thread,
                   int may_record_event);

/* The same for a launch under a lease, before it is submitted. Called with the lock held. Returns whether no event is due
 * after it; then it is counted by ct_completions_add(). */
static inline int ct_completions_may_add(const struct ct_completions *completions, const struct ct_gate *gate,
                                         uint64_t expect_ns, CUstream stream, int is_per_thread, uint64_t now_ns)
{
    const struct ct_stream_state *latest = &completions->streams[completions->last_stream_index];
    const uintptr_t thread = is_per_thread && !stream ? (uintptr_t)__builtin_thread_pointer() : 0;
    return latest->is_used && latest->stream == stream && latest->is_per_thread == is_per_thread &&
           latest->thread == thread && completions->outstanding && gate->unconfirmed && !latest->open.unknown &&
           expect_ns < CT_COMPLETION_LONG_NS &&
           latest->open.expect_ns + expect_ns < gate->bound_ns / CT_COMPLETION_BOUND_DIVISOR &&
           latest->open.launches + 1 < CT_COMPLETION_SHARED_MAX &&
           gate->unconfirmed_ns + 2 * expect_ns <= gate->bound_ns &&
           now_ns - completions->switched_ns >= CT_COMPLETION_EXPIRY_NS;
}

static inline void ct_completions_add(struct ct_completions *completions, uint64_t expect_ns, uint64_t now_ns)
{
    struct ct_stream_state *latest = &completions->streams[completions->last_stream_index];
    latest->used_ns = now_ns;
    latest->open.expect_ns += expect_ns;
    latest->open.launches++;
    completions->outstanding++;
}

/* Takes back a launch that was counted so; returns 0 if an event was recorded after it meanwhile. */
int ct_completions_take_back(struct ct_session *session, const struct ct_launch_request *request);

/* Called after a launch of unknown or doubtful length that need not ask: records an event, so that its completion can be
 * seen although the program does not wait for it. */
void ct_completions_watch(struct ct_session *session, CUstream stream, int is_per_thread);

/* Records an event after what was launched into this stream; called before a wait. */
void ct_completions_close(struct ct_session *session, CUstream stream, int is_per_thread);

/* Confirms completed launches to the gate. Does not block, and does nothing while another thread collects. */
void ct_completions_collect(struct ct_session *session);

/* Confirms everything, because the program waited for all work. Called with the lock held. */
void ct_completions_all_ended(struct ct_session *session, uint64_t now_ns);

/* Destroys all events before contexts are destroyed. */
void ct_completions_drop(struct ct_session *session);

#endif
