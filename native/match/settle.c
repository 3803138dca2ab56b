/* The reverse auction: sinks with free room take turns, each lowers its price until its room is taken or costs nothing. */
#include "match/settle.h"

#include "match/choose.h"

#include <stdlib.h>

#define BEYOND 1e30f

struct column { /* of a sink: who could use it, and what it is worth to them */
    int32_t *sources; /* NULL: all of them, in their order */
    float *worth;
    int32_t count;
};

struct turns {
    struct ma_settling *settling;
    struct column *columns;
    int64_t *starts; /* sparse: where each sink's part of `sources` and `worth` begins */
    int32_t *sources;
    float *worth;
    int32_t *queue;
    unsigned char *queued;
    int32_t head, waiting;
    float *profit; /* of each source's worst unit: what it gives up by coming */
    float *blocks;
};

int ma_hold(struct ma_holder *holder, struct ma_held held)
{
    if (holder->count == holder->room_for) {
        int32_t more = holder->room_for ? 2 * holder->room_for : 4;
        struct ma_held *bigger = realloc(holder->held, (size_t)more * sizeof *bigger);
        if (!bigger)
            return -1;
        holder->held = bigger;
        holder->room_for = more;
    }
    holder->held[holder->count++] = held;
    return 0;
}

/* Where it holds its worst units; -1: there are none, or some are nowhere, which is worse. */
static int32_t worst_of(const struct ma_holder *holder)
{
    int32_t worst = -1;
    for (int32_t place = 0; !holder->left && place < holder->count; place++)
        if (worst < 0 || holder->held[place].profit < holder->held[worst].profit)
            worst = place;
    return worst;
}

