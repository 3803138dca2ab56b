/* When will the host launch again? For each recent history of launches, the interval that hardly any falls short of, and
 * the one that hardly any exceeds: two quantiles that follow what is seen, in constant space and a few instructions. */
#ifndef COTENANT_GATE_FORECAST_H
#define COTENANT_GATE_FORECAST_H

#include <stdint.h>

struct ct_forecast {
    uint64_t low_ns, high_ns; /* of the intervals seen, about the ninth part is below low, and above high */
    uint64_t least_ns;        /* of those in a row that were all twice low or more */
    uint32_t seen, row;
};

enum {
    CT_FORECAST_YOUNG = 16, /* at first it follows in larger steps */
    CT_FORECAST_ROW = 12,   /* so many in a row: another time has begun; of a varying host, few are all so long by chance */
};

/* After a change for the longer, small steps would take for ever: half of the least of several is about as sure. */
static inline void ct_forecast_lengthen(struct ct_forecast *forecast, uint64_t interval_ns)
{
    if (interval_ns / 2 < forecast->low_ns) {
        forecast->row = 0;
        return;
    }
    forecast->least_ns = forecast->row && forecast->least_ns < interval_ns ? forecast->least_ns : interval_ns;
    if (++forecast->row < CT_FORECAST_ROW)
        return;
    forecast->row = 0;
    if (forecast->low_ns < forecast->least_ns / 2)
        forecast->low_ns = forecast->least_ns / 2;
}

static inline void ct_forecast_learn(struct ct_forecast *forecast, uint64_t interval_ns)
{
    if (__builtin_expect(!forecast->seen, 0)) {
        forecast->seen = 1;
        forecast->low_ns = interval_ns - interval_ns / 4;
        forecast->high_ns = interval_ns + interval_ns / 4;
        return;
    }
    /* Steps of one to eight: in balance when eight intervals are on the one side for each on the other. */
    const unsigned coarse = forecast->seen < CT_FORECAST_YOUNG ? 2 : 4;
    forecast->seen += forecast->seen < UINT32_MAX;
    if (interval_ns < forecast->low_ns) {
        forecast->low_ns = forecast->seen <= CT_FORECAST_YOUNG ? interval_ns /* a slow start must not last */
                                                               : forecast->low_ns - (forecast->low_ns >> coarse);
        forecast->row = 0;
    } else {
        uint64_t raised_ns = forecast->low_ns + (forecast->low_ns >> (coarse + 3)) + 1;
        forecast->low_ns = raised_ns < interval_ns ? raised_ns : interval_ns;
        ct_forecast_lengthen(forecast, interval_ns);
    }
    if (interval_ns > forecast->high_ns) {
        uint64_t raised_ns = forecast->high_ns + (forecast->high_ns >> coarse) + 1;
        if (interval_ns / 4 > forecast->high_ns) /* far beyond: by as much as it takes to be there in a few */
            raised_ns = forecast->high_ns + (interval_ns - forecast->high_ns) / 4;
        forecast->high_ns = raised_ns < interval_ns ? raised_ns : interval_ns;
    } else {
        uint64_t lowered_ns = forecast->high_ns - (forecast->high_ns >> (coarse + 3));
        forecast->high_ns = lowered_ns > interval_ns ? lowered_ns : interval_ns;
    }
}

#endif
