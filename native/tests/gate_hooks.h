/* Included before the gate's sources for the exploration: every atomic access calls the explorer. */
#ifndef COTENANT_TESTS_GATE_HOOKS_H
#define COTENANT_TESTS_GATE_HOOKS_H

#include <stdatomic.h>
#include <stdint.h>

uint64_t explored_load(const volatile void *word, int order);
void explored_store(volatile void *word, uint64_t value, int order);
uint64_t explored_add(volatile void *word, uint64_t addend, int order);
int explored_swap(volatile void *word, uint64_t *expected, uint64_t value, int order);
void explored_fence(int order);

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_fetch_add_explicit
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak_explicit
#undef atomic_thread_fence
#define atomic_load_explicit(word, order) explored_load((word), (order))
#define atomic_store_explicit(word, value, order) explored_store((word), (value), (order))
#define atomic_fetch_add_explicit(word, addend, order) explored_add((word), (addend), (order))
#define atomic_compare_exchange_strong_explicit(word, expected, value, order, failure_order)                           \
    explored_swap((word), (expected), (value), (order))
#define atomic_compare_exchange_weak_explicit(word, expected, value, order, failure_order)                             \
    explored_swap((word), (expected), (value), (order))
#define atomic_thread_fence(order) explored_fence(order)

#endif
