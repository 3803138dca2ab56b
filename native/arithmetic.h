/* Minimum, maximum, and addition and subtraction that saturate instead of wrapping around. */
#ifndef COTENANT_ARITHMETIC_H
#define COTENANT_ARITHMETIC_H

#include <stdint.h>

static inline uint64_t max_u64(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static inline uint64_t min_u64(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* Returns one of two values without a branch, which the processor would have to predict: for conditions that vary. */
static inline uint64_t select_u64(int condition, uint64_t if_true, uint64_t if_false)
{
    return if_false ^ ((if_false ^ if_true) & -(uint64_t)(condition != 0));
}

/* Returns `from - less`, or 0 if `less` is larger. */
static inline uint64_t sat_sub_u64(uint64_t from, uint64_t less)
{
    return from > less ? from - less : 0;
}

/* Returns the sum, or UINT64_MAX if it is larger: a sum of values that another process wrote must not wrap to a small one. */
static inline uint64_t sat_add_u64(uint64_t one, uint64_t other)
{
    return one > UINT64_MAX - other ? UINT64_MAX : one + other;
}

#endif
