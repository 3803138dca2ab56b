/* The auction: sources take turns, each bids until it has nothing left or nothing is worth it. */
#include "match/auction.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64, FREE = -1 };
#define BEYOND 1e30f

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

struct room { /* of a sink: units of one holder at one price */
    float price;
    int32_t holder, count;
};

struct sink {
    struct room *rooms; /* by price, the cheapest last: it is the one that goes */
    int32_t count, room_for;
};

struct choice {
    float best, second;
    int32_t sink; /* of the best; -1: nothing is worth it */
};

struct auction {
    const struct ma_problem *problem;
    float *price, *blocks;
    struct sink *sinks;
    int32_t *left, *queue;
    unsigned char *queued;
    int32_t head, waiting;
    int64_t bids;
};

/* The highest profit within each block of a dense row: all that is done for every pair, so it is kept simple enough to be
   done eight at a time. */
WIDE static void best_of_blocks(const float *restrict worth, const float *restrict price, int32_t count, float *restrict blocks)
{
    for (int32_t at = 0, block = 0; at < count; at += BLOCK, block++) {
        float found[8] = {0};
        int32_t end = count - at < BLOCK ? count : at + BLOCK, place = at;
        for (; place + 8 <= end; place += 8)
            for (int lane = 0; lane < 8; lane++) {
                float profit = worth[place + lane] - price[place + lane];
                found[lane] = profit > found[lane] ? profit : found[lane];
            }
        for (; place < end; place++) {
            float profit = worth[place] - price[place];
            found[0] = profit > found[0] ? profit : found[0];
        }
        float best = 0;
        for (int lane = 0; lane < 8; lane++)
            best = found[lane] > best ? found[lane] : best;
        blocks[block] = best;
    }
}

static void consider(struct choice *choice, float profit, int32_t sink)
{
    if (profit > choice->best) {
        choice->second = choice->best;
        choice->best = profit;
        choice->sink = sink;
    } else if (profit > choice->second) {
        choice->second = profit;
    }
}

static struct choice choose_dense(struct auction *auction, int32_t source)
{
    struct choice choice = {0, 0, -1};
    int32_t sinks = auction->problem->sinks, top = 0;
    const float *worth = auction->problem->worth + (size_t)source * (size_t)sinks;
    float elsewhere = 0;
    best_of_blocks(worth, auction->price, sinks, auction->blocks);
    for (int32_t block = 1; block * BLOCK < sinks; block++)
        if (auction->blocks[block] > auction->blocks[top])
            top = block;
    for (int32_t block = 0; block * BLOCK < sinks; block++)
        if (block != top && auction->blocks[block] > elsewhere)
            elsewhere = auction->blocks[block];
    int32_t end = sinks - top * BLOCK < BLOCK ? sinks : (top + 1) * BLOCK;
    for (int32_t sink = top * BLOCK; sink < end; sink++)
        consider(&choice, worth[sink] - auction->price[sink], sink);
    if (elsewhere > choice.second)
        choice.second = elsewhere;
    return choice;
}

static struct choice choose_among_edges(const struct auction *auction, int32_t source)
{
    struct choice choice = {0, 0, -1};
    const struct ma_problem *problem = auction->problem;
    for (int64_t edge = problem->starts[source]; edge < problem->starts[source + 1]; edge++) {
        int32_t sink = problem->ends_at[edge];
        consider(&choice, problem->worth[edge] - auction->price[sink], sink);
    }
    return choice;
}

static int put(struct sink *sink, struct room room)
{
    if (sink->count == sink->room_for) {
        int32_t more = sink->room_for ? 2 * sink->room_for : 4;
        struct room *rooms = realloc(sink->rooms, (size_t)more * sizeof *rooms);
        if (!rooms)
            return -1;
        sink->rooms = rooms;
        sink->room_for = more;
    }
    int32_t place = sink->count++;
    for (; place > 0 && sink->rooms[place - 1].price < room.price; place--)
        sink->rooms[place] = sink->rooms[place - 1];
    sink->rooms[place] = room;
    return 0;
}

static void enqueue(struct auction *auction, int32_t source)
{
    if (auction->queued[source] || !auction->left[source])
        return;
    auction->queued[source] = 1;
    auction->queue[(auction->head + auction->waiting++) % auction->problem->sources] = source;
}

