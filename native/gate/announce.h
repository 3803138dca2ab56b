/* The words that a launch publishes. Inline, because every launch of every tenant stores them. */
#ifndef COTENANT_GATE_ANNOUNCE_H
#define COTENANT_GATE_ANNOUNCE_H

#include "gate/internal.h"
#include "gate/loss.h"

/* A late launch does not make a holder quiet: among many launches some are always late. */
enum { CT_ANNOUNCE_PATIENCE_MIN_NS = 250 * 1000, CT_ANNOUNCE_PATIENCE_SPREADS = 4 };
enum { CT_ANNOUNCE_LAG_NS = 100 * 1000, CT_ANNOUNCE_SAMPLES = 64, CT_ANNOUNCE_NEAR_BITS = 34 };
_Static_assert((3 * UINT64_C(1) << CT_ANNOUNCE_NEAR_BITS) < CT_GATE_HORIZON_NS, "three near durations are within the horizon");

/* Returns the sum of an instant and a duration, limited to the horizon beyond which readers ignore it. */
static inline uint64_t instant_after(uint64_t from_ns, uint64_t more_ns, uint64_t now_ns)
{
    return min_u64(sat_add_u64(from_ns, more_ns), sat_add_u64(now_ns, CT_GATE_HORIZON_NS));
}

/* Returns how long after the predicted launch the tenant counts as active. */
static inline uint64_t patience_of(const struct ct_gate *gate, uint64_t low_ns, uint64_t high_ns)
{
    if (__builtin_expect(high_ns && high_ns - low_ns <= CT_ANNOUNCE_PATIENCE_MIN_NS / CT_ANNOUNCE_PATIENCE_SPREADS, 1))
        return CT_ANNOUNCE_PATIENCE_MIN_NS;
    const uint64_t spread_ns = sat_sub_u64(high_ns, low_ns);
    uint64_t patience_ns = min_u64(spread_ns, gate->patience_ns) * CT_ANNOUNCE_PATIENCE_SPREADS;
    if (!high_ns || patience_ns > gate->patience_ns)
        patience_ns = gate->patience_ns;
    /* The launches of a host whose intervals vary by far more fall rarely into this time: waiting is of little use. */
    if (high_ns && gate->patience_ns && spread_ns > gate->patience_ns)
        patience_ns = gate->patience_ns / (spread_ns / gate->patience_ns);
    return max_u64(patience_ns, CT_ANNOUNCE_PATIENCE_MIN_NS);
}

/* Counts the time up to now for which the tenant was active: all of it up to its latest launch, and after it not more than
 * the announced work and the patience, because a host may simply stop. */
static inline void count_active(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    uint64_t counted_ns = load_relaxed(&mine->active_counted_ns);
    if (counted_ns && now_ns > counted_ns) {
        const uint64_t latest_ns = min_u64(max_u64(load_relaxed(&mine->at_ns), counted_ns), now_ns);
        const uint64_t max_ns = max_u64(sat_sub_u64(load_relaxed(&mine->busy_ns), latest_ns), gate->patience_ns);
        add_single_writer(&mine->active_ns, latest_ns - counted_ns + min_u64(now_ns - latest_ns, max_ns));
    }
    store_relaxed(&mine->active_counted_ns, now_ns);
}

/* Returns until when a launch counts as running if it is not seen to complete. A doubtful one cannot count forever: if
 * its host neither waits nor launches again, no event shows its end. */
static inline uint64_t unfinished_until(uint64_t expect_ns, uint64_t begin_ns, uint64_t now_ns)
{
    if (!expect_ns || expect_ns > CT_GATE_HORIZON_NS / CT_GATE_DOUBTFUL_FACTOR)
        return sat_add_u64(now_ns, CT_GATE_HORIZON_NS);
    return instant_after(begin_ns, CT_GATE_DOUBTFUL_FACTOR * expect_ns + CT_GATE_STUCK_NS, now_ns);
}

/* Compares the launch with the forecast that the latest one published. */
static inline void count_forecast(struct ct_gate_page *mine, uint64_t now_ns)
{
    const uint64_t due_ns = load_relaxed(&mine->next_ns), at_ns = load_relaxed(&mine->at_ns);
    if (due_ns <= at_ns || !at_ns) /* there was none */
        return;
    const int is_early = now_ns < due_ns;
    add_single_writer(&mine->counts.forecasts, 1);
    add_single_writer(&mine->counts.early, (uint64_t)is_early);
    add_single_writer(&mine->counts.miss_ns, is_early ? due_ns - now_ns : now_ns - due_ns);
}

