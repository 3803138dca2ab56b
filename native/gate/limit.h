/* Shares of the device: how much a tenant may use, and which tenants of equal priority are still entitled to time. */
#ifndef COTENANT_GATE_LIMIT_H
#define COTENANT_GATE_LIMIT_H

#include "gate/internal.h"

/* Tuned constants; docs/concepts/shares.md describes the measurements behind each. */
enum {
    CT_LIMIT_AHEAD_NS = 4 * 1000 * 1000,                      /* a limited tenant runs ahead by this much, then waits
                                                               * for all of it at once */
    CT_LIMIT_WINDOW_NS = 100 * 1000 * 1000,                   /* time that was not used for this long is lost */
    CT_LIMIT_HELD_MAX_NS = 1000 * 1000 * 1000,                /* except for up to twice this much delay caused by
                                                               * tenants of equal priority */
    CT_LIMIT_HELD_FOR_NS = 2000 * 1000 * 1000,                /* for how long such a delay is remembered */
    CT_LIMIT_LATE_NS = 10 * 1000 * 1000,                      /* work that a host waits for completes at most this much
                                                               * later than predicted */
    CT_LIMIT_SLEEPER_NS = CT_GATE_SLEEP_MAX_NS + 1000 * 1000, /* a tenant that has not asked for longer than this is not
                                                               * merely asleep */
    CT_LIMIT_RECHECK_NS = 1000 * 1000,                        /* sleep of a tenant that waits for tenants of equal
                                                               * priority, unless it is woken */
    CT_LIMIT_POLL_NS = 250 * 1000,                            /* polling interval for the completion of work that should
                                                               * have ended */
    CT_LIMIT_MIN_PART_PPM = 250 * 1000,                       /* work that occupies less of the device is submitted no
                                                               * further ahead than this fraction */
    CT_LIMIT_WAIT_FACTOR = 16,                                /* a tenant without a share waits for this multiple of its
                                                               * kernel's length, plus CT_GATE_STUCK_NS */
    CT_LIMIT_WHOLE_PPM = 1000 * 1000,
    CT_LIMIT_ROUNDING_PPM = 20 * 1000, /* SMs are assigned in whole numbers */
};

/* Returns whether this tenant or one of equal priority has a share. */
int ct_limit_must_ask(const struct ct_gate *gate);

/* Returns 0 if the shares permit the launch, or the reason to wait, with the instant to ask again. `is_active`: a
 * higher-priority tenant is active; then its gaps decide who runs, and no tenant defers to an equal one. */
uint32_t ct_limit_ask(struct ct_gate *gate, const struct ct_launch_request *request, int is_active, uint64_t since_ns,
                      uint64_t now_ns, uint64_t *until_ns);

/* Return whether the submitted work forbids another launch, and when to check again. */
int ct_limit_is_full(const struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns);
uint64_t ct_limit_retry_at(const struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns);

/* Records that work of this tenant completed later than it would have alone, or still has not, because of tenants of
 * equal priority. */
void ct_limit_held(struct ct_gate *gate, uint64_t held_ns, uint64_t now_ns);

/* Returns what a launch counts against the share: its device time times the fraction of the device that it uses. */
static inline uint64_t ct_limit_use(const struct ct_gate *gate, const struct ct_launch_request *request)
{
    const uint64_t part_ppm = sat_sub_u64(CT_LIMIT_WHOLE_PPM, request->free_ppm);
    return min_u64(weight_of(gate, request->expect_ns), CT_GATE_HORIZON_NS) * part_ppm / CT_LIMIT_WHOLE_PPM;
}

/* Charges an amount of use. */
void ct_limit_charge_use(struct ct_gate *gate, uint64_t use_ns, uint64_t now_ns);
/* Charge the expected use of a launch that passes, unless it is lent, and refund it if the launch does not happen. */
void ct_limit_charge(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns);
void ct_limit_refund(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns);

#endif
