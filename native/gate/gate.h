/* Launch admission: a pure state machine over shared pages, without CUDA, clock, allocation or system calls.
 *
 * Every process announces its launches in its own page. A tenant without higher-priority tenants passes at once. While a
 * higher-priority tenant (the holder) is active, a kernel passes if it fits into a gap that the holder is expected to
 * leave; while none is active, it passes within a bound. If holders return early, what they lose is recorded as a debt,
 * and while there is a debt lower-priority tenants wait. Therefore the loss is bounded however inaccurate the forecasts
 * are. See docs/concepts/gate.md. */
#ifndef COTENANT_GATE_GATE_H
#define COTENANT_GATE_GATE_H

#include "gate/forecast.h"
#include "gate/gang.h"
#include "gate/pages.h"

/* Tuned constants; docs/concepts/gate.md describes the measurements behind each. */
enum {
    CT_GATE_LEAD_NS = 60 * 1000,        /* work submitted ahead so that the device does not idle while a waiting process
                                         * wakes up */
    CT_GATE_DEPTH_NS = 100 * 1000,      /* short kernels that may be submitted at once into a gap */
    CT_GATE_WAKE_NS = 50 * 1000,        /* the wake-up delay on an idle machine is rarely longer, so a process sleeps
                                         * this much less */
    CT_GATE_ASK_TIMEOUT_NS = 50 * 1000, /* a tenant that has not asked for this long sleeps, or is dead */
    CT_GATE_CLAIM_NS = 20 * 1000,       /* a claim that is not released expires after this time */
    CT_GATE_CLAIM_REFUSED_MAX_NS = 2 * 1000 * 1000, /* a process that was refused the claim for this long ignores it */
    CT_GATE_CLAIM_REFUSALS = 64,                    /* if it was refused at least this often without a break */
    CT_GATE_CLAIM_IGNORED_NS = 1000 * 1000 * 1000,  /* and does so for this long */
    CT_GATE_LOWER_BUSY_MAX_NS = 250 * 1000 * 1000,  /* the work of a lower-priority process no longer counts if this
                                                     * process has waited this long and has seen work all the time */
    CT_GATE_LOWER_BUSY_LOOK_NS = 20 * 1000 * 1000,  /* decisions further apart say nothing about the time between them */
    CT_GATE_LOWER_BUSY_FORGET = 16,                 /* such time reduces the wait that counts, by one part in so many */
    CT_GATE_SLEEP_MAX_NS = 5 * 1000 * 1000,
    CT_GATE_WAITED_LONG_NS = 10 * 1000 * 1000, /* a launch that has waited this long no longer defers to tenants of
                                                * equal priority, and may go even if its length is unknown */
    CT_GATE_SPARE_NS = 20 * 1000 * 1000,       /* unused budget of higher-priority tenants is kept for this long */
    CT_GATE_BURST_NS = 30 * 1000 * 1000,       /* a debt up to this has no effect */
    CT_GATE_HARD_DEBT_NS = 120 * 1000 * 1000,  /* a debt above this closes gaps too */
    CT_GATE_IDLE_FIRST_NS = 500 * 1000 * 1000, /* after a debt has closed the gate while holders were idle, nothing is
                                                * spent while they are active for this long */
    CT_GATE_CLOSED_NS = 2000 * 1000 * 1000,    /* the debt of any loss if higher-priority tenants may lose nothing */
    CT_GATE_DOUBTFUL_FACTOR = 16,              /* work that is not seen to complete counts as running for this multiple
                                                * of its expected time, plus CT_GATE_STUCK_NS */
    CT_GATE_STUCK_NS = 100 * 1000 * 1000,      /* if nothing has ended for this long, it possibly depends on the launch
                                                * that waits */
};

enum {
    CT_GATE_DUTY_NS = 20 * 1000 * 1000, /* period over which the activity of higher-priority tenants is measured */
    CT_GATE_DUTY_START_PPM = 300 * 1000, /* what it is taken to be before it has been measured */
    CT_GATE_DUTY_MIN_PPM = 30 * 1000, /* a tenant that is rarely active is assumed to be active for at least this
                                        * fraction */
};

enum { CT_GATE_DELAY_MAX_PPM = 100 * 1000 * 1000 }; /* the largest permitted delay: a factor of one hundred */

