/* The pages through which the processes of a device coordinate.
 *
 * The tenant table is written by the node alone. Every process writes its own gate page (see gate/process.h) and maps
 * those of all others for reading: each page is a sealed memory file that only its writer has mapped for writing. Only
 * the arbitration page has several writers, the processes that may have to wait; no decision about a process of higher
 * priority depends on it. Whatever a process reads from a page of another process may be wrong on purpose: instants
 * beyond the horizon are ignored, sums saturate, and nothing that could block others lasts longer than the instant at
 * which it expires. All instants are CLOCK_MONOTONIC nanoseconds, or those of a caller with its own clock. */
#ifndef COTENANT_GATE_PAGES_H
#define COTENANT_GATE_PAGES_H

#include "atomics.h"

#include <stddef.h>
#include <stdint.h>

enum {
    CT_GATE_PAGE_BYTES = 4096,
    CT_GATE_VERSION = 4,
    CT_TABLE_BYTES = 16384, /* the memory of a tenant table */
    CT_PROCESSES = 256,     /* processes of one device; the node attaches no more */
    CT_GATE_PRIORITIES = 10,
    CT_GATE_RECENT = 32,
    CT_GATE_BUCKETS = 40,           /* one for each power of two of nanoseconds; 2^39 ns are nine minutes */
    CT_GATE_REASONS = 24,           /* counters of a tenant's page, one for each enum ct_gate_reason; gate.h asserts
                                     * that they suffice */
    CT_GATE_REQUEST_MIN_POWER = 14, /* the first power of two of nanoseconds: 16 us */
    CT_GATE_REQUEST_BUCKETS = 352,  /* sixteen for each power of two from there to 2^36 ns (69 s) */
};

#define CT_GATE_NEVER UINT64_MAX

/* ---- the tenant table -------------------------------------------------------------------------------------------- */

enum ct_gate_policy {
    CT_GATE_OPEN = 0,   /* no control: every launch passes */
    CT_GATE_STRICT = 1, /* while a holder is active, no launch of a lower-priority tenant passes */
    CT_GATE_FILL = 2,   /* while a holder is active, launches that fit into its gaps pass */
};

enum ct_tenant_flag {
    CT_TENANT_PAUSED = 1,
    CT_TENANT_ONLINE = 2,
    CT_TENANT_ENDING = 4, /* it was asked to end: lowest priority, and one launch at a time */
    CT_TENANT_STATIC = 8, /* never exceeds its limit, even if the device is idle */
};

/* One process. All processes of a tenant have the same priority, flags and shares. */
struct ct_tenant_entry {
    uint32_t generation; /* of the process: unique among all processes that the node ever attached; never 0 */
    uint16_t index;      /* where its pages are mapped, see gate/process.h */
    uint8_t priority;    /* 0 is the highest, 9 the lowest */
    uint8_t flags;       /* enum ct_tenant_flag */
    uint32_t min_share_ppm; /* share of time that is granted whatever higher-priority tenants do; 0: none */
    uint32_t limit_ppm; /* share of the device among tenants of equal priority, which is also its limit; 0: none */
    uint32_t tenant;    /* slot of the tenant; processes with the same number are siblings */
    uint32_t tenant_generation; /* for readers of the table; the gate does not need it */
};

enum { CT_TENANT_ENTRY_WORDS = sizeof(struct ct_tenant_entry) / sizeof(uint64_t) };

/* The rules of the node for one device; replaced as a whole. */
struct ct_gate_rules {
    uint64_t policy;      /* enum ct_gate_policy */
    uint64_t bound_ns;    /* device time that a lower-priority tenant may have in flight while no holder is active */
    uint64_t delay_ppm;   /* fraction of its time that a tenant may lose to lower-priority ones; 0: none */
    uint64_t patience_ns; /* a holder that is this much later than predicted is quiet, however variable it is */
    uint64_t switch_ns;   /* cost of switching to another process and back; 0 under MPS */
    uint64_t spin_ppm;    /* fraction of a processor that a waiting tenant may spend on spinning */
    uint64_t sm_ppm;      /* part of the SMs that lower-priority tenants may occupy next to an active holder;
                           * CT_GATE_NEVER: as much as the measured loss of holders permits */
    uint64_t ignored_priority_ppm; /* under MPS, the part of holders' kernels that wait until a kernel of lower priority ends,
                                    * instead of overtaking its blocks */
    uint64_t process_count; /* entries in use */
    struct ct_tenant_entry processes[CT_PROCESSES];
};

enum { CT_GATE_RULES_WORDS = sizeof(struct ct_gate_rules) / sizeof(uint64_t) };

/* Two copies and a count of completed writes, as in a grant page: no reader waits for a writer that died. */
struct ct_tenant_table {
    uint64_t magic, version;
    uint64_t reserved[6];
    _Alignas(64) _Atomic uint64_t writes;
    _Atomic uint64_t clock_ppm; /* the device's clock as a fraction of its highest one, while it is busy; 0: unknown. Not
                                 * part of the rules: it changes more often */
    _Alignas(64) _Atomic uint64_t copy[2][CT_GATE_RULES_WORDS];
};
_Static_assert(sizeof(struct ct_tenant_table) <= CT_TABLE_BYTES, "the tenant table fits its memory");

