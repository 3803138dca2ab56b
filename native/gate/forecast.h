/* Forecast of a host's next launch: for each recent launch history, two quantiles of the interval to the next launch,
 * which are tracked in constant space with a few instructions. */
#ifndef COTENANT_GATE_FORECAST_H
#define COTENANT_GATE_FORECAST_H

#include "arithmetic.h"

struct ct_forecast {
    uint64_t low_ns, high_ns; /* about one ninth of the intervals is shorter than low_ns, and one ninth is longer than
                               * high_ns */
    uint64_t min_ns;          /* the shortest of the consecutive intervals that were at least twice low_ns */
    uint32_t sample_count;    /* intervals learned, counted up to CT_FORECAST_WARMUP + 1 */
    uint32_t long_count;      /* consecutive intervals that were at least twice low_ns */
};

enum {
    CT_FORECAST_WARMUP = 16,     /* while fewer intervals were learned, the quantiles move in larger steps */
    CT_FORECAST_SHIFT = 4,       /* later steps outwards are the quantile divided by this power of two */
    CT_FORECAST_LONG_COUNT = 12, /* after this many long intervals in a row the host's behaviour has changed; few hosts
                                  * with varying intervals reach it by chance */
};

/* Raises the lower quantile after the intervals have become longer. Small steps would take too long, and half of the
 * minimum of several intervals is about as safe. */
static inline void ct_forecast_lengthen(struct ct_forecast *forecast, uint64_t interval_ns)
{
    if (interval_ns / 2 < forecast->low_ns) {
        forecast->long_count = 0;
        return;
    }
    forecast->min_ns = forecast->long_count && forecast->min_ns < interval_ns ? forecast->min_ns : interval_ns;
    if (++forecast->long_count < CT_FORECAST_LONG_COUNT)
        return;
    forecast->long_count = 0;
    if (forecast->low_ns < forecast->min_ns / 2)
        forecast->low_ns = forecast->min_ns / 2;
}

/* Updates both quantiles with any interval, also while few were learned. */
static __attribute__((noinline, unused)) void ct_forecast_learn_unusual(struct ct_forecast *forecast, uint64_t interval_ns)
{
    if (__builtin_expect(!forecast->sample_count, 0)) {
        forecast->sample_count = 1;
        forecast->low_ns = interval_ns - interval_ns / 4;
        forecast->high_ns = interval_ns + interval_ns / 4;
        return;
    }
    const unsigned shift = forecast->sample_count < CT_FORECAST_WARMUP ? 2 : CT_FORECAST_SHIFT;
    forecast->sample_count += forecast->sample_count <= CT_FORECAST_WARMUP;
    if (interval_ns < forecast->low_ns) {
        forecast->low_ns = forecast->sample_count <= CT_FORECAST_WARMUP ? interval_ns /* a slow first launch must not be
                                                                              * remembered */
                                                               : forecast->low_ns - (forecast->low_ns >> shift);
        forecast->long_count = 0;
    } else {
        uint64_t raised_ns = forecast->low_ns + (forecast->low_ns >> (shift + 3)) + 1;
        forecast->low_ns = raised_ns < interval_ns ? raised_ns : interval_ns;
        ct_forecast_lengthen(forecast, interval_ns);
    }
    if (interval_ns > forecast->high_ns) {
        uint64_t raised_ns = forecast->high_ns + (forecast->high_ns >> shift) + 1;
        if (interval_ns / 4 > forecast->high_ns) /* far outside: a larger step, so that the quantile adapts within a few
                                                     * intervals */
            raised_ns = forecast->high_ns + (interval_ns - forecast->high_ns) / 4;
        forecast->high_ns = raised_ns < interval_ns ? raised_ns : interval_ns;
    } else {
        uint64_t lowered_ns = forecast->high_ns - (forecast->high_ns >> (shift + 3));
        forecast->high_ns = lowered_ns > interval_ns ? lowered_ns : interval_ns;
    }
}

/* Updates both quantiles with one interval. Steps up and down have a ratio of one to eight, so that they balance when
 * eight intervals lie on one side for each on the other. Nearly all intervals are less than twice as long as the lower
 * quantile, and so not far above the upper one. These are learned without a branch, because which side of a quantile the
 * next one lies on cannot be predicted. */
static inline void ct_forecast_learn(struct ct_forecast *forecast, uint64_t interval_ns)
{
    const uint64_t low_ns = forecast->low_ns, high_ns = forecast->high_ns;
    const uint32_t is_learning = (forecast->sample_count ^ (CT_FORECAST_WARMUP + 1)) | forecast->long_count;
    if (__builtin_expect(is_learning || interval_ns / 2 >= low_ns, 0)) {
        ct_forecast_learn_unusual(forecast, interval_ns);
        return;
    }
    enum { OUT = CT_FORECAST_SHIFT, IN = CT_FORECAST_SHIFT + 3 };
    const uint64_t inner_low_ns = low_ns + (low_ns >> IN) + 1, outer_low_ns = low_ns - (low_ns >> OUT),
                   inner_high_ns = high_ns - (high_ns >> IN), outer_high_ns = high_ns + (high_ns >> OUT) + 1;
    const uint64_t raised_ns = inner_low_ns < interval_ns ? inner_low_ns : interval_ns,
                   lowered_ns = inner_high_ns > interval_ns ? inner_high_ns : interval_ns,
                   extended_ns = outer_high_ns < interval_ns ? outer_high_ns : interval_ns;
    forecast->low_ns = select_u64(interval_ns < low_ns, outer_low_ns, raised_ns);
    forecast->high_ns = select_u64(interval_ns > high_ns, extended_ns, lowered_ns);
}

#endif
