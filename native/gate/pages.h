/* What tenants of one device know of each other: one file per device, made by the node, mapped by every tenant.
 *
 * Page 0 is the roster, which the node alone writes; page 1 the floor, which those write that may have to wait; page
 * 2 + slot is the page of the tenant in that slot, which that tenant alone writes. Everybody maps the whole file for
 * reading, its own page for writing, and the floor for writing when it first has to wait: a stray write hits nobody
 * else. No word can be left locked by the dead: what could block others carries the instant at which it lapses. All
 * instants are CLOCK_MONOTONIC nanoseconds (or those of whoever drives the gate). */
#ifndef COTENANT_GATE_PAGES_H
#define COTENANT_GATE_PAGES_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CT_GATE_PAGE_BYTES = 4096,
    CT_GATE_VERSION = 1,
    CT_GATE_SEATS = 96, /* tenants of one device; the node admits no more */
    CT_GATE_PRIORITIES = 10,
    CT_GATE_RECENT = 32,
    CT_GATE_BUCKETS = 40, /* powers of two of nanoseconds: 2^39 ns are nine minutes */
    CT_GATE_REASONS = 16,
    CT_GATE_REQUEST_LEAST = 14,    /* powers of two of nanoseconds: 16 us */
    CT_GATE_REQUEST_BUCKETS = 352, /* sixteen for each power of two from there to 2^36 ns, a minute */
};

#define CT_GATE_NEVER UINT64_MAX

static inline size_t ct_gate_offset(uint32_t slot)
{
    return (size_t)CT_GATE_PAGE_BYTES * (2 + (size_t)slot);
}

/* ---- the roster ------------------------------------------------------------------------------------------------ */

enum ct_gate_policy {
    CT_GATE_OPEN = 0,   /* no control: everybody passes */
    CT_GATE_STRICT = 1, /* below an active holder nobody passes */
    CT_GATE_FILL = 2,   /* below an active holder, what fits into its gaps */
};

enum ct_gate_seat_flag {
    CT_GATE_SEAT_PAUSED = 1,
    CT_GATE_SEAT_ONLINE = 2,
    CT_GATE_SEAT_ENDING = 4, /* it was asked to end: below everybody, and one launch at a time */
    CT_GATE_SEAT_STATIC = 8, /* never above its limit, also when nobody else wants the rest */
};

struct ct_gate_seat {
    uint32_t generation;
    uint16_t slot;
    uint8_t priority; /* 0 is the highest, 9 the lowest */
    uint8_t flags;    /* enum ct_gate_seat_flag */
    /* One word of 64 bits before there was a limit: an older node leaves zeros there. */
    uint32_t least_ppm; /* share of the time that it gets whatever those above do; 0: none */
    uint32_t limit_ppm; /* share of the device that it has among its equals, and is held to; 0: none */
};

/* What the node says, in one piece. */
struct ct_gate_rules {
    uint64_t policy;      /* enum ct_gate_policy */
    uint64_t bound_ns;    /* D: device time that one below an inactive holder may have submitted and not confirmed */
    uint64_t delay_ppm;   /* of its time, what a tenant above may lose to those below; 0: nothing is risked */
    uint64_t patience_ns; /* a holder this long past its expected launch is quiet, however it varies */
    uint64_t switch_ns;   /* what it costs to change the process on the device and back: 0 under MPS */
    uint64_t spin_ppm;    /* of a processor, what a waiting tenant may spin away */
    uint64_t reserved;
    uint64_t seats; /* how many follow */
    struct ct_gate_seat seat[CT_GATE_SEATS];
};

enum { CT_GATE_RULES_WORDS = sizeof(struct ct_gate_rules) / sizeof(uint64_t) };

/* Two copies and a count of completed writes, as in a terms page: a reader never waits for a writer that died. */
struct ct_gate_roster {
    uint64_t magic, version;
    _Atomic uint64_t slots; /* pages that the file has room for; it may grow while tenants look */
    uint64_t reserved[5];
    _Alignas(64) _Atomic uint64_t writes;
    _Alignas(64) _Atomic uint64_t copy[2][CT_GATE_RULES_WORDS];
};
_Static_assert(sizeof(struct ct_gate_roster) <= CT_GATE_PAGE_BYTES, "the roster is one page");

/* ---- the floor ------------------------------------------------------------------------------------------------- */

struct ct_gate_floor {
    _Alignas(64) _Atomic uint64_t claim; /* who decides now: slot, generation, and when that lapses; 0: nobody */
    _Alignas(64) _Atomic uint64_t debt_ns; /* until when what was taken from those above is paid off, as far as
                                            * those who took it still sit there */
    _Alignas(64) _Atomic uint64_t asleep_until_ns; /* somebody may sleep on the bell until then */
    _Atomic uint32_t bell;                         /* a futex: rung by a holder whose work is over */
    _Alignas(64) _Atomic uint64_t below_ns; /* work of those that had to ask is expected to run until then */
    _Atomic uint64_t charged_ns;            /* what those above were thought to lose, so far */
};

/* ---- a tenant's page ------------------------------------------------------------------------------------------- */

