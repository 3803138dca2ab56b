/* Atomic accesses to shared memory: one name for each operation and memory order.
 *
 * The arguments are those of the functions in <stdatomic.h> without the order. The names are macros, so that a test can
 * replace the functions of <stdatomic.h> and observe every access. */
#ifndef COTENANT_ATOMICS_H
#define COTENANT_ATOMICS_H

#include <stdatomic.h>

#define load_relaxed(place) atomic_load_explicit((place), memory_order_relaxed)
#define load_acquire(place) atomic_load_explicit((place), memory_order_acquire)
#define load_seq_cst(place) atomic_load_explicit((place), memory_order_seq_cst)

#define store_relaxed(place, value) atomic_store_explicit((place), (value), memory_order_relaxed)
#define store_release(place, value) atomic_store_explicit((place), (value), memory_order_release)
#define store_seq_cst(place, value) atomic_store_explicit((place), (value), memory_order_seq_cst)

#define fetch_add_relaxed(place, more) atomic_fetch_add_explicit((place), (more), memory_order_relaxed)
#define fetch_add_release(place, more) atomic_fetch_add_explicit((place), (more), memory_order_release)
#define fetch_sub_relaxed(place, less) atomic_fetch_sub_explicit((place), (less), memory_order_relaxed)
#define exchange_acquire(place, value) atomic_exchange_explicit((place), (value), memory_order_acquire)

/* Adds to a word that only one thread at a time writes, while others may read it: a load and a store, both relaxed. Two
 * concurrent writers would lose an addition; they need fetch_add_relaxed(). Evaluates `place` twice. */
#define add_single_writer(place, more) store_relaxed(place, load_relaxed(place) + (more))

#endif
