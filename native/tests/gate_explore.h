/* In which orders may the accesses of several threads take effect? The gate's own code, asked for one access at a time.
 *
 * What a thread does next follows from what its accesses returned so far. So its code is run from the beginning with
 * these results, up to its next access, and what that is is kept in a tree: each thread's code runs once for each history.
 * Then every order is explored over these trees; a state that was seen before (by its 64-bit hash) is not gone into. */
#ifndef COTENANT_TESTS_GATE_EXPLORE_H
#define COTENANT_TESTS_GATE_EXPLORE_H

#include "gate/gate.h"

#include <stdbool.h>

enum { THREADS = 3, PLACES = 56, SLOTS = 3, LONGEST = 400 };
enum kind { A_LOAD, A_STORE, A_ADD, A_SWAP, A_FENCE, A_END };

struct access {
    enum kind kind;
    int place, order; /* place: index in the table of words that matter */
    uint64_t value, expected;
};

struct node {
    struct access next;
    struct ct_gate_answer answer; /* of a thread that is at its end */
    uint64_t result;              /* by which it was reached */
    uint32_t parent, child, sibling, depth;
};

/* What a thread runs, on a copy of its gate; the answer is what is judged. */
typedef struct ct_gate_answer (*body)(struct ct_gate *gate);

struct thread {
    body run;
    const struct ct_gate *gate;
    int slot;       /* whose page it writes; -1: the node, which writes the roster */
    bool is_mortal; /* it may stop for ever at any step */
    struct node *nodes;
    uint32_t count, room;
};

/* How the code is broken, to see whether that is found. */
enum breakage { WHOLE, NO_RECHECK, UNORDERED_STORES, RELAXED_SEQUENCE, RELAXED_ROSTER, NO_FENCE };

struct world {
    unsigned char *file;
    struct thread thread[THREADS];
    int threads;
    enum breakage broken;
    /* Judges a thread's step (TSO: what memory says at that instant), and the end of all. NULL: no complaint. */
    const char *(*judge_step)(const struct world *world, int thread, uint32_t node, const uint64_t *memory);
    const char *(*judge_end)(const struct world *world, const uint32_t *node, const uint64_t *memory);
    /* found */
    uint64_t states, ends;
    const char *complaint; /* the first */
    uint64_t passed[4];    /* ends by how many of them passed */
};

int place_of(const volatile void *word);      /* -1: nobody else reads it */
int owner_of(int place);                      /* the slot that alone writes it; -1: the node; -2: whoever waits */
bool is_constant(int place);                  /* nobody writes it while we explore */
uint64_t value_at_start(int place);
static inline uint64_t memory_at(const uint64_t *memory, int place)
{
    return memory[place] ^ value_at_start(place);
}
void *address_of(int place);
const struct node *node_of(const struct thread *thread, uint32_t index);
/* The node that follows when the next access returns this. */
uint32_t follow(struct world *world, int thread, uint32_t index, uint64_t result);
/* The results of a history in order, with the accesses: how many. */
int history_of(const struct thread *thread, uint32_t index, struct access *accesses, uint64_t *results);

void world_begin(struct world *world);
void world_end(struct world *world);
bool seen_before(const void *state, size_t bytes); /* and remembers it */
void complain(struct world *world, const char *what);
void judge(struct world *world, const uint32_t *node, const uint64_t *memory);

void explore_buffers(struct world *world); /* each thread's stores wait in a queue of its own (TSO) */
void explore_views(struct world *world);   /* C11: a load may return any store that its order does not forbid */

#endif