/* ---- the arbitration page ---------------------------------------------------------------------------------------- */

struct ct_arbitration_page {
    _Alignas(64) _Atomic uint64_t claim;           /* the process that decides now: index, generation, and expiry; 0:
                                                    * none */
    _Alignas(64) _Atomic uint64_t debt_ns;         /* when the loss of higher-priority tenants will be paid off. Only
                                                    * to add concurrent charges: what counts is `owes_ns` in the gate
                                                    * pages */
    _Alignas(64) _Atomic uint64_t asleep_until_ns; /* a process may sleep on the wake word until then */
    _Atomic uint32_t wake_word;                    /* a futex, incremented by a holder whose work has completed */
    _Alignas(64) _Atomic uint64_t charged_ns;      /* total estimated loss of higher-priority tenants */
};

/* ---- a process's gate page ---------------------------------------------------------------------------------------- */

/* Counters that `cotenant top` displays; only the process writes them. */
struct ct_gate_counts {
    _Atomic uint64_t launches;                /* all launches that passed */
    _Atomic uint64_t passed[CT_GATE_REASONS]; /* by enum ct_gate_reason */
    _Atomic uint64_t device_ns;               /* expected device time of all launches, at the time they passed */
    _Atomic uint64_t filled_ns;               /* part of it that went into gaps */
    _Atomic uint64_t waits, waited_ns;        /* launches that did not pass at once */
    _Atomic uint64_t spun_ns, slept_ns;
    _Atomic uint64_t overruns, overrun_ns;     /* times that a holder launched while our work ran, and how long that
                                                * work still ran */
    _Atomic uint64_t overrun[CT_GATE_BUCKETS]; /* the same by power of two */
    _Atomic uint64_t waited[CT_GATE_BUCKETS];
    _Atomic uint64_t admitted, submitted; /* launches admitted while a higher-priority tenant exists, and those that the
                                           * driver then accepted */
    _Atomic uint64_t late, late_ns;       /* of these, launches submitted after a holder's launch, and the time
                                           * between */
    _Atomic uint64_t stale;               /* admissions that ignored an observed launch of a holder: must be 0 */
    _Atomic uint64_t forecasts, early;    /* evaluated forecasts, about one in 64, and launches that came before them */
    _Atomic uint64_t miss_ns;             /* sum of the distances between forecast and launch */
    _Atomic uint64_t confirmed;           /* admitted launches whose completion an event has shown */
    _Atomic uint64_t stuck;               /* passed because nothing ended for too long */
};

/* Latencies of the process's requests; see gate/request.h. */
struct ct_gate_requests {
    _Atomic uint64_t ended, over, sum_ns; /* requests that ended, those that missed the SLO, and the sum of all
                                           * latencies */
    _Atomic uint64_t began_ns;            /* start of the oldest request in progress; 0: none */
    _Atomic uint64_t is_reported;         /* requests are reported by the program; otherwise the hook detects them */
    _Atomic uint32_t bucket[CT_GATE_REQUEST_BUCKETS];
    _Atomic uint64_t urgent_ns;           /* from then on the oldest request in progress is urgent: it meets its objective
                                           * only with the whole device; 0: never */
};

/* Why a launch that is longer than the bound of a part was not cut. The reasons of its text follow the last one, see enum
 * ct_ptx_reason in hook/slice/ptx.h. */
enum ct_gate_whole {
    CT_GATE_WHOLE_CODE = 0,    /* the text of its code is not known */
    CT_GATE_WHOLE_WAVE = 1,    /* all of its blocks run at once */
    CT_GATE_WHOLE_LAUNCH = 2,  /* it was launched with attributes, or while a stream was captured */
    CT_GATE_WHOLE_REFUSED = 3, /* the driver refused its variant */
    CT_GATE_WHOLE_SLOWER = 4,  /* its variant is slower */
    CT_GATE_WHOLE_TEXT = 7,
    CT_GATE_WHOLES = 24,
};

