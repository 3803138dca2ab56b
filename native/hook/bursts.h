/* Where does one request of a program end and the next begin, if the program does not say? Pure: no clock, no driver.
 *
 * A request looks like a burst: launches, and a call that waits for them, after which the host goes away for a while. But a
 * host may wait in the middle, too, and under load it comes back at once. So the length of a pause alone tells nothing: it is
 * remembered by the launch before it and the launch after it (its turn). A turn that is often followed by a long pause is
 * where requests end, whether the pause is long this time or not; one that hardly ever is lies within a request. Long is
 * half of the usual pause: in longer ones than that the host spends a quarter of the time of all its pauses. See docs/requests.md. */
#ifndef COTENANT_HOOK_BURSTS_H
#define COTENANT_HOOK_BURSTS_H

#include <stdint.h>

enum {
    CT_BURST_THREADS = 64, /* followed at once; a further one takes the place of the one that was away longest */
    CT_BURST_TURNS = 1024,
    CT_BURST_POWERS = 48,
    CT_BURST_FIRST = 8,      /* a program's first bursts are its preparations: they are not counted */
    CT_BURST_WAITED_NS = 5000, /* a wait of less found its work done */
};

/* One thread of the program. */
struct ct_burst {
    uintptr_t thread;
    int is_going;             /* launches follow each other; else it has waited, or nothing has begun */
    int is_polled;            /* it has asked since, and the device was busy */
    int is_counted;           /* it has been away for so long that its burst was counted already */
    uint32_t last;            /* the latest launch */
    uint64_t began_ns, ended_ns; /* its first launch; when its latest wait returned; 0: none */
};

struct ct_turn {
    uint64_t key;
    uint32_t seen, longs, since_long, mark;
    int is_end;
};

struct ct_bursts {
    struct ct_burst *current; /* of the thread that launched last; never NULL once opened */
    uint32_t count, going;
    uint32_t pauses, longs, found;
    uint64_t scale_ns, total_ns, weight_ns[CT_BURST_POWERS];
    struct ct_burst burst[CT_BURST_THREADS];
    struct ct_turn turn[CT_BURST_TURNS];
};

/* What a call has shown: requests that are over, by how long they took. */
struct ct_burst_ends {
    uint32_t count;
    uint64_t latency_ns[CT_BURST_THREADS];
};

void ct_bursts_open(struct ct_bursts *bursts);

/* Another thread launches than before. */
void ct_bursts_turn_to(struct ct_bursts *bursts, uintptr_t thread);

/* A launch of the current thread, its first or the first after a wait. */
void ct_burst_resume(struct ct_bursts *bursts, uint32_t launch, uint64_t now_ns, struct ct_burst_ends *ends);

/* Every launch. Whether it is one to resume with: then nothing is noted yet. */
static inline int ct_burst_goes_on(struct ct_bursts *bursts, uint32_t launch)
{
    struct ct_burst *burst = bursts->current;
    if (__builtin_expect(!burst->is_going, 0))
        return 0;
    burst->last = launch;
    return 1;
}

/* A thread comes out of a call that waited so long for the device; or has asked it, and it was done or busy. */
void ct_burst_waited(struct ct_bursts *bursts, uintptr_t thread, uint64_t took_ns, uint64_t now_ns);
void ct_burst_polled(struct ct_bursts *bursts, uintptr_t thread, int is_done, uint64_t now_ns);

/* When the oldest burst began that has not waited yet; 0: there is none, or no burst of this program has ever counted: one
 * that never waits has no requests that could be late. */
uint64_t ct_bursts_oldest(const struct ct_bursts *bursts);

#endif
