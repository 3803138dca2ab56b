/* The auction: sources take turns, and each bids until it has no units left or no sink is worthwhile. */
#include "match/auction.h"

#include "match/choose.h"
#include "match/settle.h"

#include <stdlib.h>
#include <string.h>

enum { FREE = -1 };
#define UNAFFORDABLE 1e30f

struct holding { /* units of one source in a sink at one price */
    float price;
    int32_t holder, count;
};

struct sink {
    struct holding *holdings; /* sorted by price, the cheapest last: it is replaced first */
    int32_t count, allocated;
};

struct auction {
    const struct ma_problem *problem;
    float *price, *blocks;
    struct sink *sinks;
    int32_t *unassigned, *queue;
    unsigned char *queued;
    int32_t head, waiting;
    int64_t bids;
};

static struct ma_choice choose(const struct auction *auction, int32_t source)
{
    const struct ma_problem *problem = auction->problem;
    if (!problem->starts)
        return ma_choose_dense(problem->weight + (size_t)source * (size_t)problem->sinks, auction->price,
                               problem->sinks, auction->blocks);
    int64_t begin = problem->starts[source];
    return ma_choose_among(problem->weight + begin, problem->ends_at + begin, problem->starts[source + 1] - begin,
                           auction->price);
}

static int add_holding(struct sink *sink, struct holding holding)
{
    if (sink->count == sink->allocated) {
        int32_t allocated = sink->allocated ? 2 * sink->allocated : 4;
        struct holding *holdings = realloc(sink->holdings, (size_t)allocated * sizeof *holdings);
        if (!holdings)
            return -1;
        sink->holdings = holdings;
        sink->allocated = allocated;
    }
    int32_t index = sink->count++;
    for (; index > 0 && sink->holdings[index - 1].price < holding.price; index--)
        sink->holdings[index] = sink->holdings[index - 1];
    sink->holdings[index] = holding;
    return 0;
}

static void enqueue(struct auction *auction, int32_t source)
{
    if (auction->queued[source] || !auction->unassigned[source])
        return;
    auction->queued[source] = 1;
    auction->queue[(auction->head + auction->waiting++) % auction->problem->sources] = source;
}

/* Takes the cheapest capacity that is available and needed, from the source that has it, and returns how much. A
 * source's own capacity counts too, and is paid for again. */
static int32_t take_cheapest(struct auction *auction, struct sink *sink, int32_t source)
{
    struct holding *cheapest = &sink->holdings[sink->count - 1];
    int32_t taken = cheapest->count, holder = cheapest->holder;
    if (holder == source) {
        sink->count--;
        return taken;
    }
    if (auction->unassigned[source] < taken)
        taken = auction->unassigned[source];
    auction->unassigned[source] -= taken;
    cheapest->count -= taken;
    if (!cheapest->count)
        sink->count--;
    if (holder != FREE) {
        auction->unassigned[holder] += taken;
        enqueue(auction, holder);
    }
    return taken;
}

/* One bid: for as much capacity as needed, as long as it is cheaper than the price at which the second choice would be
 * equally good. All of it gets the price of the first capacity that is not taken, or that price if it is lower, plus
 * the step. */
static int bid(struct auction *auction, int32_t source, struct ma_choice choice, float step)
{
    struct sink *sink = &auction->sinks[choice.at];
    float price = sink->holdings[sink->count - 1].price + (choice.best - choice.second);
    int32_t taken = 0;
    while (auction->unassigned[source] && sink->count && sink->holdings[sink->count - 1].price <= price)
        taken += take_cheapest(auction, sink, source);
    if (sink->count && sink->holdings[sink->count - 1].price < price)
        price = sink->holdings[sink->count - 1].price;
    if (add_holding(sink, (struct holding){price + step, source, taken}) < 0)
        return -1;
    auction->price[choice.at] = sink->holdings[sink->count - 1].price;
    return 0;
}

/* Lets sources bid until none can gain, or the limit is reached. */
static int run_bids(struct auction *auction, float step, int64_t max_bids)
{
    while (auction->waiting && auction->bids < max_bids) {
        int32_t source = auction->queue[auction->head];
        auction->head = (auction->head + 1) % auction->problem->sources;
        auction->waiting--;
        auction->queued[source] = 0;
        for (; auction->unassigned[source] && auction->bids < max_bids; auction->bids++) {
            struct ma_choice choice = choose(auction, source);
            if (choice.at < 0)
                break; /* prices only rise, so this remains so */
            if (bid(auction, source, choice, step) < 0)
                return -1;
        }
    }
    return 0;
}

