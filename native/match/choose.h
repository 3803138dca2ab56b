/* Finds where weight minus price is highest, and its second-highest value. This is the inner loop of the auction. */
#ifndef COTENANT_MATCH_CHOOSE_H
#define COTENANT_MATCH_CHOOSE_H

#include <stdint.h>

struct ma_choice {
    float best, second; /* at least 0: a place without gain is not chosen */
    int32_t at;         /* of the best; -1: none has a gain */
};

/* Returns the number of floats that ma_choose_dense needs as scratch memory for a row of this length; ma_best_places
 * needs twice as many. */
int32_t ma_blocks(int32_t count);

/* Considers a whole row. */
struct ma_choice ma_choose_dense(const float *weight, const float *price, int32_t count, float *blocks);

/* Considers only `count` places of a row: `weight[i]` is the weight of place `at[i]`, and `price` is indexed by
 * place. */
struct ma_choice ma_choose_among(const float *weight, const int32_t *at, int64_t count, const float *price);

/* Finds the places of a row where weight minus price is highest and above 0, at most `limit` of them, in no order.
 * Returns their number, and the highest value in `best` (0: none). Considers every `every`th block of places from
 * `phase` on, so that equal rows can be given different places; `every` 1 and `phase` 0 consider all. */
struct ma_part {
    int32_t every, phase;
};
int32_t ma_best_places(const float *weight, const float *price, int32_t count, int32_t limit, struct ma_part part,
                       int32_t *places,
                       float *best, float *blocks);

#endif
