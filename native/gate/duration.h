/* The learned device time of one kernel: a moving average of measurements without neighbours, and a bound from
 * measurements next to them. Pure: measurements and the clock are arguments.
 *
 * All times are kept at the reference clock, the highest of the device. A measurement at a lower clock is scaled when it
 * is learned, and an estimate is scaled when it is used, so that a change of the clock need not be learned again. */
#ifndef COTENANT_GATE_DURATION_H
#define COTENANT_GATE_DURATION_H

#include "gate/forecast.h"

#include <stdint.h>

enum { CT_CLOCK_FULL_PPM = 1000 * 1000 };

struct ct_duration {
    uint64_t mean_ns;         /* moving average without neighbours; 0: never measured */
    uint64_t peak_ns;         /* the longest recent one; declines slowly */
    struct ct_forecast range; /* quantiles of the same measurements */
    uint64_t bound_ns;        /* about the shortest recent one next to neighbours: the kernel alone takes no longer */
    uint32_t count, bound_count;
    uint32_t far_count; /* consecutive measurements far from the mean, all on the same side */
    int is_far_above;
    uint64_t far_sum_ns;
};

/* Adds a measurement without active neighbours, or next to them. */
void ct_duration_learn(struct ct_duration *duration, uint64_t length_ns, uint64_t clock_ppm);
void ct_duration_learn_bound(struct ct_duration *duration, uint64_t length_ns, uint64_t clock_ppm);
/* Starts with the values of a profile. */
void ct_duration_from_profile(struct ct_duration *duration, uint64_t mean_ns, uint64_t p90_ns, uint64_t p99_ns);

/* Returns the expected time at the reference clock; 0: unknown. */
uint64_t ct_duration_expected(const struct ct_duration *duration);
/* Returns whether the kernel may take much longer than expected: few measurements, or they differ or contradict. */
int ct_duration_is_doubtful(const struct ct_duration *duration);

/* Returns a time at the reference clock as it is at this clock, and the reverse; a clock of 0 is unknown and counts as
 * the reference clock. */
static inline uint64_t ct_duration_at_clock(uint64_t reference_ns, uint64_t clock_ppm)
{
    return __builtin_expect(!clock_ppm || clock_ppm >= CT_CLOCK_FULL_PPM || reference_ns > UINT64_C(1) << 43, 1)
        ? reference_ns
        : reference_ns * CT_CLOCK_FULL_PPM / clock_ppm;
}

static inline uint64_t ct_duration_at_reference(uint64_t length_ns, uint64_t clock_ppm)
{
    return !clock_ppm || clock_ppm >= CT_CLOCK_FULL_PPM || length_ns > UINT64_C(1) << 43
        ? length_ns
        : length_ns * clock_ppm / CT_CLOCK_FULL_PPM;
}

/* Returns the estimate for an unseen grid from that of another grid of the same function: blocks run in waves over the
 * slots of the device (0: unknown), so the time follows the number of waves. */
uint64_t ct_duration_for_grid(uint64_t expect_ns, uint64_t blocks, uint64_t other_blocks, uint64_t slots);

#endif
