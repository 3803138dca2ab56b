/* Included before the ledger's sources for the exploration: every atomic access is a separate step. */
#ifndef COTENANT_TESTS_LEDGER_HOOKS_H
#define COTENANT_TESTS_LEDGER_HOOKS_H

#include <stdatomic.h>
#include <stdint.h>

enum stepped { STEP_LOAD, STEP_STORE, STEP_ADD, STEP_SWAP };

uint64_t stepped(enum stepped kind, volatile void *place, uint64_t value, uint64_t *expected);
static inline int stepped_swap(volatile void *place, uint64_t *expected, uint64_t value)
{
    return (int)stepped(STEP_SWAP, place, value, expected);
}

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_fetch_add
#undef atomic_compare_exchange_strong
#undef atomic_compare_exchange_weak
#define STEPPED(place, kind, value, expected)                                                                          \
    ((__typeof__(*(place) + 0))stepped(kind, (volatile void *)(uintptr_t)(place), (uint64_t)(value), expected))
#define atomic_load_explicit(place, order) STEPPED(place, STEP_LOAD, 0, (uint64_t *)0)
#define atomic_store_explicit(place, value, order) ((void)STEPPED(place, STEP_STORE, value, (uint64_t *)0))
#define atomic_fetch_add(place, more) STEPPED(place, STEP_ADD, more, (uint64_t *)0)
#define atomic_compare_exchange_strong(place, expected, value) stepped_swap(place, expected, (uint64_t)(value))
#define atomic_compare_exchange_weak(place, expected, value) stepped_swap(place, expected, (uint64_t)(value))

#endif