/* One bid: takes of the cheapest room as much as there is or as is needed, at a price at which the next best is as good. */
static int bid(struct auction *auction, int32_t source, struct choice choice, float step)
{
    struct sink *sink = &auction->sinks[choice.sink];
    struct room cheapest = sink->rooms[sink->count - 1];
    int32_t taken = auction->left[source] < cheapest.count ? auction->left[source] : cheapest.count;
    float price = cheapest.price + (choice.best - choice.second), next = BEYOND;
    if (taken < cheapest.count)
        next = cheapest.price;
    else if (sink->count > 1)
        next = sink->rooms[sink->count - 2].price;
    price = (price < next ? price : next) + step;
    if (taken < cheapest.count)
        sink->rooms[sink->count - 1].count -= taken;
    else
        sink->count--;
    if (put(sink, (struct room){price, source, taken}) < 0)
        return -1;
    auction->left[source] -= taken;
    if (cheapest.holder != FREE) {
        auction->left[cheapest.holder] += taken;
        if (cheapest.holder != source)
            enqueue(auction, cheapest.holder);
    }
    auction->price[choice.sink] = sink->rooms[sink->count - 1].price;
    return 0;
}

static int bid_until_content(struct auction *auction, float step, int64_t most_bids)
{
    while (auction->waiting && auction->bids < most_bids) {
        int32_t source = auction->queue[auction->head];
        auction->head = (auction->head + 1) % auction->problem->sources;
        auction->waiting--;
        auction->queued[source] = 0;
        for (; auction->left[source] && auction->bids < most_bids; auction->bids++) {
            struct choice choice = auction->problem->starts ? choose_among_edges(auction, source) : choose_dense(auction, source);
            if (choice.sink < 0)
                break; /* prices only rise, so it stays so */
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
    auction->blocks = malloc((sinks / BLOCK + 1) * sizeof *auction->blocks);
    auction->left = malloc((sources + 1) * sizeof *auction->left);
    auction->queue = malloc((sources + 1) * sizeof *auction->queue);
    auction->queued = calloc(sources + 1, 1);
    if (!auction->sinks || !auction->blocks || !auction->left || !auction->queue || !auction->queued)
        return -1;
    for (int32_t sink = 0; sink < problem->sinks; sink++) {
        if (!problem->capacity[sink])
            auction->price[sink] = BEYOND; /* nothing to be had, at any price */
        else if (put(&auction->sinks[sink], (struct room){auction->price[sink], FREE, problem->capacity[sink]}) < 0)
            return -1;
    }
    memcpy(auction->left, problem->supply, sources * sizeof *auction->left);
    for (int32_t source = 0; source < problem->sources; source++)
        enqueue(auction, source);
    return 0;
}

static int gather(const struct auction *auction, struct ma_result *result)
{
    int64_t most = 0;
    for (int32_t sink = 0; sink < auction->problem->sinks; sink++)
        most += auction->sinks[sink].count;
    result->lots = malloc((size_t)(most + 1) * sizeof *result->lots);
    if (!result->lots)
        return -1;
    for (int32_t sink = 0; sink < auction->problem->sinks; sink++)
        for (int32_t place = 0; place < auction->sinks[sink].count; place++) {
            struct room room = auction->sinks[sink].rooms[place];
            if (room.holder != FREE)
                result->lots[result->count++] = (struct ma_lot){room.holder, sink, room.count, room.price};
        }
    return 0;
}

int ma_auction(const struct ma_problem *problem, float step, int64_t most_bids, float *price, struct ma_result *result)
{
    struct auction auction = {.problem = problem, .price = price};
    memset(result, 0, sizeof *result);
    int failed = open_auction(&auction) < 0 || bid_until_content(&auction, step, most_bids) < 0 || gather(&auction, result) < 0;
    for (int32_t sink = 0; auction.sinks && sink < problem->sinks; sink++) {
        if (!problem->capacity[sink])
            price[sink] = 0;
        free(auction.sinks[sink].rooms);
    }
    result->bids = auction.bids;
    result->finished = !auction.waiting;
    free(auction.sinks);
    free(auction.blocks);
    free(auction.left);
    free(auction.queue);
    free(auction.queued);
    return failed ? -1 : 0;
}

void ma_free(struct ma_result *result)
{
    free(result->lots);
    result->lots = NULL;
}
