/* A cheap clock, based on the processor's time stamp counter. */
#ifndef COTENANT_HOOK_TIMING_CLOCK_H
#define COTENANT_HOOK_TIMING_CLOCK_H

#include <stdint.h>
#include <time.h>

struct ct_clock {
    uint64_t ns_per_tick; /* in 2^-32 */
    int has_counter;      /* the processor has a counter of constant frequency; otherwise ticks are nanoseconds */
};

/* Takes 0.2 ms on x86, where the counter's frequency has to be measured. */
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

/* CLOCK_MONOTONIC computed from the counter and a recent reading of both clocks. Not thread-safe. */
struct ct_instant {
    uint64_t ticks, ns;           /* latest reading of both */
    uint64_t fresh_ticks;         /* how long it is valid */
    uint64_t ns_per_tick;         /* in 2^-32, from readings far apart */
    uint64_t last_ns;             /* results never decrease */
    uint64_t base_ticks, base_ns; /* first reading */
    uint64_t refine_ns;           /* at this distance from the first reading the frequency is computed again */
};

void ct_instant_open(struct ct_instant *instant, const struct ct_clock *clock);
void ct_instant_renew(struct ct_instant *instant, const struct ct_clock *clock);

static inline uint64_t ct_instant_ns(struct ct_instant *instant, const struct ct_clock *clock, uint64_t ticks)
{
    if (__builtin_expect(ticks - instant->ticks >= instant->fresh_ticks, 0)) {
        ct_instant_renew(instant, clock);
        if (ticks - instant->ticks >= instant->fresh_ticks)
            ticks = instant->ticks; /* the reading is later than the requested instant */
    }
    uint64_t ns = instant->ns + ((ticks - instant->ticks) * instant->ns_per_tick >> 32);
    return instant->last_ns = ns > instant->last_ns ? ns : instant->last_ns;
}

/* Instants of different threads may be slightly out of order; the difference is then 0. */
static inline uint64_t ct_clock_between_ns(const struct ct_clock *clock, uint64_t from, uint64_t to)
{
    if ((int64_t)(to - from) <= 0)
        return 0;
    return (uint64_t)((unsigned __int128)(to - from) * clock->ns_per_tick >> 32);
}

#endif
