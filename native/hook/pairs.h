/* Pairs of events around launches, as those who record them and those who read them share them. */
#ifndef COTENANT_HOOK_PAIRS_H
#define COTENANT_HOOK_PAIRS_H

#include "hook/gateway.h"
#include "hook/timing.h"

enum { CT_TIMED_CONTEXTS = 16, CT_PAIRS = 256 };

struct ct_pair {
    CUevent begin, end;
    const struct ct_identity *identity;
    uint64_t untimed_before; /* a gap is one only if nothing unseen ran in it */
    uint64_t alone_since;    /* as the node's page said it when this began */
    struct ct_still still;   /* as the pages of the others did */
    uint64_t begin_ticks;    /* 0: the stream was busy, and the work follows its begin at once */
    double late_ns;          /* the host's own delay from the begin to the launch, which counts if the stream stood idle */
    uint64_t marked_ticks;   /* when its begin was marked */
    double gap_ns;           /* from then until the host had launched it: all of that is in it if its stream stood idle */
    double host_ns;          /* from the begin to the end as the host marked them, likewise */
    int has_waited;      /* beside a neighbour, with nothing of ours before it: its wait for our turn is in it */
    uint32_t charges;    /* launches of its kind that it stands for, which were charged to our share */
    uint64_t charged_ns; /* as so much */
    unsigned generation;
    int context;
    struct ct_pair *next;
};

/* What belongs to one context. */
struct ct_timed_context {
    CUcontext handle;
    unsigned generation; /* counts the contexts that had this place */
    int is_broken;       /* the driver refused something: the program will hear of it soon enough */
    struct ct_pair *spare, *first, *last; /* ready; recorded, oldest first */
    struct ct_pair *reference;            /* the last one read: the next is placed in time by its end */
    double reference_end_ns, covered_until_ns;
    const struct ct_identity *covered_by;
};

struct ct_timing {
    _Atomic int lock;
    _Atomic int is_harvesting;
    _Atomic unsigned waiting; /* recorded and not read */
    _Atomic unsigned in_vain; /* times that a measured launch waited for a pair, and none came free */
    struct ct_timed_context contexts[CT_TIMED_CONTEXTS];
    struct ct_pair *unused;
    struct ct_pair room[CT_PAIRS];
};

static inline void ct_timing_hold(_Atomic int *lock)
{
    if (atomic_exchange_explicit(lock, 1, memory_order_acquire))
        ct_hold_late(lock);
}

static inline void ct_timing_let_go(_Atomic int *lock)
{
    atomic_store_explicit(lock, 0, memory_order_release);
}

/* The pair may be used again, unless its context has ended. */
void ct_pair_give_back(struct ct_timing *timing, struct ct_pair *pair, int is_broken);

/* Reads the oldest pair; 0 when it is not complete or cannot be read. One thread at a time. */
int ct_pair_read_oldest(struct ct_session *session, struct ct_timed_context *context);

#endif
