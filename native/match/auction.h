/* Maximum-weight matching between groups of identical items, by an auction (Bertsekas and Castanon, 1989).
 *
 * Sources have units to assign, sinks have capacity for units, and each pair has a weight. A source with units left
 * bids for capacity where weight minus price is highest, by as much as it would lose at its second choice plus `step`;
 * the cheapest capacity of a sink is replaced first, and a source that is outbid bids again. Then sinks with free
 * capacity lower their prices (settle.h). In the end no source could gain more than `step` per unit elsewhere, whatever
 * the initial prices were, and free capacity costs nothing. The prices prove optimality: the sum over sinks of capacity
 * x price plus the sum over sources of supply x best profit is an upper bound of any matching. Nothing is assigned for
 * a weight of 0 or less. */
#ifndef COTENANT_MATCH_AUCTION_H
#define COTENANT_MATCH_AUCTION_H

#include <stdint.h>

struct ma_problem {
    int32_t sources, sinks;
    const int32_t *supply, *capacity; /* units, not negative */
    const float *weight;              /* finite; if dense: sources x sinks; otherwise one for each edge */
    const int64_t *starts;            /* NULL if dense; otherwise the first edge of each source, and the number of
                                       * edges */
    const int32_t *ends_at;           /* the sink of each edge, ascending within a source, without duplicates */
};

struct ma_lot { /* units of a source in a sink, each at this price */
    int32_t source, sink, count;
    float price;
};

struct ma_result {
    struct ma_lot *lots; /* to be freed by ma_free */
    int64_t count;
    int64_t bids;
    int finished; /* 0: the limit of bids was reached */
};

/* `price` has the initial price of each sink, not negative, and receives that of its cheapest capacity. Returns 0, or
 * -1 if out of memory. */
int ma_auction(const struct ma_problem *problem, float step, int64_t max_bids, float *price, struct ma_result *result);
void ma_free(struct ma_result *result);

#endif
