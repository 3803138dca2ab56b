/* Pairs of events around launches: shared by the files that record and read them. */
#ifndef COTENANT_HOOK_TIMING_PAIRS_H
#define COTENANT_HOOK_TIMING_PAIRS_H

#include "hook/launch/gateway.h"
#include "hook/timing/timing.h"

enum { CT_TIMED_CONTEXTS = 16, CT_PAIRS = 256 };

struct ct_pair {
    CUevent begin, end;
    const struct ct_identity *identity;
    uint32_t identity_generation;    /* its generation at the launch */
    uint64_t untimed_before;         /* number of untimed launches before it: a gap is measured only if there was none
                                      * since */
    uint64_t alone_since;            /* ct_membership_alone_since() at its begin */
    struct ct_quiescence quiescence; /* launches of other processes at its begin */
    uint64_t begin_ticks;            /* 0: the stream was busy, and the work starts directly after the event */
    double late_ns;                  /* the host's delay between the event and the launch, to be subtracted if the
                                      * stream was idle */
    uint64_t begin_event_ticks;      /* when the begin was recorded */
    double gap_ns;                   /* from then until the host had launched; part of the measurement if the stream was
                                      * idle */
    double host_ns;                  /* from the begin to the end as the host recorded them */
    int has_waited;                  /* next to a neighbour, with no work of ours before it: the measurement includes
                                      * the wait for our time slice */
    uint32_t charges;                /* launches of the kernel that it represents, which were charged to the share */
    uint64_t charged_ns;             /* what they were charged */
    uint64_t part_blocks;            /* blocks of the part of a launch; 0: a whole launch */
    int is_variant;                  /* the whole grid, by the variant that parts use */
    unsigned generation;
    int context;
    struct ct_pair *next;
};

/* The pairs of one context. */
struct ct_timed_context {
    CUcontext handle;
    unsigned generation;                  /* incremented when the entry is reused */
    int is_broken;                        /* the driver returned an error, which the program will get as well */
    struct ct_pair *spare, *first, *last; /* available; recorded, oldest first */
    struct ct_pair *reference;            /* the last one read, relative to which the next is placed in time */
    double reference_end_ns, covered_until_ns;
    const struct ct_identity *covered_by;
};

struct ct_timing {
    _Atomic int lock;
    _Atomic int is_collecting;
    _Atomic unsigned waiting; /* recorded and not read */
    _Atomic unsigned failed_waits; /* times that a measured launch waited for a pair without success */
    struct ct_timed_context contexts[CT_TIMED_CONTEXTS];
    struct ct_pair *unused;
    struct ct_pair storage[CT_PAIRS];
};

static inline void ct_timing_lock(_Atomic int *lock)
{
    if (exchange_acquire(lock, 1))
        ct_lock_slow(lock);
}

static inline void ct_timing_unlock(_Atomic int *lock)
{
    store_release(lock, 0);
}

/* Makes the pair available again, unless its context was destroyed. */
void ct_pair_give_back(struct ct_timing *timing, struct ct_pair *pair, int is_broken);

/* Reads the oldest pair; returns 0 if it is not complete or cannot be read. Not thread-safe. */
int ct_pair_read_oldest(struct ct_session *session, struct ct_timed_context *context);

#endif
