/* Included before the gate's sources for the exploration: every atomic access calls the explorer. */
#ifndef COTENANT_TESTS_GATE_HOOKS_H
#define COTENANT_TESTS_GATE_HOOKS_H

#include <stdatomic.h>
#include <stdint.h>

uint64_t explored_load(const volatile void *place, int order);
void explored_store(volatile void *place, uint64_t value, int order);
uint64_t explored_add(volatile void *place, uint64_t more, int order);
int explored_swap(volatile void *place, uint64_t *expected, uint64_t value, int order);
void explored_fence(int order);

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_fetch_add_explicit
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak_explicit
#undef atomic_thread_fence
#define atomic_load_explicit(place, order) explored_load((place), (order))
#define atomic_store_explicit(place, value, order) explored_store((place), (value), (order))
#define atomic_fetch_add_explicit(place, more, order) explored_add((place), (more), (order))
#define atomic_compare_exchange_strong_explicit(place, expected, value, order, otherwise)                              \
    explored_swap((place), (expected), (value), (order))
#define atomic_compare_exchange_weak_explicit(place, expected, value, order, otherwise)                                \
    explored_swap((place), (expected), (value), (order))
#define atomic_thread_fence(order) explored_fence(order)

#endif
