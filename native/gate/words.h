/* How is a word of a page read and written, and how are instants added that others wrote? */
#ifndef COTENANT_GATE_WORDS_H
#define COTENANT_GATE_WORDS_H

#include "gate/gate.h"

#define LOAD(place) atomic_load_explicit(&(place), memory_order_relaxed)
#define SEE(place) atomic_load_explicit(&(place), memory_order_acquire)
#define STORE(place, value) atomic_store_explicit(&(place), (value), memory_order_relaxed)
#define SHOW(place, value) atomic_store_explicit(&(place), (value), memory_order_release)
#define ADD(place, more) STORE(place, LOAD(place) + (more))

static inline uint64_t later(uint64_t one_ns, uint64_t other_ns)
{
    return one_ns > other_ns ? one_ns : other_ns;
}

static inline uint64_t sooner(uint64_t one_ns, uint64_t other_ns)
{
    return one_ns < other_ns ? one_ns : other_ns;
}

static inline uint64_t left(uint64_t until_ns, uint64_t now_ns)
{
    return until_ns > now_ns ? until_ns - now_ns : 0;
}

/* A sum that stays at the top instead of beginning anew: what is too long must not look short. */
static inline uint64_t plus(uint64_t one_ns, uint64_t other_ns)
{
    return one_ns > UINT64_MAX - other_ns ? UINT64_MAX : one_ns + other_ns;
}

/* An instant as its page says it; one further ahead than any tenant writes is a scribble, or of another boot. */
static inline uint64_t believed(uint64_t instant_ns, uint64_t now_ns)
{
    return left(instant_ns, now_ns) <= CT_GATE_FAR_NS ? instant_ns : 0;
}

/* What a kernel counts against a bound: one of unknown length takes all of it. */
static inline uint64_t weight_of(const struct ct_gate *gate, uint64_t expect_ns)
{
    return expect_ns ? expect_ns : gate->bound_ns;
}

#endif
