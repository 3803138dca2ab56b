/* The auction conserves units, meets its bound, and finds the optimum of small problems. */
#include "expect.h"
#include "match/auction.h"
#include "match/choose.h"

#include <string.h>

enum { SIDE_MAX = 6, PAIRS = SIDE_MAX * SIDE_MAX };

static uint64_t state = 88172645463325252u;

static uint32_t random_below(uint32_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % bound;
}

struct small {
    int32_t sources, sinks, supply[SIDE_MAX], capacity[SIDE_MAX];
    float weight[PAIRS];
};

/* Returns the optimum by trying every assignment of one unit after another. */
static double optimum_of(struct small *small, int32_t source)
{
    while (source < small->sources && !small->supply[source])
        source++;
    if (source >= small->sources)
        return 0;
    small->supply[source]--;
    double maximum = optimum_of(small, source); /* this unit stays unassigned */
    for (int32_t sink = 0; sink < small->sinks; sink++) {
        float weight = small->weight[source * small->sinks + sink];
        if (!small->capacity[sink] || weight <= 0)
            continue;
        small->capacity[sink]--;
        double assigned_weight = weight + optimum_of(small, source);
        small->capacity[sink]++;
        maximum = assigned_weight > maximum ? assigned_weight : maximum;
    }
    small->supply[source]++;
    return maximum;
}

static double weight_of(const struct small *small, const struct ma_result *result)
{
    double sum = 0;
    int32_t assigned[SIDE_MAX] = {0}, taken[SIDE_MAX] = {0};
    for (int64_t index = 0; index < result->count; index++) {
        struct ma_lot lot = result->lots[index];
        EXPECT(lot.source >= 0 && lot.source < small->sources && lot.sink >= 0 && lot.sink < small->sinks &&
               lot.count > 0);
        float weight = small->weight[lot.source * small->sinks + lot.sink];
        EXPECT(weight > 0);
        assigned[lot.source] += lot.count;
        taken[lot.sink] += lot.count;
        sum += (double)weight * lot.count;
    }
    for (int32_t source = 0; source < small->sources; source++)
        EXPECT(assigned[source] <= small->supply[source]);
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
            float gain = small->weight[source * small->sinks + sink] - price[sink];
            profit = gain > profit && small->capacity[sink] ? gain : profit;
        }
        sum += (double)profit * small->supply[source];
    }
    return sum;
}

static struct small random_problem(void)
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

/* `price_limit`: initial prices are random below it, as if from another round; 0: all are 0. */
static void check_auction(struct small *small, const int64_t *starts, const int32_t *ends_at, const float *weight,
                          uint32_t price_limit)
{
    const float step = 0.001f;
    float price[SIDE_MAX] = {0};
    for (int32_t sink = 0; price_limit && sink < small->sinks; sink++)
        price[sink] = random_below(3) ? (float)random_below(price_limit) / 100 : 0;
    struct ma_problem problem = {small->sources, small->sinks, small->supply, small->capacity, weight, starts, ends_at};
    struct ma_result result;
    EXPECT(ma_auction(&problem, step, 1 << 20, price, &result) == 0);
    EXPECT(result.finished);
    double achieved = weight_of(small, &result), optimum = optimum_of(small, 0);
    EXPECT(achieved <= optimum + 1e-3);
    EXPECT(achieved >= optimum - step * 2 * SIDE_MAX * 2);
    double bound = bound_of(small, price);
    EXPECT(bound >= optimum - 1e-3 && bound <= achieved + step * 2 * SIDE_MAX * 2);
    ma_free(&result);
}

/* The best places of a row: exactly those with fewer than `limit` better ones, except for ties. */
static void check_places(int32_t count, int32_t limit, struct ma_part part)
{
    enum { LONGEST = 700, FEW = 40 };
    float weight[LONGEST], price[LONGEST], blocks[LONGEST], best, highest = 0;
    int32_t places[FEW], positive_count = 0;
    unsigned char chosen[LONGEST] = {0};
    for (int32_t column = 0; column < count; column++) {
        weight[column] = (float)random_below(300) / 100;
        price[column] = (float)random_below(300) / 100;
        if (column / 64 % part.every != part.phase)
            weight[column] = 0;
        positive_count += weight[column] > price[column];
        highest = weight[column] - price[column] > highest ? weight[column] - price[column] : highest;
    }
    int32_t place_count = ma_best_places(weight, price, count, limit, part, places, &best, blocks);
    EXPECT(place_count == (positive_count < limit ? positive_count : limit) && best >= highest && best <= highest);
    float lowest = 100;
    for (int32_t index = 0; index < place_count; index++) {
        float profit = weight[places[index]] - price[places[index]];
        EXPECT(!chosen[places[index]] && profit > 0);
        chosen[places[index]] = 1;
        lowest = profit < lowest ? profit : lowest;
    }
    for (int32_t column = 0; column < count && place_count == limit; column++)
        EXPECT(chosen[column] || weight[column] - price[column] <= lowest);
}

int main(void)
{
    for (int round = 0; round < 2000; round++) {
        int32_t every = 1 + (int32_t)random_below(4);
        check_places(1 + (int32_t)random_below(700), 1 + (int32_t)random_below(40),
                     (struct ma_part){every, (int32_t)random_below((uint32_t)every)});
    }
    for (int round = 0; round < 3000; round++) {
        struct small small = random_problem();
        for (uint32_t price_limit = 0; price_limit <= 2000; price_limit += 1000)
            check_auction(&small, NULL, NULL, small.weight, price_limit);
        int64_t starts[SIDE_MAX + 1] = {0};
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
        for (uint32_t price_limit = 0; price_limit <= 2000; price_limit += 1000)
            check_auction(&small, starts, ends_at, weight, price_limit);
    }
    /* Wide rows, so that every block and the remainder are covered. */
    enum { WIDTH = 203 };
    float row[WIDTH], price[WIDTH];
    int32_t supply = 1, capacity[WIDTH];
    for (int best_sink = 0; best_sink < WIDTH; best_sink++) {
        for (int sink = 0; sink < WIDTH; sink++) {
            row[sink] = sink == best_sink ? 2 : 1;
            capacity[sink] = 1;
            price[sink] = 0;
        }
        struct ma_problem problem = {1, WIDTH, &supply, capacity, row, NULL, NULL};
        struct ma_result result;
        EXPECT(ma_auction(&problem, 0.1f, 10, price, &result) == 0);
        EXPECT(result.count == 1 && result.lots[0].sink == best_sink && result.lots[0].price > 1 &&
               result.lots[0].price < 1.2f);
        ma_free(&result);
    }
    puts("match: ok");
    return 0;
}
