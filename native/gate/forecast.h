/* When will the host launch again? For each recent history of launches, the interval that hardly any falls short of, and
 * the one that hardly any exceeds: two quantiles that follow what is seen, in constant space and a few instructions. */
#ifndef COTENANT_GATE_FORECAST_H
#define COTENANT_GATE_FORECAST_H

#include <stdint.h>

struct ct_forecast {
    uint64_t low_ns, high_ns; /* of the intervals seen, about the ninth part is below low, and above high */
    uint32_t seen;
    uint32_t reserved;
};

enum { CT_FORECAST_YOUNG = 16 }; /* at first it follows in larger steps */
#define CT_FORECAST_LONGEST_NS (UINT64_C(1) << 48)

static inline void ct_forecast_learn(struct ct_forecast *forecast, uint64_t interval_ns)
{
    if (interval_ns > CT_FORECAST_LONGEST_NS)
        interval_ns = CT_FORECAST_LONGEST_NS; /* sums below stay sums */
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
    } else {
        uint64_t raised_ns = forecast->low_ns + (forecast->low_ns >> (coarse + 3)) + 1;
        forecast->low_ns = raised_ns < interval_ns ? raised_ns : interval_ns;
    }
    if (interval_ns > forecast->high_ns) {
        uint64_t raised_ns = forecast->high_ns + (forecast->high_ns >> coarse) + 1;
        forecast->high_ns = raised_ns < interval_ns ? raised_ns : interval_ns;
    } else {
        uint64_t lowered_ns = forecast->high_ns - (forecast->high_ns >> (coarse + 3));
        forecast->high_ns = lowered_ns > interval_ns ? lowered_ns : interval_ns;
    }
}

#endif