struct ct_gate_page {
    /* What lower-priority tenants read, in one cache line; written from the last word to the first, read in the
     * opposite order. */
    _Alignas(64) _Atomic uint64_t sequence; /* number of announced launches */
    _Atomic uint64_t at_ns;                 /* instant of the latest launch */
    _Atomic uint64_t quiet_ns;              /* from then on the tenant is quiet, unless it launches before */
    _Atomic uint64_t next_ns;               /* no further launch is expected before then */
    _Atomic uint64_t busy_ns;               /* announced work is expected to be complete by then */
    _Atomic uint64_t generation;            /* of the process, as in its entry of the tenant table; 0: it is not
                                             * attached, and no word counts */
    _Atomic uint64_t latest_ns;             /* a launch after this instant would be later than nearly all were */
    _Atomic uint64_t waits_ns;              /* when its host began to wait for its work; 0: it does not wait */
    /* What other waiting processes read. */
    _Alignas(64) _Atomic uint64_t wanted_ns;                 /* the gap that the waiting kernel needs, plus one; 0: none
                                                              * waits; CT_GATE_NEVER: no gap suffices */
    _Atomic uint64_t kernel_count;                           /* kernels announced; the launch of a graph contains
                                                              * several */
    _Atomic uint64_t active_ns;                              /* total time for which it had work or was about to have
                                                              * some */
    _Atomic uint64_t active_counted_ns;                      /* the instant up to which active_ns is counted; 0: the
                                                              * tenant is idle */
    _Atomic uint64_t asked_ns;                               /* when it last asked: a tenant that sleeps or is dead is
                                                              * not waited for */
    _Atomic uint64_t unknown_ns;                             /* when it last announced work of unknown length; 0: all of
                                                              * it is complete */
    _Atomic uint64_t unfinished_ns;                          /* until then, work of unknown or doubtful length counts as
                                                              * running unless it is seen to complete; 0: it was */
    _Alignas(64) _Atomic uint64_t recent_ns[CT_GATE_RECENT]; /* instants of the latest launches, indexed by sequence
                                                              * number */
    _Alignas(64) struct ct_gate_counts counts;
    /* Use of the share. `used_ns` and `min_share_used_ns` are totals, from which the siblings compute differences. */
    _Alignas(64) _Atomic uint64_t paid_ns; /* when all that its tenant used, as far as it knows, will have been
                                            * earned */
    _Atomic uint64_t paid_ppm;             /* the share at which it is earned */
    _Atomic uint64_t over_ns;              /* until when its tenant has used up its share; 0: it has not */
    _Atomic uint64_t part_ppm;             /* fraction of the device that its latest work occupies */
    _Atomic uint64_t used_ns;              /* charges minus refunds of this process */
    _Atomic uint64_t min_share_used_ns;    /* device time of its launches by the minimum share */
    _Alignas(64) struct ct_gate_requests requests;
    /* Its measured loss. All sums are signed, because only those of many waits are meaningful. */
    _Alignas(64) _Atomic uint64_t lost_ns; /* delay of its host's waits compared with running alone, next to
                                            * lower-priority work */
    _Atomic uint64_t loss_reports;         /* number of additions to lost_ns */
    _Atomic uint64_t owes_ns;              /* when the debt to higher-priority tenants ended at its last charge */
    _Atomic uint64_t min_share_ns;         /* use of the minimum share, as the instant when it will have been earned */
    _Atomic uint64_t admitted_until_ns;    /* its work that had to ask may run until then, see ct_loss_publish() */
    _Atomic uint64_t mapped_epoch;         /* it has mapped the pages of all processes attached up to this epoch */
    _Atomic uint64_t delayed_ns;           /* delay of its host's waits compared with running alone */
    _Atomic uint64_t undelayed_ns;         /* what the same waits would have taken alone, from the first launch on */
    _Atomic uint64_t measured_waits;       /* number of waits in these two sums */
    _Atomic uint64_t clean_wanted_ns;      /* since when it needs a wait next to which no lower-priority work runs, to
                                            * measure its loss; 0: it does not */
    _Atomic uint64_t ranks_ns;             /* since when a collective that this gate admits waits for other ranks; 0:
                                            * none does */
    /* Launches in parts, next to tenants of higher priority. */
    _Alignas(64) _Atomic uint64_t cut_launches, parts; /* launches that were cut, and all of their parts */
    _Atomic uint64_t whole_launches[CT_GATE_WHOLES];   /* by enum ct_gate_whole */
};
_Static_assert(sizeof(struct ct_gate_page) <= CT_GATE_PAGE_BYTES, "a gate page is one page");

/* ---- the tenant table's functions --------------------------------------------------------------------------------- */

/* Called by the node. Initializes an empty table; an existing one keeps its contents. Returns -1 if the memory is smaller
 * than CT_TABLE_BYTES. */
int ct_tenant_table_init(void *memory, size_t bytes);
void ct_tenant_table_write(struct ct_tenant_table *table, const struct ct_gate_rules *rules);

int ct_tenant_table_check(const void *memory, size_t bytes); /* 0: a tenant table of this version */
/* Returns 0, or -1 if the table was rewritten during every attempt; the rules are then undefined. `writes` receives the
 * count that the rules belong to. */
int ct_tenant_table_read(const struct ct_tenant_table *table, struct ct_gate_rules *rules, uint64_t *writes);

/* A process in the tenant table. */
struct ct_process_id {
    uint32_t index, generation;
};
/* Lists the processes of a tenant. Returns their number, or -1 if the table was rewritten during every attempt. */
int ct_tenant_table_siblings(const struct ct_tenant_table *table, uint32_t tenant,
                             struct ct_process_id siblings[CT_PROCESSES]);

#endif
