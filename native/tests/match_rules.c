/* The auction conserves units, meets its bound, and finds the optimum of small problems. */
#include "expect.h"
#include "match/auction.h"
#include "match/choose.h"

#include <string.h>

enum { MOST = 6, PAIRS = MOST * MOST };

static uint64_t state = 88172645463325252u;

static uint32_t random_below(uint32_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % bound;
}

struct small {
    int32_t sources, sinks, supply[MOST], capacity[MOST];
    float weight[PAIRS];
};

/* Returns the optimum by trying every assignment of one unit after another. */
static double best(struct small *small, int32_t source)
{
    while (source < small->sources && !small->supply[source])
        source++;
    if (source >= small->sources)
        return 0;
    small->supply[source]--;
    double found = best(small, source); /* this unit stays unassigned */
    for (int32_t sink = 0; sink < small->sinks; sink++) {
        float weight = small->weight[source * small->sinks + sink];
        if (!small->capacity[sink] || weight <= 0)
            continue;
        small->capacity[sink]--;
        double with = weight + best(small, source);
        small->capacity[sink]++;
        found = with > found ? with : found;
    }
    small->supply[source]++;
    return found;
}

static double weight_of(const struct small *small, const struct ma_result *result)
{
    double sum = 0;
    int32_t arguments[MOST] = {0}, taken[MOST] = {0};
    for (int64_t lot = 0; lot < result->count; lot++) {
        struct ma_lot one = result->lots[lot];
        EXPECT(one.source >= 0 && one.source < small->sources && one.sink >= 0 && one.sink < small->sinks &&
               one.count > 0);
        float weight = small->weight[one.source * small->sinks + one.sink];
        EXPECT(weight > 0);
        arguments[one.source] += one.count;
        taken[one.sink] += one.count;
        sum += (double)weight * one.count;
    }
    for (int32_t source = 0; source < small->sources; source++)
        EXPECT(arguments[source] <= small->supply[source]);
    for (int32_t sink = 0; sink < small->sinks; sink++)
        EXPECT(taken[sink] <= small->capacity[sink]);
    return sum;
}

static double bound_of(const struct small *small, const float *price)
{
    double sum = 0;
    for (int32_t sink = 0; sink < small->sinks; sink++) {
        EXPECT(price[sink] >= 0);
        sum += (double)price[sink] * small->capacity[sink];
    }
    for (int32_t source = 0; source < small->sources; source++) {
        float profit = 0;
        for (int32_t sink = 0; sink < small->sinks; sink++) {
            float here = small->weight[source * small->sinks + sink] - price[sink];
            profit = here > profit && small->capacity[sink] ? here : profit;
        }
        sum += (double)profit * small->supply[source];
    }
    return sum;
}

static struct small drawn(void)
{
    struct small small = {.sources = 1 + (int32_t)random_below(4), .sinks = 1 + (int32_t)random_below(4)};
    for (int32_t source = 0; source < small.sources; source++)
        small.supply[source] = (int32_t)random_below(3);
    for (int32_t sink = 0; sink < small.sinks; sink++)
        small.capacity[sink] = (int32_t)random_below(3);
    for (int32_t pair = 0; pair < small.sources * small.sinks; pair++)
        small.weight[pair] = random_below(4) ? (float)random_below(1000) / 100 : 0;
    return small;
}

/* `high`: initial prices are random below it, as if from another round. */
static void check_auction(struct small *small, const int64_t *starts, const int32_t *ends_at, const float *weight,
                          uint32_t high)
{
    const float step = 0.001f;
    float price[MOST] = {0};
    for (int32_t sink = 0; high && sink < small->sinks; sink++)
        price[sink] = random_below(3) ? (float)random_below(high) / 100 : 0;
    struct ma_problem problem = {small->sources, small->sinks, small->supply, small->capacity, weight, starts, ends_at};
    struct ma_result result;
    EXPECT(ma_auction(&problem, step, 1 << 20, price, &result) == 0);
    EXPECT(result.finished);
    double got = weight_of(small, &result), limit = best(small, 0);
    EXPECT(got <= limit + 1e-3);
    EXPECT(got >= limit - step * 2 * MOST * 2);
    double bound = bound_of(small, price);
    EXPECT(bound >= limit - 1e-3 && bound <= got + step * 2 * MOST * 2);
    ma_free(&result);
}

