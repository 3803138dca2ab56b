/* How fast does the processor's counter go? Compared once with the system's clock, between two quiet looks. */
#include "hook/clock.h"

#if defined(__x86_64__)
#include <cpuid.h>

enum { LOOKS = 8, APART_NS = 200 * 1000 };

struct look {
    uint64_t ticks, ns, width;
};

/* Of several looks at both clocks the one in which the least time passed: a preempted one shows. */
static struct look quiet_look(void)
{
    struct look best = {0, 0, UINT64_MAX};
    for (int i = 0; i < LOOKS; i++) {
        uint64_t before = ct_clock_counter(), ns = ct_clock_monotonic_ns(), after = ct_clock_counter();
        if (after - before < best.width)
            best = (struct look){before + (after - before) / 2, ns, after - before};
    }
    return best;
}

void ct_clock_open(struct ct_clock *clock)
{
    unsigned a, b, c, d = 0;
    *clock = (struct ct_clock){UINT64_C(1) << 32, 0};
    if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & 1u << 8)) /* the counter may stop or change its pace */
        return;
    struct look first = quiet_look(), last;
    do
        last = quiet_look();
    while (last.ns - first.ns < APART_NS);
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
