/* Lowers the prices of free capacity: the reverse of an auction (Bertsekas and Castanon, 1992), which makes any initial
 * prices valid.
 *
 * Without it, capacity that was expensive in the last round and that no source wants now would stay expensive, and the
 * prices would prove little. A sink with free capacity lowers its price to where the source that gains most gains more
 * than the second one would; that source moves units from where it gains least, which frees capacity there. No unit
 * becomes unassigned, so the procedure terminates. */
#ifndef COTENANT_MATCH_SETTLE_H
#define COTENANT_MATCH_SETTLE_H

#include "match/auction.h"

struct ma_held { /* units of a source in a sink */
    int32_t sink, count;
    float price, profit; /* per unit */
};

struct ma_holder {
    struct ma_held *held;
    int32_t count, allocated;
    int32_t unassigned; /* unassigned units */
};

struct ma_settling {
    const struct ma_problem *problem;
    struct ma_holder *holders; /* one per source */
    int32_t *spare;            /* free units of each sink */
    float *price;              /* of each sink's cheapest capacity */
};

/* Adds units that a source has in a sink. Returns 0, or -1 if out of memory. */
int ma_hold(struct ma_holder *holder, struct ma_held held);

/* Lowers prices at most `limit` times. Returns how often a price was lowered; -1 if out of memory. */
int64_t ma_settle(struct ma_settling *settling, float step, int64_t limit);

#endif
