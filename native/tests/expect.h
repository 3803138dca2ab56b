/* A minimal test framework: prints the expectation that failed and its location, and aborts. */
#ifndef COTENANT_TESTS_EXPECT_H
#define COTENANT_TESTS_EXPECT_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition);                                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define EXPECT_EQ(got, wanted)                                                                                         \
    do {                                                                                                               \
        uint64_t got_ = (uint64_t)(got), wanted_ = (uint64_t)(wanted);                                                 \
        if (got_ != wanted_) {                                                                                         \
            fprintf(stderr, "%s:%d: %s is %" PRIu64 ", expected %" PRIu64 "\n", __FILE__, __LINE__, #got, got_,        \
                    wanted_);                                                                                          \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Returns the number of rounds of random calls: `few` in every run of the suite, `many` in `make soak`. */
static inline uint64_t rounds_of(uint64_t few, uint64_t many)
{
    return getenv("COTENANT_SOAK") ? many : few;
}

#endif
