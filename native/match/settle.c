/* The reverse auction: sinks with free capacity take turns, and each lowers its price until the capacity is taken or
 * the price is 0. */
#include "match/settle.h"

#include "match/choose.h"

#include <stdlib.h>

#define UNAFFORDABLE 1e30f

struct column { /* of a sink: the sources that could use it, and their weights */
    int32_t *sources; /* NULL: all sources, in order */
    float *weight;
    int32_t count;
};

struct turns {
    struct ma_settling *settling;
    struct column *columns;
    int64_t *starts; /* if sparse: the first index of each sink in `sources` and in the weights */
    int32_t *sources;
    float *weight;
    int32_t *queue;
    unsigned char *queued;
    int32_t head, waiting;
    float *profit; /* of each source's worst unit: what it gives up by moving */
    float *blocks;
};

int ma_hold(struct ma_holder *holder, struct ma_held held)
{
    if (holder->count == holder->allocated) {
        int32_t allocated = holder->allocated ? 2 * holder->allocated : 4;
        struct ma_held *larger = realloc(holder->held, (size_t)allocated * sizeof *larger);
        if (!larger)
            return -1;
        holder->held = larger;
        holder->allocated = allocated;
    }
    holder->held[holder->count++] = held;
    return 0;
}

/* Returns where the source has its worst units; -1: nowhere, or some units are unassigned, which is worse. */
static int32_t worst_index(const struct ma_holder *holder)
{
    int32_t worst = -1;
    for (int32_t index = 0; !holder->unassigned && index < holder->count; index++)
        if (worst < 0 || holder->held[index].profit < holder->held[worst].profit)
            worst = index;
    return worst;
}

/* Returns the profit of a source's worst unit. */
static float profit_of(const struct ma_holder *holder)
{
    int32_t worst = worst_index(holder);
    return worst < 0 || holder->held[worst].profit < 0 ? 0 : holder->held[worst].profit;
}

static void enqueue(struct turns *turns, int32_t sink)
{
    const struct ma_settling *settling = turns->settling;
    if (turns->queued[sink] || !settling->spare[sink] || settling->price[sink] <= 0)
        return;
    turns->queued[sink] = 1;
    turns->queue[(turns->head + turns->waiting++) % settling->problem->sinks] = sink;
}

/* Sorts the edges by sink instead of by source. */
static int sort_by_sink(struct turns *turns)
{
    const struct ma_problem *problem = turns->settling->problem;
    size_t edges = (size_t)problem->starts[problem->sources];
    turns->starts = calloc((size_t)problem->sinks + 2, sizeof *turns->starts);
    turns->sources = malloc((edges + 1) * sizeof *turns->sources);
    turns->weight = malloc((edges + 1) * sizeof *turns->weight);
    if (!turns->starts || !turns->sources || !turns->weight)
        return -1;
    for (size_t edge = 0; edge < edges; edge++)
        turns->starts[problem->ends_at[edge] + 2]++;
    for (int32_t sink = 0; sink < problem->sinks; sink++)
        turns->starts[sink + 2] += turns->starts[sink + 1];
    for (int32_t source = 0; source < problem->sources; source++)
        for (int64_t edge = problem->starts[source]; edge < problem->starts[source + 1]; edge++) {
            int64_t index = turns->starts[problem->ends_at[edge] + 1]++;
            turns->sources[index] = source;
            turns->weight[index] = problem->weight[edge];
        }
    return 0;
}

/* A dense table is read by columns here, so each column that is needed is copied once. */
static const struct column *column_of(struct turns *turns, int32_t sink)
{
    const struct ma_problem *problem = turns->settling->problem;
    struct column *column = &turns->columns[sink];
    if (column->weight)
        return column;
    if (problem->starts) {
        column->sources = turns->sources + turns->starts[sink];
        column->weight = turns->weight + turns->starts[sink];
        column->count = (int32_t)(turns->starts[sink + 1] - turns->starts[sink]);
        return column;
    }
    column->weight = malloc((size_t)problem->sources * sizeof *column->weight + 1);
    column->count = problem->sources;
    for (int32_t source = 0; column->weight && source < problem->sources; source++)
        column->weight[source] = problem->weight[(size_t)source * (size_t)problem->sinks + (size_t)sink];
    return column->weight ? column : NULL;
}

/* Returns the source that would pay most, and what the second one would pay. */
static struct ma_choice best_buyer(struct turns *turns, const struct column *column)
{
    if (column->sources)
        return ma_choose_among(column->weight, column->sources, column->count, turns->profit);
    return ma_choose_dense(column->weight, turns->profit, column->count, turns->blocks);
}

