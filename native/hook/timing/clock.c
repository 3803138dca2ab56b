/* Calibrates the processor's time stamp counter against CLOCK_MONOTONIC. */
#include "hook/timing/clock.h"

enum { READINGS = 8, FRESH_NS = 1000 * 1000, FEW_READINGS = 3, REFINE_NS = 20 * 1000 * 1000 };

struct reading {
    uint64_t ticks, ns, width;
};

/* Reads both clocks several times, and returns the reading that took the least time: one that was preempted took
 * longer. */
static struct reading narrowest_reading(int attempts, uint64_t max_width)
{
    struct reading best = {0, 0, UINT64_MAX};
    for (int i = 0; i < attempts && best.width > max_width; i++) {
        uint64_t before = ct_clock_counter(), ns = ct_clock_monotonic_ns(), after = ct_clock_counter();
        if (after - before < best.width)
            best = (struct reading){before + (after - before) / 2, ns, after - before};
    }
    return best;
}

void ct_instant_renew(struct ct_instant *instant, const struct ct_clock *clock)
{
    uint64_t tick_ns = instant->ns_per_tick >> 22 ? instant->ns_per_tick >> 22 : 1; /* in 2^-10 */
    struct reading reading = {0, 0, 0};
    if (clock->has_counter)
        reading = narrowest_reading(FEW_READINGS, (UINT64_C(200) << 10) / tick_ns);
    else
        reading.ticks = reading.ns = ct_clock_monotonic_ns();
    instant->ticks = reading.ticks;
    instant->ns = reading.ns;
    uint64_t since_ns = reading.ns - instant->base_ns, since_ticks = reading.ticks - instant->base_ticks;
    if (clock->has_counter && since_ns >= instant->refine_ns && since_ticks) {
        instant->ns_per_tick = (uint64_t)(((unsigned __int128)since_ns << 32) / since_ticks);
        instant->refine_ns = since_ns < UINT64_MAX / 2 ? 2 * since_ns : since_ns;
    }
}

void ct_instant_open(struct ct_instant *instant, const struct ct_clock *clock)
{
    *instant = (struct ct_instant){.ns_per_tick = clock->ns_per_tick, .refine_ns = UINT64_MAX};
    ct_instant_renew(instant, clock);
    instant->fresh_ticks = (uint64_t)(((unsigned __int128)FRESH_NS << 32) / instant->ns_per_tick);
    instant->base_ticks = instant->ticks;
    instant->base_ns = instant->ns;
    instant->refine_ns = REFINE_NS;
}

#if defined(__x86_64__)
#include <cpuid.h>

enum { CALIBRATION_NS = 200 * 1000 };

void ct_clock_open(struct ct_clock *clock)
{
    unsigned a, b, c, d = 0;
    *clock = (struct ct_clock){UINT64_C(1) << 32, 0};
    if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & 1u << 8)) /* the counter may stop or change its frequency */
        return;
    struct reading first = narrowest_reading(READINGS, 0), last;
    do
        last = narrowest_reading(READINGS, 0);
    while (last.ns - first.ns < CALIBRATION_NS);
    if (last.ticks <= first.ticks)
        return;
    clock->ns_per_tick = ((last.ns - first.ns) << 32) / (last.ticks - first.ticks);
    clock->has_counter = 1;
}

#else

void ct_clock_open(struct ct_clock *clock)
{
    uint64_t per_second;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(per_second));
    clock->ns_per_tick = per_second ? (UINT64_C(1000000000) << 32) / per_second : UINT64_C(1) << 32;
    clock->has_counter = per_second != 0;
}

#endif
