/* The learned device time of one kernel. */
#include "gate/duration.h"

enum {
    MEAN_MAX = 16,      /* the moving average covers about this many measurements */
    FAR_DIVISOR = 4,    /* a measurement is far from the mean if it differs by more than this part */
    FAR_COUNT = 6,      /* after this many in a row on one side the kernel takes another time, as at another clock */
    PEAK_DECLINE = 64,  /* the longest measurement declines by one part in so many per measurement */
    BOUND_RISE = 16,    /* a bound rises by this part of the difference, because clocks change */
    SURE_COUNT = 3,     /* with fewer measurements the expected time is doubtful */
    BOUNDS_ENOUGH = 7,  /* bounds that all contradict the mean make it doubtful */
    GRID_FACTOR_MAX = 64,
};

static uint64_t moved_towards(uint64_t mean_ns, uint64_t sample_ns, uint64_t weight)
{
    return sample_ns >= mean_ns ? mean_ns + (sample_ns - mean_ns) / weight : mean_ns - (mean_ns - sample_ns) / weight;
}

/* A mean of sixteen takes long to follow a lower clock. Several measurements in a row on one side are no chance. */
static void follow_shift(struct ct_duration *duration, uint64_t sample_ns)
{
    const uint64_t mean_ns = duration->mean_ns;
    const int is_above = sample_ns > mean_ns;
    const uint64_t apart_ns = is_above ? sample_ns - mean_ns : mean_ns - sample_ns;
    if (apart_ns <= mean_ns / FAR_DIVISOR) {
        duration->far_count = 0;
        return;
    }
    if (duration->far_count && duration->is_far_above != is_above)
        duration->far_count = 0;
    duration->far_sum_ns = duration->far_count ? duration->far_sum_ns + sample_ns : sample_ns;
    duration->is_far_above = is_above;
    if (++duration->far_count < FAR_COUNT)
        return;
    duration->mean_ns = duration->peak_ns = duration->far_sum_ns / FAR_COUNT;
    duration->range = (struct ct_forecast){0};
    ct_forecast_learn(&duration->range, duration->mean_ns);
    duration->far_count = 0;
    duration->count = FAR_COUNT;
}

void ct_duration_learn(struct ct_duration *duration, uint64_t length_ns, uint64_t clock_ppm)
{
    const uint64_t sample_ns = ct_duration_at_reference(length_ns ? length_ns : 1, clock_ppm);
    const uint64_t decline_ns = duration->peak_ns / PEAK_DECLINE;
    ct_forecast_learn(&duration->range, sample_ns);
    duration->peak_ns = sample_ns > duration->peak_ns - decline_ns ? sample_ns : duration->peak_ns - decline_ns;
    if (!duration->count) {
        duration->mean_ns = sample_ns;
        duration->count = 1;
        return;
    }
    follow_shift(duration, sample_ns);
    duration->count += duration->count < UINT32_MAX;
    duration->mean_ns = moved_towards(duration->mean_ns, sample_ns,
                                      duration->count < MEAN_MAX ? duration->count : MEAN_MAX);
    duration->mean_ns = duration->mean_ns ? duration->mean_ns : 1;
}

void ct_duration_learn_bound(struct ct_duration *duration, uint64_t length_ns, uint64_t clock_ppm)
{
    const uint64_t sample_ns = ct_duration_at_reference(length_ns ? length_ns : 1, clock_ppm);
    duration->bound_ns = !duration->bound_count || sample_ns < duration->bound_ns
        ? sample_ns
        : moved_towards(duration->bound_ns, sample_ns, BOUND_RISE);
    duration->bound_count += duration->bound_count < UINT32_MAX;
}

void ct_duration_from_profile(struct ct_duration *duration, uint64_t mean_ns, uint64_t p90_ns, uint64_t p99_ns)
{
    *duration = (struct ct_duration){.mean_ns = mean_ns ? mean_ns : 1, .peak_ns = p99_ns, .count = MEAN_MAX};
    duration->range = (struct ct_forecast){.low_ns = mean_ns - mean_ns / FAR_DIVISOR, .high_ns = p90_ns,
                                           .sample_count = CT_FORECAST_WARMUP};
}

uint64_t ct_duration_expected(const struct ct_duration *duration)
{
    if (!duration->count)
        return duration->bound_count ? duration->bound_ns : 0;
    return duration->bound_count >= SURE_COUNT && duration->bound_ns < duration->mean_ns ? duration->bound_ns
        : duration->mean_ns;
}

int ct_duration_is_doubtful(const struct ct_duration *duration)
{
    const uint64_t mean_ns = duration->mean_ns, spread_ns = duration->range.high_ns > duration->range.low_ns
        ? duration->range.high_ns - duration->range.low_ns
        : 0;
    if (duration->count < SURE_COUNT) /* several bounds suffice: the kernel takes no longer */
        return duration->bound_count < SURE_COUNT;
    return spread_ns > mean_ns || (duration->bound_count >= BOUNDS_ENOUGH &&
                                   duration->bound_ns - duration->bound_ns / FAR_DIVISOR > mean_ns);
}

uint64_t ct_duration_for_grid(uint64_t expect_ns, uint64_t blocks, uint64_t other_blocks, uint64_t slots)
{
    const uint64_t divisor = slots ? slots : 1;
    uint64_t waves = blocks / divisor + (blocks % divisor != 0), other_waves = other_blocks / divisor +
        (other_blocks % divisor != 0);
    waves = waves ? waves : 1;
    other_waves = other_waves ? other_waves : 1;
    /* The fixed part of a kernel does not shrink with its grid. */
    if (waves <= other_waves)
        return waves > UINT32_MAX || expect_ns > UINT32_MAX ? expect_ns : (expect_ns + expect_ns * waves / other_waves) / 2;
    const uint64_t factor = waves / other_waves < GRID_FACTOR_MAX ? waves / other_waves : GRID_FACTOR_MAX;
    return expect_ns < UINT32_MAX ? expect_ns * factor : expect_ns;
}