/* Removes up to `limit` of a source's worst units from where they are; returns how many. */
static int32_t move_units(struct turns *turns, struct ma_holder *holder, int32_t limit)
{
    int32_t from = worst_index(holder);
    if (from < 0) {
        limit = holder->unassigned < limit ? holder->unassigned : limit;
        holder->unassigned -= limit;
        return limit;
    }
    struct ma_held *held = &holder->held[from];
    int32_t sink = held->sink;
    limit = held->count < limit ? held->count : limit;
    held->count -= limit;
    if (!held->count)
        *held = holder->held[--holder->count];
    turns->settling->spare[sink] += limit;
    enqueue(turns, sink);
    return limit;
}

/* The source that would pay most brings its worst units, as long as it would pay more for them than the second one, at
 * a price at which no other source would gain more than a step. */
static int fill_sink(struct turns *turns, int32_t sink, struct ma_choice buyer, float weight, float step)
{
    struct ma_settling *settling = turns->settling;
    struct ma_holder *holder = &settling->holders[buyer.at];
    int32_t free_units = settling->spare[sink], moved_units = 0;
    while (moved_units < free_units && (holder->unassigned || holder->count) &&
           weight - profit_of(holder) >= buyer.second)
        moved_units += move_units(turns, holder, free_units - moved_units);
    float price = buyer.second;
    if ((holder->unassigned || holder->count) && weight - profit_of(holder) > price)
        price = weight - profit_of(holder);
    price = price > step ? price - step : 0;
    if (price < settling->price[sink])
        settling->price[sink] = price;
    price = settling->price[sink];
    settling->spare[sink] -= moved_units;
    if (ma_hold(holder, (struct ma_held){sink, moved_units, price, weight - price}) < 0)
        return -1;
    turns->profit[buyer.at] = profit_of(holder);
    return 0;
}

static float weight_to(const struct column *column, int32_t source)
{
    if (!column->sources)
        return column->weight[source];
    int32_t index = 0;
    while (column->sources[index] != source)
        index++;
    return column->weight[index];
}

/* Lets each sink with free capacity lower its price. Returns how often a price was lowered; -1 if out of memory. */
static int64_t lower_prices(struct turns *turns, float step, int64_t limit)
{
    struct ma_settling *settling = turns->settling;
    int64_t price_cuts = 0;
    while (turns->waiting && price_cuts < limit) {
        int32_t sink = turns->queue[turns->head];
        turns->head = (turns->head + 1) % settling->problem->sinks;
        turns->waiting--;
        const struct column *column = column_of(turns, sink);
        if (!column)
            return -1;
        for (; settling->spare[sink] && settling->price[sink] > 0 && price_cuts < limit; price_cuts++) {
            struct ma_choice buyer = best_buyer(turns, column);
            if (buyer.best <= step)
                settling->price[sink] = 0; /* no source would gain more than a step at price 0 */
            else if (fill_sink(turns, sink, buyer, weight_to(column, buyer.at), step) < 0)
                return -1;
        }
        turns->queued[sink] = 0;
    }
    return price_cuts;
}

int64_t ma_settle(struct ma_settling *settling, float step, int64_t limit)
{
    const struct ma_problem *problem = settling->problem;
    struct turns turns = {.settling = settling};
    size_t sinks = (size_t)problem->sinks;
    int64_t price_cuts = -1;
    turns.queue = malloc((sinks + 1) * sizeof *turns.queue);
    turns.queued = calloc(sinks + 1, 1);
    turns.columns = calloc(sinks + 1, sizeof *turns.columns);
    turns.profit = malloc(((size_t)problem->sources + 1) * sizeof *turns.profit);
    turns.blocks = malloc((size_t)ma_blocks(problem->sources) * sizeof *turns.blocks);
    if (turns.queue && turns.queued && turns.columns && turns.profit && turns.blocks) {
        for (int32_t source = 0; source < problem->sources; source++)
            turns.profit[source] = problem->supply[source] ? profit_of(&settling->holders[source]) : UNAFFORDABLE;
        for (int32_t sink = 0; sink < problem->sinks; sink++)
            enqueue(&turns, sink);
        if (!turns.waiting)
            price_cuts = 0;
        else if (!problem->starts || sort_by_sink(&turns) == 0)
            price_cuts = lower_prices(&turns, step, limit);
    }
    for (int32_t sink = 0; turns.columns && !problem->starts && sink < problem->sinks; sink++)
        free(turns.columns[sink].weight);
    free(turns.queue);
    free(turns.queued);
    free(turns.columns);
    free(turns.profit);
    free(turns.blocks);
    free(turns.starts);
    free(turns.sources);
    free(turns.weight);
    return price_cuts;
}
