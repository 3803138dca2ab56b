/* The actual loss of higher-priority tenants compared with the charged loss. A holder knows when its work should have
 * completed and when its host returned from the wait, so nothing needs to be measured for this. */
#include "gate/loss.h"

#include "gate/internal.h"

enum {
    PPM = 1000 * 1000,
    CLEAN_MAX = 16,              /* the mean covers about this many waits without lower-priority work */
    STANDARD_ERROR_DIVISOR = 3,  /* of that mean: its spread over the square root of their number */
    HISTORY_NS = 4 * 1000 * 1000, /* when more than this has been charged, the history is halved */
    PRIOR_NS = 100 * 1000,       /* until much more than this was charged, charges are assumed to be correct */
    IMPLAUSIBLE_NS = 64 * HISTORY_NS,
    CLEAN_WANTED = 512,      /* after this many overlapping waits in a row a wait without overlap is wanted */
    OVERLAPPED_MAX = 4096,   /* after this many the mean without overlap is outdated */
    SCALE_MIN_PPM = PPM / 64, /* reports reduce charges to this fraction at most */
    SCALE_MAX_PPM = 4 * PPM, /* and increase them by this factor at most */
};

static int ran_since(const struct ct_gate_page *page, uint64_t begin_ns, uint64_t now_ns)
{
    return plausible(load_relaxed(&page->admitted_until_ns), now_ns) >= begin_ns;
}

/* Returns whether work that had to ask was expected to run after an instant. */
static int asked_work_ran_since(const struct ct_gate *gate, uint64_t begin_ns, uint64_t now_ns)
{
    for (uint32_t i = 0; i < gate->peer_count; i++)
        if (load_acquire(&gate->peers[i].page->generation) == gate->peers[i].generation &&
            ran_since(gate->peers[i].page, begin_ns, now_ns))
            return 1;
    for (uint32_t i = 0; i < gate->higher_count; i++)
        if (load_acquire(&gate->higher[i].page->generation) == gate->higher[i].generation &&
            ran_since(gate->higher[i].page, begin_ns, now_ns))
            return 1;
    return ran_since(gate->mine, begin_ns, now_ns);
}

/* Adds a wait to the sums from which lower-priority tenants compute the mean loss. */
static void measure_wait(struct ct_gate_page *mine, int64_t delay_ns, uint64_t span_ns)
{
    const int64_t undelayed_ns = (int64_t)span_ns - delay_ns;
    add_single_writer(&mine->delayed_ns, (uint64_t)delay_ns);
    add_single_writer(&mine->undelayed_ns, undelayed_ns > 0 ? (uint64_t)undelayed_ns : 0);
    add_single_writer(&mine->measured_waits, 1);
}

void ct_loss_drained(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_gate_burst *burst = &gate->burst;
    const uint64_t begin_ns = burst->begin_ns, waits_ns = load_relaxed(&gate->mine->waits_ns);
    const uint64_t due_ns = max_u64(burst->end_ns, waits_ns);
    burst->begin_ns = burst->end_ns = 0;
    /* A host that did not wait lost nothing that counts; a difference beyond the horizon is implausible. */
    if (!begin_ns || !waits_ns || burst->has_unknown || sat_sub_u64(due_ns, now_ns) > CT_GATE_HORIZON_NS ||
        sat_sub_u64(now_ns, due_ns) > CT_GATE_HORIZON_NS)
        return;
    const int64_t late_ns = (int64_t)(now_ns - due_ns);
    const uint64_t span_ns = sat_sub_u64(now_ns, begin_ns);
    if (!asked_work_ran_since(gate, begin_ns, now_ns)) {
        burst->clean_count += burst->clean_count < CLEAN_MAX;
        const int64_t apart_ns = late_ns > burst->clean_ns ? late_ns - burst->clean_ns : burst->clean_ns - late_ns;
        burst->spread_ns = burst->clean_count == 1 ? 0
            : burst->spread_ns + (apart_ns - burst->spread_ns) / (int64_t)(burst->clean_count - 1);
        burst->clean_ns += (late_ns - burst->clean_ns) / (int64_t)burst->clean_count;
        burst->overlapped = 0;
        store_relaxed(&gate->mine->clean_wanted_ns, 0);
        measure_wait(gate->mine, 0, span_ns);
        return;
    }
    if (++burst->overlapped == CLEAN_WANTED || (!burst->clean_count && burst->overlapped % CLEAN_WANTED == 1))
        store_relaxed(&gate->mine->clean_wanted_ns, now_ns);
    if (!burst->clean_count || burst->overlapped >= OVERLAPPED_MAX)
        return; /* what its waits take without overlap is not known, or no longer */
    /* The mean of few waits of varying length may be too high by about its standard error, for many waits in a row. */
    const int64_t delay_ns = late_ns - (burst->clean_ns - burst->spread_ns / STANDARD_ERROR_DIVISOR);
    add_single_writer(&gate->mine->lost_ns, (uint64_t)delay_ns);
    add_single_writer(&gate->mine->loss_reports, 1);
    measure_wait(gate->mine, delay_ns, span_ns);
}