/* The longest debt: at a permitted delay of 2 %, a loss of 1.2 s is charged in full. */
#define CT_GATE_DEBT_MAX_NS UINT64_C(60000000000)
/* The prediction horizon: an instant further ahead is corrupt or from another boot, and is ignored. */
#define CT_GATE_HORIZON_NS UINT64_C(60000000000)

enum ct_gate_reason {
    /* the launch passes, because */
    CT_GATE_TOP = 0,       /* there is no higher-priority tenant, or the policy is open */
    CT_GATE_FREE = 1,      /* no higher-priority tenant is active */
    CT_GATE_GAP = 2,       /* it fits into the gap */
    CT_GATE_MIN_SHARE = 3, /* the tenant has not yet used its minimum share */
    CT_GATE_RISK = 4,      /* it has waited long, and the budget of higher-priority tenants covers the loss */
    CT_GATE_STUCK = 5,     /* what was submitted before does not end */
    CT_GATE_CORUN = 6,     /* it can be preempted block by block, and the budget covers the expected cost */
    CT_GATE_LENT = 7,      /* the tenant has used its share, and no other tenant wants the rest */
    /* the launch waits, because */
    CT_GATE_BUSY = 8,     /* work of a higher-priority tenant is running */
    CT_GATE_TIGHT = 9,    /* it does not fit into the rest of the gap */
    CT_GATE_DUE = 10,     /* a higher-priority tenant may launch at any instant */
    CT_GATE_BOUND = 11,   /* the permitted amount of work is already submitted */
    CT_GATE_OTHER = 12,   /* a better candidate waits, or another tenant holds the claim */
    CT_GATE_PAUSED = 13,  /* the node has paused the tenant */
    CT_GATE_CHANGED = 14, /* a higher-priority tenant launched during the decision: ask again */
    CT_GATE_DEBT = 15,    /* higher-priority tenants have lost as much as they may */
    CT_GATE_LIMIT = 16,   /* the tenant has used its share */
    CT_GATE_SHARE = 17,   /* a tenant of equal priority has not had its share, and wants it */
    CT_GATE_CLEAN = 18,   /* a higher-priority tenant needs a wait without lower-priority work, to measure its loss */
    /* the launch passes as well, because */
    CT_GATE_SPACE = 19, /* it occupies a part of the SMs only, and higher-priority tenants lose no more than they may */
    CT_GATE_AGREED = 20, /* all ranks of its gang have agreed to launch the collective, and others launch it now */
    /* the launch waits as well, because */
    CT_GATE_GANG = 21, /* this gate admits the collective, and the other ranks of its gang have not come or must wait */
    CT_GATE_REASON_COUNT,
};
_Static_assert((int)CT_GATE_REASONS >= (int)CT_GATE_REASON_COUNT, "a tenant's page has a counter for every reason");

/* Another process, from the tenant table. */
struct ct_gate_peer {
    const struct ct_gate_page *page;
    uint64_t loss_reports, loss_sequence, lost_ns; /* number of its loss reports, its sequence number then, and the
                                                    * reported loss, as last read */
    uint64_t admission_sequence, latest_sequence; /* its sequence number at our last admission, and the latest one
                                                   * read */
    uint64_t opened_sequence; /* the same when this gate last admitted a collective that waits for other ranks */
    uint64_t requests_ended, requests_sum_ns; /* of higher priority: its totals when request_ns was computed */
    uint64_t lease_quiet_ns, lease_waits_ns;  /* its words when the lease was granted */
    uint64_t request_ns;                      /* and the mean length of its recent requests; 0: unknown */
    uint64_t used_ns, min_share_used_ns;          /* of a sibling: its totals as last read */
    uint64_t busy_looked_ns, busy_waited_ns; /* of lower priority: our latest decision, and for how long its page has
                                              * shown work at each of our decisions while we waited */
    uint32_t generation;
    uint32_t index, priority;
    uint32_t tenant;
    uint32_t first; /* the number of the first peer of the same tenant in the list */
    uint32_t limit_ppm;
    int is_paused;
    int is_sibling; /* another process of this tenant */
};

