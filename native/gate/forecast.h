/* Forecast of a host's next launch: for each recent launch history, two quantiles of the interval to the next launch,
 * which are tracked in constant space with a few instructions. */
#ifndef COTENANT_GATE_FORECAST_H
#define COTENANT_GATE_FORECAST_H

#include <stdint.h>

struct ct_forecast {
    uint64_t low_ns, high_ns; /* about one ninth of the intervals is shorter than low_ns, and one ninth is longer than
                               * high_ns */
    uint64_t min_ns;          /* the shortest of the consecutive intervals that were at least twice low_ns */
    uint32_t seen, row;
};

enum {
    CT_FORECAST_YOUNG = 16, /* until then, the quantiles move in larger steps */
    CT_FORECAST_ROW = 12,   /* after this many long intervals in a row the host's behaviour has changed; few hosts with
                             * varying intervals reach it by chance */
};

/* After intervals have become longer, small steps would take too long: half of the minimum of several is about as
 * safe. */
static inline void ct_forecast_lengthen(struct ct_forecast *forecast, uint64_t interval_ns)
{
    if (interval_ns / 2 < forecast->low_ns) {
        forecast->row = 0;
        return;
    }
    forecast->min_ns = forecast->row && forecast->min_ns < interval_ns ? forecast->min_ns : interval_ns;
    if (++forecast->row < CT_FORECAST_ROW)
        return;
    forecast->row = 0;
    if (forecast->low_ns < forecast->min_ns / 2)
        forecast->low_ns = forecast->min_ns / 2;
}

static inline void ct_forecast_learn(struct ct_forecast *forecast, uint64_t interval_ns)
{
    if (__builtin_expect(!forecast->seen, 0)) {
        forecast->seen = 1;
        forecast->low_ns = interval_ns - interval_ns / 4;
        forecast->high_ns = interval_ns + interval_ns / 4;
        return;
    }
    /* Steps up and down have a ratio of one to eight, so that they balance when eight intervals lie on one side for
     * each on the other. */
    const unsigned coarse = forecast->seen < CT_FORECAST_YOUNG ? 2 : 4;
    forecast->seen += forecast->seen < UINT32_MAX;
    if (interval_ns < forecast->low_ns) {
        forecast->low_ns = forecast->seen <= CT_FORECAST_YOUNG ? interval_ns /* a slow first launch must not be
                                                                              * remembered */
                                                               : forecast->low_ns - (forecast->low_ns >> coarse);
        forecast->row = 0;
    } else {
        uint64_t raised_ns = forecast->low_ns + (forecast->low_ns >> (coarse + 3)) + 1;
        forecast->low_ns = raised_ns < interval_ns ? raised_ns : interval_ns;
        ct_forecast_lengthen(forecast, interval_ns);
    }
    if (interval_ns > forecast->high_ns) {
        uint64_t raised_ns = forecast->high_ns + (forecast->high_ns >> coarse) + 1;
        if (interval_ns / 4 > forecast->high_ns) /* far beyond: a step large enough to arrive after a few intervals */
            raised_ns = forecast->high_ns + (interval_ns - forecast->high_ns) / 4;
        forecast->high_ns = raised_ns < interval_ns ? raised_ns : interval_ns;
    } else {
        uint64_t lowered_ns = forecast->high_ns - (forecast->high_ns >> (coarse + 3));
        forecast->high_ns = lowered_ns > interval_ns ? lowered_ns : interval_ns;
    }
}

#endif
