/* Collectives of a job that has a process (a rank) on each of several devices. A collective kernel runs until the kernels of
 * all ranks have run, so a rank that launches it while another is held by the gate of its own device occupies its device
 * without any progress. The ranks therefore agree on each collective before any of them launches it.
 *
 * All ranks map one page for writing. Its round word contains the number of a collective and a bit for each rank. A rank
 * whose own gate is open sets its bit, and clears it when its gate closes before all bits are set. Once all are set the
 * collective is agreed, the word does not change until the next round, and every rank launches whatever its gate says
 * meanwhile. Both transitions are a compare-and-swap of this one word, so no rank can launch while another is refused.
 *
 * Nothing outside the job depends on the page. Wrong contents can delay its ranks. They cannot let a launch pass that this
 * process's own gate did not admit: an agreement counts only for a collective for which this process set its bit. */
#ifndef COTENANT_GATE_GANG_H
#define COTENANT_GATE_GANG_H

#include "atomics.h"

#include <stdint.h>

enum {
    CT_GANG_BYTES = 4096,
    CT_GANG_RANKS = 32,                             /* ranks of one job on one machine */
    CT_GANG_RECHECK_NS = 100 * 1000,                /* how often a rank whose gate is open checks that it still is */
    CT_GANG_RECHECK_LONG_NS = 1000 * 1000,          /* the same after a wait of CT_GANG_LONG_NS */
    CT_GANG_LONG_NS = 100 * 1000 * 1000,
    CT_GANG_HELD_NS = 250 * 1000 * 1000,            /* a rank that last asked its gate longer ago than this is silent */
    CT_GANG_PATIENCE_MAX_NS = 1000 * 1000 * 1000,   /* how long the others wait for a silent rank at first */
    CT_GANG_PATIENCE_MIN_NS = 1000 * 1000,          /* and after many collectives in which a rank was silent */
};

/* Written by one rank. */
struct ct_gang_rank {
    _Alignas(64) _Atomic uint64_t generation; /* of its process; 0: no process has claimed this entry */
    _Atomic uint64_t passed;                  /* number of its latest collective that passed; its low 32 bits count */
    _Atomic uint64_t asked_ns;                /* when a launch of it was last held by its gate; 0: none is */
    _Atomic uint64_t is_contended;            /* its launches have to ask a gate */
};

struct ct_gang_page {
    _Alignas(64) _Atomic uint64_t round; /* the number of a collective (high 32 bits) and the ranks whose gates are open */
    _Atomic uint64_t departures;         /* entries that the node has cleared, because their process left */
    _Atomic uint32_t wake_word;          /* a futex, incremented with each agreement */
    struct ct_gang_rank ranks[CT_GANG_RANKS];
};
_Static_assert(sizeof(struct ct_gang_page) <= CT_GANG_BYTES, "the page of a gang is one page");

/* The part of one process. */
struct ct_gang {
    struct ct_gang_page *page; /* NULL: the process belongs to no gang */
    uint32_t rank_count, generation;
    uint32_t rank;         /* its entry; CT_GANG_RANKS: it has none */
    uint32_t passed;       /* number of its latest collective that passed */
    int is_asking;         /* the launch in question is a collective of this gang */
    int is_prepared;       /* it has set its bit for the next collective */
    int must_wake;         /* it completed an agreement: the caller wakes the others and clears this */
    uint64_t arrived_ns;   /* when it first asked for the next collective; 0: it has not */
    uint64_t patience_ns;  /* how long it waits for a rank that shows no sign of life */
    int has_given_up;      /* some rank's bit in this round was set because it showed none */
    int ignores_absent;    /* it has waited in vain for a rank without an entry: it does not wait for such ranks again */
};

/* Begins to use a page, or a new one after the process was attached again: the count of collectives continues. Without an
 * own page, or with a single rank, the process belongs to no gang. */
void ct_gang_join(struct ct_gang *gang, struct ct_gang_page *page, uint32_t rank_count, uint32_t generation);

/* Called before each decision about a collective, with whether this process has to ask its gate. Claims an entry of the page
 * if necessary; returns 0 if there is none, so that the process decides alone. */
int ct_gang_begin(struct ct_gang *gang, int is_contended, uint64_t now_ns);
/* Returns whether no rank has to ask a gate, so that there is nothing to agree on. Of a rank without an entry, which may be a
 * program without cotenant, this process knows nothing, and does not wait for it. */
int ct_gang_is_uncontended(const struct ct_gang *gang);

/* Returns whether the collective is agreed, and must be launched now. */
int ct_gang_is_agreed(const struct ct_gang *gang);
/* Records that the process's own gate would admit the collective; returns whether it may be launched. A rank that has shown
 * no sign of life for `patience_ns` is not waited for. */
int ct_gang_open(struct ct_gang *gang, uint64_t now_ns);
/* Records that it would not; returns whether it must be launched all the same, because it is agreed. */
int ct_gang_close(struct ct_gang *gang);
/* Records that the collective passed. */
void ct_gang_passed(struct ct_gang *gang);
/* Records that any launch of this process is held by its gate, or that it no longer is (`now_ns` 0). */
void ct_gang_held(struct ct_gang *gang, uint64_t now_ns);
/* Returns when a rank whose gate is open asks again. */
uint64_t ct_gang_recheck_at(const struct ct_gang *gang, uint64_t now_ns);

/* Called by the node: frees the entry of a process that left. */
void ct_gang_leave(struct ct_gang_page *page, uint32_t generation);

#endif
