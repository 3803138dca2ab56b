/* Which of many alike goes with which of many alike, for the most in sum? An auction (Bertsekas and Castanon, 1989).

   Sources have units to give away, sinks have room for units, and each pair of them has a worth. Whoever has units left
   bids for room where worth less price is highest, by as much as it would lose at its second choice and `step` more; the
   cheapest room of a sink goes first, and who is outbid bids again. Then sinks with room that nobody has lower their prices
   (settle.h). At the end no source could do better elsewhere by more than `step` a unit, whatever the prices began with, and
   room that nobody has costs nothing. The prices prove it: the sum over sinks of capacity x price, and over sources of supply x
   best profit, is above what any matching is worth. Nothing is given away for a worth of 0 or less. */
#ifndef COTENANT_MATCH_AUCTION_H
#define COTENANT_MATCH_AUCTION_H

#include <stdint.h>

struct ma_problem {
    int32_t sources, sinks;
    const int32_t *supply, *capacity; /* units, none negative */
    const float *worth;               /* finite; dense: sources x sinks; otherwise one for each edge */
    const int64_t *starts;            /* NULL if dense; otherwise where the edges of each source begin, and where all end */
    const int32_t *ends_at;           /* the sink of each edge, ascending within a source, none twice */
};

struct ma_lot { /* so many units of a source in a sink, each at this price */
    int32_t source, sink, count;
    float price;
};

struct ma_result {
    struct ma_lot *lots; /* ma_free */
    int64_t count;
    int64_t bids;
    int finished; /* 0: `most_bids` were made before everybody was content */
};

/* `price` is where each sink's prices begin, none negative, and becomes that of its cheapest room. 0, or -1 without memory. */
int ma_auction(const struct ma_problem *problem, float step, int64_t most_bids, float *price, struct ma_result *result);
void ma_free(struct ma_result *result);

#endif