/* What `cotenant top` shows; written by the tenant alone, read by whoever likes. */
struct ct_gate_counts {
    _Atomic uint64_t launches;                 /* all that passed, for whatever reason */
    _Atomic uint64_t passed[CT_GATE_REASONS];  /* by enum ct_gate_reason */
    _Atomic uint64_t device_ns;                /* of all that passed, as expected when they did */
    _Atomic uint64_t filled_ns;                /* of it, into gaps */
    _Atomic uint64_t waits, waited_ns;         /* launches that did not pass at once */
    _Atomic uint64_t spun_ns, slept_ns;
    _Atomic uint64_t overruns, overrun_ns;     /* times a holder came back while our work ran, and for how long it did */
    _Atomic uint64_t overrun[CT_GATE_BUCKETS]; /* of these, by power of two */
    _Atomic uint64_t waited[CT_GATE_BUCKETS];
    _Atomic uint64_t admitted, submitted; /* passed the gate below a holder, and taken by the driver since */
    _Atomic uint64_t late, late_ns;       /* of these, those before whose submission a holder launched; since when */
    _Atomic uint64_t stale;               /* admissions that had seen a later launch of a holder: must be 0 */
    _Atomic uint64_t foreseen, early;     /* launches of ours that had a forecast, and that came before it */
    _Atomic uint64_t miss_ns;             /* sum of the distances from forecast to launch */
    _Atomic uint64_t confirmed;           /* submissions below a holder whose end an event has shown */
    _Atomic uint64_t stuck;               /* passed because nothing ended for too long */
};

/* How long its requests took: see gate/request.h. */
struct ct_gate_requests {
    _Atomic uint64_t ended, over, sum_ns; /* so many, of these beyond the SLO, all their latencies */
    _Atomic uint64_t began_ns;            /* of the oldest that is under way; 0: none is */
    _Atomic uint64_t is_told;             /* by the program; else what the hook sees by itself */
    _Atomic uint32_t bucket[CT_GATE_REQUEST_BUCKETS];
};

struct ct_gate_page {
    /* What those below must know, in one cache line: written in this order from below, read from above. */
    _Alignas(64) _Atomic uint64_t sequence; /* launches announced */
    _Atomic uint64_t at_ns;                 /* the instant of the latest */
    _Atomic uint64_t quiet_ns;              /* from then on it is quiet, unless it has launched meanwhile */
    _Atomic uint64_t next_ns;               /* before then no further launch is expected */
    _Atomic uint64_t busy_ns;               /* its announced work is expected to be over by then */
    _Atomic uint64_t generation;            /* whose page this is; the words of an earlier tenant mean nothing */
    _Atomic uint64_t latest_ns;             /* after then a launch would be later than hardly any was */
    _Atomic uint64_t waits_ns;              /* since then its host waits for its work; 0: it does not */
    /* What others who wait must know. */
    _Alignas(64) _Atomic uint64_t wanted_ns; /* what the kernel that waits here needs of a gap, and one; 0: none waits;
                                              * CT_GATE_NEVER: one does that no gap lets pass */
    _Atomic uint64_t pieces;                 /* kernels announced: a launch of a graph is one of many */
    _Atomic uint64_t active_ns;              /* time for which it had work or was about to have some, so far */
    _Atomic uint64_t marked_ns;              /* until when that is counted, by whichever of its processes; 0: it is idle */
    _Atomic uint64_t asked_ns;               /* when it last asked: one that sleeps, or died, is not waited for */
    _Atomic uint64_t unsure_ns;              /* when it last announced work of unknown length; 0: all of that is over */
    _Alignas(64) _Atomic uint64_t recent_ns[CT_GATE_RECENT]; /* instants of the latest launches, by sequence */
    _Alignas(64) struct ct_gate_counts counts;
    /* Its use against its share; at the end, for older processes know nothing of it. */
    _Alignas(64) _Atomic uint64_t paid_ns; /* when all that it used will have been earned */
    _Atomic uint64_t paid_ppm;             /* at this share */
    _Atomic uint64_t over_ns;              /* until then it has had its share; 0: it has not */
    _Atomic uint64_t part_ppm;             /* of the device, what its latest work takes while it runs */
    _Alignas(64) struct ct_gate_requests requests;
    _Alignas(64) _Atomic uint64_t lost_ns; /* by how much later its work was over than it would have been alone, so far;
                                            * signed: of many it is the sum that tells */
    _Atomic uint64_t told;                 /* how often that was told */
    _Atomic uint64_t owes_ns;              /* until when the floor's debt lasted when it was last charged something */
    _Atomic uint64_t least_ns;             /* what was used of its least share, as the instant when it will have been earned */
};
_Static_assert(sizeof(struct ct_gate_page) <= CT_GATE_PAGE_BYTES, "a tenant's page is one page");

/* ---- the node's side -------------------------------------------------------------------------------------------- */

/* Makes memory the roster of a file with room for so many slots. One that is a roster already keeps what it says, at every
 * instant, for those who read it meanwhile too: only the number of slots may grow. */
int ct_roster_init(void *memory, size_t bytes, uint64_t slots);
int ct_roster_check(const void *memory, size_t bytes); /* 0: a roster of our version */
void ct_roster_write(struct ct_gate_roster *roster, const struct ct_gate_rules *rules);
/* 0, or -1 after the writer overtook the reader in every attempt. `writes` is the count that the rules are of. */
int ct_roster_read(const struct ct_gate_roster *roster, struct ct_gate_rules *rules, uint64_t *writes);

#endif
