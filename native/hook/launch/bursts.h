/* Detects the requests of a program that does not report them. Pure: no clock, no driver calls.
 *
 * A request is a burst of launches followed by a call that waits for them, after which the host pauses. But a host may
 * also wait within a request, and under load it continues at once, so the length of one pause is not sufficient. Pauses
 * are therefore classified by the launches before and after them (a transition). A transition that is often followed by
 * a long pause ends a request, whether this pause is long or not; one that rarely is lies within a request. A pause is
 * long if it exceeds half of the typical pause; longer pauses than the typical one account for a quarter of the total
 * pause time. See docs/how-to/report-requests.md. */
#ifndef COTENANT_HOOK_LAUNCH_BURSTS_H
#define COTENANT_HOOK_LAUNCH_BURSTS_H

#include <stdint.h>

enum {
    CT_BURST_THREADS = 64, /* threads tracked at once; a further one replaces the one that has been idle longest */
    CT_BURST_TRANSITIONS = 1024,
    CT_BURST_POWERS = 48,
    CT_BURST_WARMUP = 8,       /* the first bursts of a program are its initialization, and are not counted */
    CT_BURST_WAITED_NS = 5000, /* a shorter wait found its work complete */
};

/* The current burst of one thread. */
struct ct_burst {
    uintptr_t thread;
    int is_active;               /* launches since the last wait */
    int is_polled;               /* polled since then, and the device was busy */
    int is_counted;              /* idle for so long that the burst was counted already */
    uint32_t last_launch;               /* the latest launch */
    uint64_t began_ns, ended_ns; /* first launch; return of the latest wait; 0: none */
};

struct ct_transition {
    uint64_t key;
    uint32_t pause_count, long_count; /* all pauses, and long ones */
    uint32_t since_long;              /* pauses since the last long one */
    uint32_t last_long;               /* number of long pauses of all transitions at the last long one */
    int is_end;
};

struct ct_bursts {
    struct ct_burst *current; /* of the thread that launched last; not NULL once opened */
    uint32_t count, active;
    uint32_t pauses, long_count, burst_count;
    uint64_t scale_ns;                             /* the typical pause */
    uint64_t total_ns, weight_ns[CT_BURST_POWERS]; /* recent pause time, and its parts by power of two */
    struct ct_burst burst[CT_BURST_THREADS];
    struct ct_transition transition[CT_BURST_TRANSITIONS];
};

/* Latencies of the requests that ended. */
struct ct_burst_ends {
    uint32_t count;
    uint64_t latency_ns[CT_BURST_THREADS];
};

void ct_bursts_open(struct ct_bursts *bursts);

/* Called when another thread launches than before. */
void ct_bursts_switch_thread(struct ct_bursts *bursts, uintptr_t thread);

/* Called for the first launch of the current thread, and for its first launch after a wait. */
void ct_burst_resume(struct ct_bursts *bursts, uint32_t launch, uint64_t now_ns, struct ct_burst_ends *ends);

/* Called for every launch; returns 0 if ct_burst_resume() must be called. */
static inline int ct_burst_continues(struct ct_bursts *bursts, uint32_t launch)
{
    struct ct_burst *burst = bursts->current;
    if (__builtin_expect(!burst->is_active, 0))
        return 0;
    burst->last_launch = launch;
    return 1;
}

/* Called when a thread returns from a call that waited for the device, and when it has polled the device. */
void ct_burst_waited(struct ct_bursts *bursts, uintptr_t thread, uint64_t took_ns, uint64_t now_ns);
void ct_burst_polled(struct ct_bursts *bursts, uintptr_t thread, int is_done, uint64_t now_ns);

/* Returns when the oldest burst began that has not been waited for; 0: none, or no burst has ever been counted: a
 * program that never waits has no requests. */
uint64_t ct_bursts_oldest(const struct ct_bursts *bursts);

#endif
