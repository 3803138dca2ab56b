/* The choice in two passes over a dense row: the best of each block, vectorized; then the best block element by
 * element. */
#include "match/choose.h"

enum { BLOCK = 64 };

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

int32_t ma_blocks(int32_t count)
{
    return count / BLOCK + 1;
}

/* Simple enough for the compiler to vectorize it. */
WIDE static void best_of_blocks(const float *restrict weight, const float *restrict price, int32_t count,
                                float *restrict blocks)
{
    for (int32_t at = 0, block = 0; at < count; at += BLOCK, block++) {
        float maximum[8] = {0};
        int32_t end = count - at < BLOCK ? count : at + BLOCK, index = at;
        for (; index + 8 <= end; index += 8)
            for (int column = 0; column < 8; column++) {
                float profit = weight[index + column] - price[index + column];
                maximum[column] = profit > maximum[column] ? profit : maximum[column];
            }
        for (; index < end; index++) {
            float profit = weight[index] - price[index];
            maximum[0] = profit > maximum[0] ? profit : maximum[0];
        }
        float best = 0;
        for (int column = 0; column < 8; column++)
            best = maximum[column] > best ? maximum[column] : best;
        blocks[block] = best;
    }
}

static void consider(struct ma_choice *choice, float profit, int32_t at)
{
    if (profit > choice->best) {
        choice->second = choice->best;
        choice->best = profit;
        choice->at = at;
    } else if (profit > choice->second) {
        choice->second = profit;
    }
}

struct ma_choice ma_choose_dense(const float *weight, const float *price, int32_t count, float *blocks)
{
    struct ma_choice choice = {0, 0, -1};
    int32_t best_block = 0;
    float best_elsewhere = 0;
    best_of_blocks(weight, price, count, blocks);
    for (int32_t block = 1; block * BLOCK < count; block++)
        if (blocks[block] > blocks[best_block])
            best_block = block;
    for (int32_t block = 0; block * BLOCK < count; block++)
        if (block != best_block && blocks[block] > best_elsewhere)
            best_elsewhere = blocks[block];
    int32_t end = count - best_block * BLOCK < BLOCK ? count : (best_block + 1) * BLOCK;
    for (int32_t at = best_block * BLOCK; at < end; at++)
        consider(&choice, weight[at] - price[at], at);
    if (best_elsewhere > choice.second)
        choice.second = best_elsewhere;
    return choice;
}

struct ma_choice ma_choose_among(const float *weight, const int32_t *at, int64_t count, const float *price)
{
    struct ma_choice choice = {0, 0, -1};
    for (int64_t index = 0; index < count; index++)
        consider(&choice, weight[index] - price[at[index]], at[index]);
    return choice;
}

static void swap(float *left, float *right)
{
    float saved = *left;
    *left = *right;
    *right = saved;
}

/* Returns the value of a rank by repeated partitioning (quickselect); the order of the values is lost. */
static float ranked(float *values, int32_t count, int32_t rank)
{
    int32_t low = 0, high = count - 1;
    while (low < high) {
        float middle = values[(low + high) / 2];
        int32_t left = low, right = high;
        while (left <= right) {
            while (values[left] > middle)
                left++;
            while (values[right] < middle)
                right--;
            if (left <= right)
                swap(&values[left++], &values[right--]);
        }
        if (rank <= right)
            high = right;
        else if (rank >= left)
            low = left;
        else
            break;
    }
    return values[rank];
}

int32_t ma_best_places(const float *weight, const float *price, int32_t count, int32_t limit, struct ma_part part,
                       int32_t *places,
                       float *best, float *blocks)
{
    int32_t block_count = (count + BLOCK - 1) / BLOCK, place_count = 0, worst = 0, considered = 0;
    float *sorted = blocks + ma_blocks(count), threshold = 0;
    for (int32_t block = part.phase; block < block_count; block += part.every) {
        int32_t at = block * BLOCK;
        best_of_blocks(weight + at, price + at, count - at < BLOCK ? count - at : BLOCK, &blocks[block]);
        sorted[considered++] = blocks[block];
    }
    if (considered > limit) /* this many blocks have an element that is at least as good */
        threshold = ranked(sorted, considered, limit - 1);
    *best = 0;
    for (int32_t block = part.phase; block < block_count; block += part.every) {
        if (blocks[block] <= 0 || blocks[block] < threshold)
            continue;
        *best = blocks[block] > *best ? blocks[block] : *best;
        int32_t end = count - block * BLOCK < BLOCK ? count : (block + 1) * BLOCK;
        for (int32_t at = block * BLOCK; at < end; at++) {
            float profit = weight[at] - price[at];
            if (profit <= 0 || profit < threshold)
                continue;
            if (place_count < limit) {
                places[place_count++] = at;
            } else if (profit > weight[places[worst]] - price[places[worst]]) {
                places[worst] = at;
            } else {
                continue;
            }
            if (place_count < limit)
                continue;
            for (int32_t index = worst = 0; index < place_count; index++)
                if (weight[places[index]] - price[places[index]] < weight[places[worst]] - price[places[worst]])
                    worst = index;
        }
    }
    return place_count;
}