/* One process on one device. Not thread-safe. */
struct ct_gate {
    const struct ct_tenant_table *table;
    const void *processes;     /* the region of process pages, see gate/process.h */
    struct ct_gate_page *mine; /* the process's own page, or unlisted_page */
    struct ct_gate_page *page;
    struct ct_arbitration_page *arbitration;
    uint32_t index, generation;
    int is_mps; /* switching between processes is free; set by the caller once known */
    uint32_t sm_step_ppm; /* the caller can limit a launch to multiples of this part of the SMs; 0: it cannot */
    /* from the tenant table, as of `writes` */
    uint64_t writes;
    int must_ask, is_paused, has_entry;
    int is_ending;  /* at most one launch may be in flight, so that a kill does not find more */
    int must_claim; /* other processes must ask too: one decides at a time */
    uint32_t priority, tenant;
    uint64_t policy, bound_ns, delay_ppm, patience_ns, switch_ns, spin_ppm, sm_ppm, min_share_ppm, limit_ppm,
        ignored_priority_ppm;
    int must_share; /* this tenant or one of equal priority has a share */
    int is_static; /* never exceeds the limit, even if the device is idle */
    uint32_t higher_count, peer_count;
    uint32_t sibling_count; /* of the peers */
    struct ct_gate_peer higher[CT_PROCESSES]; /* of higher priority */
    struct ct_gate_peer peers[CT_PROCESSES];  /* of equal or lower priority, siblings included; they compete for the
                                               * same gaps */
    /* the tenant's account, of which each process has a replica */
    uint64_t paid_ns, paid_ppm;               /* when all that was used will have been earned, and at which share */
    uint64_t min_share_ns;                    /* the same for the minimum share */
    uint64_t siblings_used_ns, siblings_min_share_used_ns; /* used by siblings, not yet in the replica; signed */
    /* this process */
    uint64_t unconfirmed_ns, unconfirmed;       /* admitted while a higher-priority tenant exists, completion not yet
                                                 * observed */
    uint64_t ended_ns;                          /* when a completion was last observed, or the first launch was
                                                 * submitted */
    uint64_t charged_from_ns, charged_until_ns; /* our work for which higher-priority tenants may be charged; until 0:
                                                 * none */
    uint64_t granularity_ns;                    /* longest time that one of their kernels waits for that work; 0: until
                                                 * it ends */
    uint64_t duty_ppm;                          /* recent fraction of time in which higher-priority tenants were
                                                 * active */
    uint64_t duty_from_ns, duty_active_ns;      /* start of the measurement, and their total active time then */
    struct ct_gate_burst {
        uint64_t begin_ns, end_ns; /* work that the host has not waited for: start and expected end; 0: none */
        int has_unknown;           /* the length of some of it is unknown */
        int64_t clean_ns;          /* mean delay of the host's return from a wait while no lower-priority work ran */
        int64_t spread_ns;         /* mean distance of these delays from their mean */
        uint32_t clean_count;      /* number of such waits */
        uint32_t overlapped;       /* waits since then that overlapped with lower-priority work */
    } burst;
    struct ct_gate_scale {
        uint64_t charged_sum_ns; /* total of the arbitration page at the last update */
        int is_begun;
        int64_t lost_ns, charged_ns; /* recent amounts */
        uint64_t ppm;                /* actual loss as a fraction of the charged loss */
    } scale;
    struct ct_gate_space {
        uint64_t sm_ppm;                   /* the part of the SMs that may be used next to an active holder; 0: none */
        uint64_t from_ns;                  /* start of the evaluation in progress; 0: there is none */
        uint64_t delayed_ns, undelayed_ns; /* the sums of all holders then */
        uint64_t waits, launches;
        uint64_t requests_ns;             /* when the lengths of their requests were last computed */
        uint64_t duty_ppm;                /* mean fraction of time in which they were active */
        uint32_t duty_periods;            /* the periods that it covers */
        int is_worth_sharing;             /* they leave so little idle time that a part of the SMs is worth its cost */
        uint64_t retry_ns, retry_wait_ns; /* when to try again after a part that was too small, and how long that was */
        uint64_t failed_delay_ppm;        /* the permitted loss with which it was too small */
    } space;
    struct ct_gate_lease {                 /* see gate/lease.h */
        uint64_t until_ns;                 /* 0: there is none */
        uint64_t bound_ns, lead_ns;        /* work that may be in flight, and up to which a launch passes anyway */
        uint64_t used_ns, use_max_ns;      /* use of the share that is not charged yet, and how much may be */
        uint32_t reason;                   /* why its launches pass */
        int is_charged;                    /* its launches count against the share */
    } lease;
    struct ct_gang gang;               /* the ranks with which this process agrees on collectives */
    uint32_t opened_reason;            /* why this gate last admitted a collective that waits for other ranks */
    uint64_t owed_ns;                  /* lost by higher-priority tenants, not yet charged */
    int holder_returned;               /* a higher-priority tenant launched while that work ran: the work is charged to
                                        * its end */
    int has_switched;                  /* a launch of ours passed after the last one of a higher-priority tenant: no
                                        * context switch is needed */
    uint64_t spent_ns;                 /* budget that was spent, as an instant */
    uint64_t idle_debt_ns;             /* when a debt last kept a launch waiting although holders were idle */
    uint64_t spin_ns;                  /* spinning budget that was used, as an instant */
    uint64_t claim_refused_ns;         /* since when every attempt to take the claim was refused; 0: the last was not */
    uint64_t claim_refusals;           /* number of these attempts */
    uint64_t claim_ignored_ns;         /* until when the claim is ignored, because it was refused for too long */
    uint64_t held_ns, held_at_ns;      /* longest recent delay of our work by tenants of equal priority, and when it was
                                        * seen */
    int is_lent;                       /* the launch is not charged to the share, because no other tenant wants the
                                        * time */
    struct ct_gate_page unlisted_page; /* used while the process has no entry; not read by others */
    struct ct_gate_rules rules;        /* the table as last read; here because it is too large for the stack of a
                                        * program's thread */
    struct ct_gate_peer previous[CT_PROCESSES]; /* the peers before the table was read again; here for the same reason */
};

