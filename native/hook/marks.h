/* What of the submitted work has ended? Events behind launches that passed below a holder; never by prediction alone. */
#ifndef COTENANT_HOOK_MARKS_H
#define COTENANT_HOOK_MARKS_H

#include "gate/gate.h"
#include "hook/driver.h"

#include <stdatomic.h>
#include <stdint.h>

struct ct_session;

enum { CT_MARKS = 64, CT_LANES = 8 };

enum ct_mark_state { CT_MARK_EMPTY = 0, CT_MARK_SPARE = 1, CT_MARK_TAKEN = 2, CT_MARK_WAITING = 3, CT_MARK_DONE = 4 };

/* Launches that end together, as far as anybody can see. */
struct ct_batch {
    uint64_t expect_ns;
    uint32_t launches, unknown; /* those that add to it, and those of which nobody knows how long they take */
};

struct ct_mark {
    CUevent event;
    CUcontext context;
    struct ct_batch batch;
    uint32_t state;
    int lane;
};

/* Launches into one stream: an event in it shows the end of all before it. */
struct ct_lane {
    CUstream stream;
    int is_twin, is_used;
    uintptr_t thread; /* of a per-thread default stream; else 0 */
    uint64_t used_ns;
    struct ct_batch open; /* behind which no event is yet */
};

/* All under the session's lock, but for the one who harvests. */
struct ct_marks {
    _Atomic int is_harvesting;
    unsigned generation;  /* counts the drops */
    uint32_t outstanding; /* launches that the gate counts on us for */
    uint32_t first, count; /* of the queue */
    uint8_t queue[CT_MARKS];
    int last_lane;
    uint64_t switched_ns;               /* when launches last went from one stream to another */
    uint64_t harvested_ns; /* the last look */
    uint64_t ended_ns;     /* the last end, or the first submission after it */
    struct ct_mark room[CT_MARKS];
    struct ct_lane lanes[CT_LANES];
};

/* After a launch that passed below a holder: notes it, and marks its end when that is due. */
void ct_marks_note(struct ct_session *session, const struct ct_gate_wish *wish, CUstream stream, int is_twin,
                   int may_mark);

/* Before a wait: what was launched into this stream gets an event. */
void ct_marks_close(struct ct_session *session, CUstream stream, int is_twin);

/* Tells the gate what has ended. Never waits; while another thread does it, nothing is done. */
void ct_marks_harvest(struct ct_session *session);

/* The program waited for all: everything has ended. Under the lock. */
void ct_marks_all_ended(struct ct_session *session, uint64_t now_ns);

/* Before contexts end: no event of ours stays behind. */
void ct_marks_drop(struct ct_session *session);

#endif
