/* Model checking of the gate's code: explores the orders in which accesses of several threads may take effect.
 *
 * What a thread does next depends on the results of its accesses so far. Its code is therefore run from the beginning
 * with these results up to its next access, which is kept in a tree: each thread's code runs once for each history.
 * Then every order is explored over these trees; a state that was visited before (by its 64-bit hash) is not expanded
 * again. */
#ifndef COTENANT_TESTS_GATE_EXPLORE_H
#define COTENANT_TESTS_GATE_EXPLORE_H

#include "tests/device_pages.h"

#include <stdbool.h>

enum { THREADS = 3, WORDS = 60, SLOTS = 3, HISTORY_MAX = 400 };
enum kind { A_LOAD, A_STORE, A_ADD, A_SWAP, A_FENCE, A_END };

struct access {
    enum kind kind;
    int word, order; /* word: index in the table of explored words */
    uint64_t value, expected;
};

struct node {
    struct access next;
    struct ct_gate_answer answer; /* of a thread that has ended */
    uint64_t result;              /* result by which it was reached */
    uint32_t parent, child, sibling, depth;
};

/* What a thread runs, on a copy of its gate; its answer is checked. */
typedef struct ct_gate_answer (*body)(struct ct_gate *gate);

struct thread {
    body run;
    const struct ct_gate *gate;
    int slot;     /* index of the process that it is; -1: the node, which writes the tenant table */
    bool may_die; /* it may stop forever at any step */
    struct node *nodes;
    uint32_t count, capacity;
};

/* How the code is deliberately broken, to check that the exploration finds it. */
enum defect { CORRECT, NO_RECHECK, NO_LEASE_CHECK, UNORDERED_STORES, RELAXED_SEQUENCE, RELAXED_TABLE, NO_FENCE };

struct scenario {
    unsigned char *file;
    struct thread thread[THREADS];
    int threads;
    enum defect defect;
    /* Check a thread's step (TSO: given the memory at that instant), and the final state. NULL: correct. */
    const char *(*check_step)(const struct scenario *scenario, int thread, uint32_t node, const uint64_t *memory);
    const char *(*check_end)(const struct scenario *scenario, const uint32_t *node, const uint64_t *memory);
    /* results */
    uint64_t states, ends;
    const char *violation; /* the first one; NULL: none */
    uint64_t passed[4];    /* final states by the number of passes */
};

int word_index(const volatile void *word); /* -1: no other thread reads it */
int owner_of(int word);                 /* the process that alone writes it; -1: the node; -2: any waiting process */
bool is_constant(int word);             /* not written during the exploration */
uint64_t initial_value(int word);
static inline uint64_t memory_at(const uint64_t *memory, int word)
{
    return memory[word] ^ initial_value(word);
}
void *address_of(int word);
const struct node *node_of(const struct thread *thread, uint32_t index);
/* Returns the node that follows if the next access returns this. */
uint32_t follow(struct scenario *scenario, int thread, uint32_t index, uint64_t result);
/* Returns the accesses and results of a history in order, and their number. */
int history_of(const struct thread *thread, uint32_t index, struct access *accesses, uint64_t *results);

void scenario_begin(struct scenario *scenario);
void scenario_end(struct scenario *scenario);
bool was_visited(const void *state, size_t bytes); /* records the state, too */
void report_violation(struct scenario *scenario, const char *description);
void check_final_state(struct scenario *scenario, const uint32_t *node, const uint64_t *memory);

void explore_buffers(struct scenario *scenario); /* each thread's stores wait in a queue (TSO) */
void explore_views(struct scenario *scenario);   /* C11: a load may return any store that its memory order permits */

#endif
