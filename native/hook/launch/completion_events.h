/* Events that show the completion of admitted launches, so that the gate does not rely on predictions alone. */
#ifndef COTENANT_HOOK_LAUNCH_COMPLETION_EVENTS_H
#define COTENANT_HOOK_LAUNCH_COMPLETION_EVENTS_H

#include "atomics.h"
#include "gate/gate.h"
#include "hook/entry/driver.h"

#include <stdint.h>

struct ct_session;

enum { CT_COMPLETIONS = 64, CT_TRACKED_STREAMS = 8 };

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
