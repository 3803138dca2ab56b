/* What of a sink's room stays free though it has a price? Sinks lower their prices until somebody comes or they are 0.

   The reverse of an auction (Bertsekas and Castanon, 1992): it is what makes any prices a good beginning. Without it room that
   was dear in the last round, and that nobody wants now, would stay dear, and the prices would prove little. A sink with free
   room goes down to where the source that would gain most is better off than the next one would be; that source brings
   units from where it gains least, which makes room there. No unit goes without, so it ends. */
#ifndef COTENANT_MATCH_SETTLE_H
#define COTENANT_MATCH_SETTLE_H

#include "match/auction.h"

struct ma_held { /* units of a source in a sink */
    int32_t sink, count;
    float price, profit; /* a unit */
};

struct ma_holder {
    struct ma_held *held;
    int32_t count, room_for;
    int32_t left; /* units that are nowhere */
};

struct ma_settling {
    const struct ma_problem *problem;
    struct ma_holder *holders; /* one a source */
    int32_t *spare;            /* free units of each sink */
    float *price;              /* of each sink's cheapest room */
};

/* Adds units that a source has in a sink. 0, or -1 without memory. */
int ma_hold(struct ma_holder *holder, struct ma_held held);

/* Returns how often a price was lowered, at most `most`; or -1 without memory. */
int64_t ma_settle(struct ma_settling *settling, float step, int64_t most);

#endif