uint64_t ct_loss_reported(const struct ct_gate_peer *peer)
{
    return load_acquire(&peer->page->generation) == peer->generation ? load_relaxed(&peer->page->lost_ns) : 0;
}

/* Returns whether all higher-priority tenants that launched since the last update have reported their loss since. */
static int have_reported(const struct ct_gate *gate)
{
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        const struct ct_gate_peer *peer = &gate->higher[i];
        if (load_acquire(&peer->page->sequence) != peer->loss_sequence &&
            load_relaxed(&peer->page->loss_reports) == peer->loss_reports)
            return 0;
    }
    return 1;
}

/* Adds the latest amounts to the history and computes the ratio of actual to charged loss. */
static void update_scale(struct ct_gate_scale *scale, int64_t lost_ns, int64_t charged_ns)
{
    scale->lost_ns += lost_ns;
    scale->charged_ns += charged_ns;
    /* Reports without charges have no effect beyond this, and must not overflow in the long run. */
    scale->lost_ns = scale->lost_ns > IMPLAUSIBLE_NS ? IMPLAUSIBLE_NS : scale->lost_ns;
    scale->lost_ns = scale->lost_ns < -IMPLAUSIBLE_NS ? -IMPLAUSIBLE_NS : scale->lost_ns;
    if (scale->charged_ns > HISTORY_NS) {
        scale->lost_ns /= 2;
        scale->charged_ns /= 2;
    }
    const int64_t actual_ns = scale->lost_ns + PRIOR_NS;
    const uint64_t estimated_us = (uint64_t)(scale->charged_ns + PRIOR_NS) / 1000;
    const uint64_t ppm = actual_ns <= 0 ? 0 : (uint64_t)actual_ns * 1000 / estimated_us;
    scale->ppm = min_u64(max_u64(ppm, SCALE_MIN_PPM), SCALE_MAX_PPM);
}

void ct_loss_update(struct ct_gate *gate)
{
    struct ct_gate_scale *scale = &gate->scale;
    const uint64_t sum_ns = load_relaxed(&gate->arbitration->charged_ns);
    uint64_t reported_ns = 0;
    for (uint32_t i = 0; i < gate->higher_count; i++)
        reported_ns += ct_loss_reported(&gate->higher[i]) - gate->higher[i].lost_ns;
    const int64_t lost_ns = (int64_t)reported_ns;
    const int64_t charged_ns = (int64_t)(sum_ns - scale->charged_sum_ns);
    /* A sum that jumps is corrupt; and a tenant that has not reported for long is ignored. */
    const int is_implausible = charged_ns < 0 || charged_ns > IMPLAUSIBLE_NS || lost_ns > IMPLAUSIBLE_NS ||
        lost_ns < -IMPLAUSIBLE_NS;
    if (scale->is_begun && !is_implausible && !have_reported(gate))
        return;
    if (scale->is_begun && !is_implausible)
        update_scale(scale, lost_ns, charged_ns);
    else
        *scale = (struct ct_gate_scale){.is_begun = 1, .ppm = PPM};
    scale->charged_sum_ns = sum_ns;
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        gate->higher[i].lost_ns = ct_loss_reported(&gate->higher[i]);
        gate->higher[i].loss_reports = load_relaxed(&gate->higher[i].page->loss_reports);
        gate->higher[i].loss_sequence = load_acquire(&gate->higher[i].page->sequence);
    }
}

uint64_t ct_loss_scaled(const struct ct_gate *gate, uint64_t estimated_ns)
{
    if (!gate->scale.ppm || estimated_ns > UINT64_MAX / PPM)
        return estimated_ns;
    return max_u64(estimated_ns * gate->scale.ppm / PPM, estimated_ns != 0);
}