/* The best places of a row: exactly those with fewer than `most` better ones, except for ties. */
static void check_places(int32_t count, int32_t limit, struct ma_part part)
{
    enum { LONGEST = 700, FEW = 40 };
    float weight[LONGEST], price[LONGEST], blocks[LONGEST], best, highest = 0;
    int32_t places[FEW], better = 0;
    unsigned char chosen[LONGEST] = {0};
    for (int32_t at = 0; at < count; at++) {
        weight[at] = (float)random_below(300) / 100;
        price[at] = (float)random_below(300) / 100;
        if (at / 64 % part.every != part.phase)
            weight[at] = 0;
        better += weight[at] > price[at];
        highest = weight[at] - price[at] > highest ? weight[at] - price[at] : highest;
    }
    int32_t found = ma_best_places(weight, price, count, limit, part, places, &best, blocks);
    EXPECT(found == (better < limit ? better : limit) && best >= highest && best <= highest);
    float lowest = 100;
    for (int32_t place = 0; place < found; place++) {
        float profit = weight[places[place]] - price[places[place]];
        EXPECT(!chosen[places[place]] && profit > 0);
        chosen[places[place]] = 1;
        lowest = profit < lowest ? profit : lowest;
    }
    for (int32_t at = 0; at < count && found == limit; at++)
        EXPECT(chosen[at] || weight[at] - price[at] <= lowest);
}

int main(void)
{
    for (int round = 0; round < 2000; round++) {
        int32_t every = 1 + (int32_t)random_below(4);
        check_places(1 + (int32_t)random_below(700), 1 + (int32_t)random_below(40),
                     (struct ma_part){every, (int32_t)random_below((uint32_t)every)});
    }
    for (int round = 0; round < 3000; round++) {
        struct small small = drawn();
        for (uint32_t high = 0; high <= 2000; high += 1000)
            check_auction(&small, NULL, NULL, small.weight, high);
        int64_t starts[MOST + 1] = {0};
        int32_t ends_at[PAIRS];
        float weight[PAIRS];
        int64_t edges = 0;
        for (int32_t source = 0; source < small.sources; source++) {
            for (int32_t sink = 0; sink < small.sinks; sink++)
                if (small.weight[source * small.sinks + sink] > 0) {
                    ends_at[edges] = sink;
                    weight[edges++] = small.weight[source * small.sinks + sink];
                }
            starts[source + 1] = edges;
        }
        for (uint32_t high = 0; high <= 2000; high += 1000)
            check_auction(&small, starts, ends_at, weight, high);
    }
    /* Wide rows, so that every block and the remainder are covered. */
    enum { WIDTH = 203 };
    float row[WIDTH], price[WIDTH];
    int32_t one = 1, capacity[WIDTH];
    for (int place = 0; place < WIDTH; place++) {
        for (int sink = 0; sink < WIDTH; sink++) {
            row[sink] = sink == place ? 2 : 1;
            capacity[sink] = 1;
            price[sink] = 0;
        }
        struct ma_problem problem = {1, WIDTH, &one, capacity, row, NULL, NULL};
        struct ma_result result;
        EXPECT(ma_auction(&problem, 0.1f, 10, price, &result) == 0);
        EXPECT(result.count == 1 && result.lots[0].sink == place && result.lots[0].price > 1 &&
               result.lots[0].price < 1.2f);
        ma_free(&result);
    }
    puts("match: ok");
    return 0;
}