static int open_auction(struct auction *auction)
{
    const struct ma_problem *problem = auction->problem;
    size_t sources = (size_t)problem->sources, sinks = (size_t)problem->sinks;
    auction->sinks = calloc(sinks + 1, sizeof *auction->sinks);
    auction->blocks = malloc((size_t)ma_blocks(problem->sinks) * sizeof *auction->blocks);
    auction->unassigned = malloc((sources + 1) * sizeof *auction->unassigned);
    auction->queue = malloc((sources + 1) * sizeof *auction->queue);
    auction->queued = calloc(sources + 1, 1);
    if (!auction->sinks || !auction->blocks || !auction->unassigned || !auction->queue || !auction->queued)
        return -1;
    for (int32_t sink = 0; sink < problem->sinks; sink++) {
        if (!problem->capacity[sink])
            auction->price[sink] = UNAFFORDABLE; /* no capacity at any price */
        else if (add_holding(&auction->sinks[sink],
                             (struct holding){auction->price[sink], FREE, problem->capacity[sink]}) < 0)
            return -1;
    }
    memcpy(auction->unassigned, problem->supply, sources * sizeof *auction->unassigned);
    for (int32_t source = 0; source < problem->sources; source++)
        enqueue(auction, source);
    return 0;
}

static float weight_of(const struct ma_problem *problem, int32_t source, int32_t sink)
{
    if (!problem->starts)
        return problem->weight[(size_t)source * (size_t)problem->sinks + (size_t)sink];
    int64_t low = problem->starts[source], high = problem->starts[source + 1] - 1;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (problem->ends_at[middle] < sink)
            low = middle + 1;
        else
            high = middle;
    }
    return problem->weight[low];
}

/* Converts the result from sinks to sources. */
static int convert_to_sources(const struct auction *auction, struct ma_settling *settling)
{
    const struct ma_problem *problem = auction->problem;
    for (int32_t source = 0; source < problem->sources; source++)
        settling->holders[source].unassigned = auction->unassigned[source];
    for (int32_t sink = 0; sink < problem->sinks; sink++)
        for (int32_t index = 0; index < auction->sinks[sink].count; index++) {
            struct holding holding = auction->sinks[sink].holdings[index];
            if (holding.holder == FREE) {
                settling->spare[sink] += holding.count;
                continue;
            }
            float profit = weight_of(problem, holding.holder, sink) - holding.price;
            if (ma_hold(&settling->holders[holding.holder],
                        (struct ma_held){sink, holding.count, holding.price, profit}) < 0)
                return -1;
        }
    return 0;
}

static int collect_lots(const struct ma_settling *settling, struct ma_result *result)
{
    int64_t limit = 0;
    for (int32_t source = 0; source < settling->problem->sources; source++)
        limit += settling->holders[source].count;
    result->lots = malloc((size_t)(limit + 1) * sizeof *result->lots);
    if (!result->lots)
        return -1;
    for (int32_t source = 0; source < settling->problem->sources; source++)
        for (int32_t index = 0; index < settling->holders[source].count; index++) {
            struct ma_held held = settling->holders[source].held[index];
            result->lots[result->count++] = (struct ma_lot){source, held.sink, held.count, held.price};
        }
    return 0;
}

static int finish(struct auction *auction, float step, int64_t max_bids, struct ma_result *result)
{
    const struct ma_problem *problem = auction->problem;
    struct ma_settling settling = {.problem = problem, .price = auction->price};
    settling.holders = calloc((size_t)problem->sources + 1, sizeof *settling.holders);
    settling.spare = calloc((size_t)problem->sinks + 1, sizeof *settling.spare);
    int64_t price_cuts = -1;
    if (settling.holders && settling.spare && convert_to_sources(auction, &settling) == 0)
        price_cuts = ma_settle(&settling, step, max_bids - auction->bids);
    int failed = price_cuts < 0 || collect_lots(&settling, result) < 0;
    auction->bids += price_cuts;
    for (int32_t source = 0; settling.holders && source < problem->sources; source++)
        free(settling.holders[source].held);
    free(settling.holders);
    free(settling.spare);
    return failed ? -1 : 0;
}

int ma_auction(const struct ma_problem *problem, float step, int64_t max_bids, float *price, struct ma_result *result)
{
    struct auction auction = {.problem = problem, .price = price};
    memset(result, 0, sizeof *result);
    int failed = open_auction(&auction) < 0 || run_bids(&auction, step, max_bids) < 0 ||
                 finish(&auction, step, max_bids, result) < 0;
    for (int32_t sink = 0; auction.sinks && sink < problem->sinks; sink++) {
        if (!problem->capacity[sink])
            price[sink] = 0;
        free(auction.sinks[sink].holdings);
    }
    result->bids = auction.bids;
    result->finished = auction.bids < max_bids;
    free(auction.sinks);
    free(auction.blocks);
    free(auction.unassigned);
    free(auction.queue);
    free(auction.queued);
    return failed ? -1 : 0;
}

void ma_free(struct ma_result *result)
{
    free(result->lots);
    result->lots = NULL;
}
