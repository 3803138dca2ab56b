/* How fast does the processor's counter go, and what instant does it show? Compared with the system's clock. */
#include "hook/clock.h"

enum { LOOKS = 8, FRESH_NS = 1000 * 1000, FEW_LOOKS = 3, REFINE_NS = 20 * 1000 * 1000 };

struct look {
    uint64_t ticks, ns, width;
};

/* Of several looks at both clocks the one in which the least time passed: a preempted one shows. */
static struct look quiet_look(int looks, uint64_t quiet)
{
    struct look best = {0, 0, UINT64_MAX};
    for (int i = 0; i < looks && best.width > quiet; i++) {
        uint64_t before = ct_clock_counter(), ns = ct_clock_monotonic_ns(), after = ct_clock_counter();
        if (after - before < best.width)
            best = (struct look){before + (after - before) / 2, ns, after - before};
    }
    return best;
}

void ct_instant_renew(struct ct_instant *instant, const struct ct_clock *clock)
{
    uint64_t tick_ns = instant->ns_per_tick >> 22 ? instant->ns_per_tick >> 22 : 1; /* in 2^-10 */
    struct look look = {0, 0, 0};
    if (clock->has_counter)
        look = quiet_look(FEW_LOOKS, (UINT64_C(200) << 10) / tick_ns);
    else
        look.ticks = look.ns = ct_clock_monotonic_ns();
    instant->ticks = look.ticks;
    instant->ns = look.ns;
    uint64_t since_ns = look.ns - instant->base_ns, since = look.ticks - instant->base_ticks;
    if (clock->has_counter && since_ns >= instant->refine_ns && since) {
        instant->ns_per_tick = (uint64_t)(((unsigned __int128)since_ns << 32) / since);
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

enum { APART_NS = 200 * 1000 };

void ct_clock_open(struct ct_clock *clock)
{
    unsigned a, b, c, d = 0;
    *clock = (struct ct_clock){UINT64_C(1) << 32, 0};
    if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & 1u << 8)) /* the counter may stop or change its pace */
        return;
    struct look first = quiet_look(LOOKS, 0), last;
    do
        last = quiet_look(LOOKS, 0);
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