/* `processes` is the region of process pages, mapped for reading; `page` is the process's own gate page and
 * `arbitration` the arbitration page, both mapped for writing. The process is in the tenant table under this index and
 * generation. */
void ct_gate_open(struct ct_gate *gate, const struct ct_tenant_table *table, const void *processes,
                  struct ct_gate_page *page, struct ct_arbitration_page *arbitration, uint32_t index,
                  uint32_t generation);

/* Reads the tenant table again. */
void ct_gate_reread(struct ct_gate *gate);

/* Returns whether a launch must ask for admission. Reads the tenant table again if the node has changed it. */
static inline int ct_gate_must_ask(struct ct_gate *gate)
{
    if (__builtin_expect(load_acquire(&gate->table->writes) != gate->writes, 0))
        ct_gate_reread(gate);
    return gate->must_ask;
}

/* Returns the device's clock as the node measured it, as a fraction of the highest one; 0: unknown. */
static inline uint64_t ct_gate_clock_ppm(const struct ct_gate *gate)
{
    return load_relaxed(&gate->table->clock_ppm);
}

/* A launch and the predictions about it. */
struct ct_launch_request {
    uint64_t expect_ns;      /* expected device time; 0: unknown */
    uint64_t upper_ns;       /* device time that is rarely exceeded */
    uint64_t low_ns;         /* the host's next launch rarely follows earlier than this; 0: unknown */
    uint64_t high_ns;        /* the host's next launch rarely follows later than this */
    uint32_t may_fill;       /* 0: of unknown or too variable length to fill a gap */
    uint32_t kernel_count;   /* kernels in the launch, more than one for a graph; 0 means 1 */
    uint64_t granularity_ns; /* longest time that an arriving higher-priority kernel waits for this one because its
                              * blocks give way one by one (under MPS, if the other client has higher priority); 0:
                              * until it ends */
    uint32_t free_ppm;       /* fraction of the device that stays free while it runs; all of it for a copy */
    uint32_t is_doubtful;    /* the expected time may be wrong by much: the work counts until it is seen to complete */
    uint64_t blocks;         /* of a kernel that can be launched in parts: the blocks not launched yet; 0: it cannot */
    uint64_t wave_blocks;    /* how many of them the device runs at once; 0: unknown */
    uint32_t is_collective;  /* it runs until other kernels on other devices have run */
    uint32_t is_coupled;     /* a collective of which this process launches the kernels on other devices too, and so does not
                              * wait for the ranks of other processes */
    uint32_t is_agreed;      /* a coupled one that the process has launched on another device already: it passes */
    uint32_t is_probe;       /* it is not launched on this device now; see ct_gate_would_admit() */
    uint32_t sm_ppm;         /* set by ct_gate_admit(): the part of the SMs to which the launch must be limited; 0: all */
    uint64_t part_blocks;    /* set by ct_gate_admit(): how many blocks to launch now; 0: all. The rest is another
                              * launch, with a request of its own */
};