static float profit_of(const struct ma_holder *holder)
{
    int32_t worst = worst_of(holder);
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

/* Edges by sink instead of by source. */
static int turn_over(struct turns *turns)
{
    const struct ma_problem *problem = turns->settling->problem;
    size_t edges = (size_t)problem->starts[problem->sources];
    turns->starts = calloc((size_t)problem->sinks + 2, sizeof *turns->starts);
    turns->sources = malloc((edges + 1) * sizeof *turns->sources);
    turns->worth = malloc((edges + 1) * sizeof *turns->worth);
    if (!turns->starts || !turns->sources || !turns->worth)
        return -1;
    for (size_t edge = 0; edge < edges; edge++)
        turns->starts[problem->ends_at[edge] + 2]++;
    for (int32_t sink = 0; sink < problem->sinks; sink++)
        turns->starts[sink + 2] += turns->starts[sink + 1];
    for (int32_t source = 0; source < problem->sources; source++)
        for (int64_t edge = problem->starts[source]; edge < problem->starts[source + 1]; edge++) {
            int64_t place = turns->starts[problem->ends_at[edge] + 1]++;
            turns->sources[place] = source;
            turns->worth[place] = problem->worth[edge];
        }
    return 0;
}

/* A dense table is read along its columns here, so each that is needed is copied once. */
static const struct column *column_of(struct turns *turns, int32_t sink)
{
    const struct ma_problem *problem = turns->settling->problem;
    struct column *column = &turns->columns[sink];
    if (column->worth)
        return column;
    if (problem->starts) {
        column->sources = turns->sources + turns->starts[sink];
        column->worth = turns->worth + turns->starts[sink];
        column->count = (int32_t)(turns->starts[sink + 1] - turns->starts[sink]);
        return column;
    }
    column->worth = malloc((size_t)problem->sources * sizeof *column->worth + 1);
    column->count = problem->sources;
    for (int32_t source = 0; column->worth && source < problem->sources; source++)
        column->worth[source] = problem->worth[(size_t)source * (size_t)problem->sinks + (size_t)sink];
    return column->worth ? column : NULL;
}

/* Who would pay most, and what the next one would. */
static struct ma_choice keenest(struct turns *turns, const struct column *column)
{
    if (column->sources)
        return ma_choose_among(column->worth, column->sources, column->count, turns->profit);
    return ma_choose_dense(column->worth, turns->profit, column->count, turns->blocks);
}

/* Units leave where they are for room elsewhere; returns how many. */
static int32_t leave(struct turns *turns, struct ma_holder *holder, int32_t most)
{
    int32_t from = worst_of(holder);
    if (from < 0) {
        most = holder->left < most ? holder->left : most;
        holder->left -= most;
        return most;
    }
    struct ma_held *held = &holder->held[from];
    int32_t sink = held->sink;
    most = held->count < most ? held->count : most;
    held->count -= most;
    if (!held->count)
        *held = holder->held[--holder->count];
    turns->settling->spare[sink] += most;
    enqueue(turns, sink);
    return most;
}

/* The keenest brings its worst units, as long as it would pay more for them than the next one; at a price at which nobody
   who stays outside would gain more than a step. */
static int come(struct turns *turns, int32_t sink, struct ma_choice buyer, float worth, float step)
{
    struct ma_settling *settling = turns->settling;
    struct ma_holder *holder = &settling->holders[buyer.at];
    int32_t room = settling->spare[sink], brought = 0;
    while (brought < room && (holder->left || holder->count) && worth - profit_of(holder) >= buyer.second)
        brought += leave(turns, holder, room - brought);
    float price = buyer.second;
    if ((holder->left || holder->count) && worth - profit_of(holder) > price)
        price = worth - profit_of(holder);
    price = price > step ? price - step : 0;
    if (price < settling->price[sink])
        settling->price[sink] = price;
    price = settling->price[sink];
    settling->spare[sink] -= brought;
    if (ma_hold(holder, (struct ma_held){sink, brought, price, worth - price}) < 0)
        return -1;
    turns->profit[buyer.at] = profit_of(holder);
    return 0;
}

static float worth_to(const struct column *column, int32_t source)
{
    if (!column->sources)
        return column->worth[source];
    int32_t place = 0;
    while (column->sources[place] != source)
        place++;
    return column->worth[place];
}

static int64_t lower(struct turns *turns, float step, int64_t most)
{
    struct ma_settling *settling = turns->settling;
    int64_t made = 0;
    while (turns->waiting && made < most) {
        int32_t sink = turns->queue[turns->head];
        turns->head = (turns->head + 1) % settling->problem->sinks;
        turns->waiting--;
        const struct column *column = column_of(turns, sink);
        if (!column)
            return -1;
        for (; settling->spare[sink] && settling->price[sink] > 0 && made < most; made++) {
            struct ma_choice buyer = keenest(turns, column);
            if (buyer.best <= step)
                settling->price[sink] = 0; /* nobody would gain more than a step by having it for nothing */
            else if (come(turns, sink, buyer, worth_to(column, buyer.at), step) < 0)
                return -1;
        }
        turns->queued[sink] = 0;
    }
    return made;
}

int64_t ma_settle(struct ma_settling *settling, float step, int64_t most)
{
    const struct ma_problem *problem = settling->problem;
    struct turns turns = {.settling = settling};
    size_t sinks = (size_t)problem->sinks;
    int64_t made = -1;
    turns.queue = malloc((sinks + 1) * sizeof *turns.queue);
    turns.queued = calloc(sinks + 1, 1);
    turns.columns = calloc(sinks + 1, sizeof *turns.columns);
    turns.profit = malloc(((size_t)problem->sources + 1) * sizeof *turns.profit);
    turns.blocks = malloc((size_t)ma_blocks(problem->sources) * sizeof *turns.blocks);
    if (turns.queue && turns.queued && turns.columns && turns.profit && turns.blocks) {
        for (int32_t source = 0; source < problem->sources; source++)
            turns.profit[source] = problem->supply[source] ? profit_of(&settling->holders[source]) : BEYOND;
        for (int32_t sink = 0; sink < problem->sinks; sink++)
            enqueue(&turns, sink);
        if (!turns.waiting)
            made = 0;
        else if (!problem->starts || turn_over(&turns) == 0)
            made = lower(&turns, step, most);
    }
    for (int32_t sink = 0; turns.columns && !problem->starts && sink < problem->sinks; sink++)
        free(turns.columns[sink].worth);
    free(turns.queue);
    free(turns.queued);
    free(turns.columns);
    free(turns.profit);
    free(turns.blocks);
    free(turns.starts);
    free(turns.sources);
    free(turns.worth);
    return made;
}
