/* What instant is it, as cheaply as the machine can tell? */
#ifndef COTENANT_HOOK_CLOCK_H
#define COTENANT_HOOK_CLOCK_H

#include <stdint.h>
#include <time.h>

struct ct_clock {
    uint64_t ns_per_tick; /* in 2^-32 */
    int has_counter;      /* a counter of the processor that never changes its pace; else ticks are nanoseconds */
};

/* Takes a fifth of a millisecond on x86, where nobody tells the counter's pace. */
void ct_clock_open(struct ct_clock *clock);

static inline uint64_t ct_clock_counter(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}

static inline uint64_t ct_clock_monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline uint64_t ct_clock_ticks(const struct ct_clock *clock)
{
    return __builtin_expect(clock->has_counter, 1) ? ct_clock_counter() : ct_clock_monotonic_ns();
}

/* The system's instant, told by the counter from a common look at both that is never old. One thread at a time. */
struct ct_instant {
    uint64_t ticks, ns;           /* the latest look at both */
    uint64_t fresh_ticks;         /* how long it holds */
    uint64_t ns_per_tick;         /* in 2^-32, from looks far apart */
    uint64_t last_ns;             /* it never goes back */
    uint64_t base_ticks, base_ns; /* the first look */
    uint64_t refine_ns;           /* from this distance to the first look on the pace is told better */
};

void ct_instant_open(struct ct_instant *instant, const struct ct_clock *clock);
void ct_instant_renew(struct ct_instant *instant, const struct ct_clock *clock);

static inline uint64_t ct_instant_ns(struct ct_instant *instant, const struct ct_clock *clock, uint64_t ticks)
{
    if (__builtin_expect(ticks - instant->ticks >= instant->fresh_ticks, 0)) {
        ct_instant_renew(instant, clock);
        if (ticks - instant->ticks >= instant->fresh_ticks)
            ticks = instant->ticks; /* the look is later than what it was taken for */
    }
    uint64_t ns = instant->ns + ((ticks - instant->ticks) * instant->ns_per_tick >> 32);
    if (ns > instant->last_ns)
        instant->last_ns = ns;
    return instant->last_ns;
}

/* Threads may come out of order by a little: that is no time at all. */
static inline uint64_t ct_clock_between_ns(const struct ct_clock *clock, uint64_t from, uint64_t to)
{
    if ((int64_t)(to - from) <= 0)
        return 0;
    return (uint64_t)((unsigned __int128)(to - from) * clock->ns_per_tick >> 32);
}

#endif