static inline uint32_t ct_gate_kernel_count(const struct ct_launch_request *request)
{
    return request->kernel_count ? request->kernel_count : 1;
}

/* Announces a launch that need not ask: stores to one cache line. A reader of the sequence number sees the earlier
 * stores. */
void ct_gate_announce(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns);

/* Withdraws the last announced launch, which did not have to ask and which the driver refused. */
void ct_gate_withdrawn(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns);

/* Records that events have shown the completion of all announced work of a process that need not ask. */
void ct_gate_completed(struct ct_gate *gate, uint64_t now_ns);

/* Records that the host enters a call that waits for the device or, if `is_drained`, returns from one that waited for
 * all work. */
void ct_gate_sync(struct ct_gate *gate, uint64_t low_ns, uint64_t high_ns, int is_drained, uint64_t now_ns);

/* Returns whether a process may sleep on the wake word; if so, a holder whose work has completed must wake it. */
int ct_gate_has_sleepers(const struct ct_gate *gate, uint64_t now_ns);
/* Returns how many threads to wake at most: as many as there are processes that may wait for this one. */
static inline uint32_t ct_gate_wake_limit(const struct ct_gate *gate)
{
    return gate->peer_count;
}

struct ct_gate_answer {
    uint32_t pass, reason;
    uint64_t until_ns; /* the latest instant at which to ask again */
};

/* Decides whether a launch may go now; `since_ns` is when it first asked. A launch that passes is announced before the
 * function returns. The caller then submits it and calls ct_gate_submitted(), and ct_gate_confirmed() when an event
 * shows its completion. If the launch passes with a limit of its SMs, or a part of its blocks passes, the request says so,
 * and its times are those with this limit and of this part. */
struct ct_gate_answer ct_gate_admit(struct ct_gate *gate, struct ct_launch_request *request, uint64_t since_ns,
                                  uint64_t now_ns);
/* Returns whether a collective that the process is about to launch on another device would pass here now. If so, its launch
 * on this device passes too, with `is_agreed`. */
int ct_gate_would_admit(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns);

void ct_gate_submitted(struct ct_gate *gate, const struct ct_launch_request *request, int is_submitted,
                       uint64_t now_ns);
void ct_gate_confirmed(struct ct_gate *gate, uint64_t expect_ns, uint64_t now_ns);
/* Extends the expected end of the submitted work, because no event has shown its completion in time. If a
 * higher-priority tenant has returned, the extension is added to its loss. */
void ct_gate_prolong(struct ct_gate *gate, uint64_t until_ns);
/* Corrects the share's accounting: work that was charged as `charged_ns` of device time has actually used `used_ns`. */
void ct_gate_measured(struct ct_gate *gate, uint64_t charged_ns, uint64_t used_ns, uint64_t now_ns);
/* Records that the launch no longer waits, so that other tenants stop deferring to this one. */
void ct_gate_waited(struct ct_gate *gate, uint64_t since_ns, uint64_t now_ns);

/* How to wait until the next call of ct_gate_admit(): sleep on the wake word until the first instant, then spin until
 * the second (0: not at all). Spinning is limited by a budget; the caller reports it with ct_gate_spun(). */
struct ct_gate_wait_plan {
    uint64_t sleep_until_ns, spin_until_ns;
};
struct ct_gate_wait_plan ct_gate_wait_plan(struct ct_gate *gate, const struct ct_gate_answer *answer, uint64_t now_ns);
void ct_gate_spun(struct ct_gate *gate, uint64_t spun_ns, uint64_t now_ns);
void ct_gate_slept(struct ct_gate *gate, uint64_t slept_ns);
/* Records a late wake-up. The tenant was not idle meanwhile, and catches up on its share. */
void ct_gate_overslept(struct ct_gate *gate, uint64_t late_ns, uint64_t now_ns);

#endif