/* What a launch announces; as in struct ct_launch_request, but at least one kernel. */
struct ct_announcement {
    uint64_t expect_ns, low_ns, high_ns;
    uint32_t kernel_count, is_doubtful;
};

/* The instants that a launch publishes. */
struct ct_announced {
    uint64_t busy_ns, next_ns, latest_ns, quiet_ns;
};

static __attribute__((noinline, unused)) struct ct_announced announced_far(const struct ct_gate *gate,
                                                                          struct ct_announcement launch,
                                                                          uint64_t begin_ns, uint64_t now_ns)
{
    const uint64_t next_ns = instant_after(now_ns, launch.low_ns, now_ns);
    return (struct ct_announced){
        .busy_ns = instant_after(begin_ns, launch.expect_ns, now_ns),
        .next_ns = next_ns,
        .latest_ns = instant_after(now_ns, launch.high_ns, now_ns),
        .quiet_ns = instant_after(next_ns, patience_of(gate, launch.low_ns, launch.high_ns), now_ns)};
}

/* Computes them for a launch that begins at `begin_ns`. No sum of durations below CT_ANNOUNCE_NEAR_BITS exceeds the horizon,
 * and such sums need not be limited; a host whose intervals differ by little has the smallest patience. */
static inline __attribute__((always_inline)) struct ct_announced announced_at(const struct ct_gate *gate,
                                                                              struct ct_announcement launch,
                                                                              uint64_t begin_ns, uint64_t now_ns)
{
    const uint64_t all_bits = launch.low_ns | launch.expect_ns | (begin_ns - now_ns);
    if (__builtin_expect(all_bits >> CT_ANNOUNCE_NEAR_BITS ||
                             launch.high_ns - launch.low_ns - 1 >=
                                 CT_ANNOUNCE_PATIENCE_MIN_NS / CT_ANNOUNCE_PATIENCE_SPREADS, 0))
        return announced_far(gate, launch, begin_ns, now_ns);
    const uint64_t next_ns = now_ns + launch.low_ns;
    return (struct ct_announced){.busy_ns = begin_ns + launch.expect_ns,
                                 .next_ns = next_ns,
                                 .latest_ns = now_ns + launch.high_ns,
                                 .quiet_ns = next_ns + CT_ANNOUNCE_PATIENCE_MIN_NS};
}

/* See ct_gate_announce(). Unless `must_count`, the active time may lag behind by CT_ANNOUNCE_LAG_NS, and the forecast of one
 * launch in about CT_ANNOUNCE_SAMPLES is evaluated; the nanoseconds of the present instant are as good as random. */
static inline __attribute__((always_inline)) void ct_announce(struct ct_gate *gate, struct ct_announcement launch,
                                                              int must_count, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    const uint64_t expect_ns = launch.expect_ns, begin_ns = max_u64(load_relaxed(&mine->busy_ns), now_ns);

    if (__builtin_expect(must_count || now_ns % CT_ANNOUNCE_SAMPLES == 0, 0))
        count_forecast(mine, now_ns);
    if (__builtin_expect(must_count || now_ns - load_relaxed(&mine->active_counted_ns) > CT_ANNOUNCE_LAG_NS, 0))
        count_active(gate, now_ns);
    add_single_writer(&mine->counts.launches, 1);
    add_single_writer(&mine->kernel_count, launch.kernel_count);
    add_single_writer(&mine->counts.device_ns, expect_ns);
    ct_loss_announced(gate, expect_ns, now_ns);
    if (__builtin_expect(!expect_ns || launch.is_doubtful, 0)) {
        if (!expect_ns) {
            gate->burst.has_unknown = 1;
            store_relaxed(&mine->unknown_ns, now_ns);
        }
        store_relaxed(&mine->unfinished_ns, unfinished_until(expect_ns, begin_ns, now_ns));
    }
    const struct ct_announced announced = announced_at(gate, launch, begin_ns, now_ns);
    const uint64_t sequence = load_relaxed(&mine->sequence) + 1;
    store_relaxed(&mine->recent_ns[sequence % CT_GATE_RECENT], now_ns);
    store_release(&mine->busy_ns, announced.busy_ns);
    store_release(&mine->next_ns, announced.next_ns);
    store_release(&mine->latest_ns, announced.latest_ns);
    if (__builtin_expect(load_relaxed(&mine->waits_ns) != 0, 0)) /* a load costs less than a store */
        store_release(&mine->waits_ns, 0);
    store_release(&mine->quiet_ns, announced.quiet_ns);
    store_release(&mine->at_ns, now_ns);
    store_release(&mine->sequence, sequence);
}

#endif
