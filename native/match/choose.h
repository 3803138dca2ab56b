/* Where is worth less price highest, and how high is it at the second best? The one thing that is done for every pair. */
#ifndef COTENANT_MATCH_CHOOSE_H
#define COTENANT_MATCH_CHOOSE_H

#include <stdint.h>

struct ma_choice {
    float best, second; /* none below 0: what gains nothing is no choice */
    int32_t at;         /* of the best; -1: nothing is worth it */
};

/* Floats of room that ma_choose_dense needs beside a row of so many; ma_best_places needs twice as many. */
int32_t ma_blocks(int32_t count);

/* Of a whole row. */
struct ma_choice ma_choose_dense(const float *worth, const float *price, int32_t count, float *blocks);

/* Of these places alone: each has its worth, and the price at `at[place]`. */
struct ma_choice ma_choose_among(const float *worth, const int32_t *at, int64_t count, const float *price);

/* The places of a row where worth less price is highest and above 0, at most `most` of them, in no order; returns how many, and
   the highest in `best` (0: none). Looks at every `every`th block of places from `phase` on, so that rows that are alike can be
   given different ones; 1 and 0: at all. */
struct ma_part {
    int32_t every, phase;
};
int32_t ma_best_places(const float *worth, const float *price, int32_t count, int32_t most, struct ma_part part, int32_t *places,
                       float *best, float *blocks);

#endif
