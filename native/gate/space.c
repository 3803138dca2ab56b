/* Sharing in space: how many SMs a lower-priority launch may occupy next to an active holder.
 *
 * The part of the SMs is controlled like the window of a congestion control: it grows while the holders' own measurements
 * show less loss than they may have, and shrinks in proportion when they show more. A part that is too small to be
 * useful is zero, and time alone decides; it is tried again after a wait that doubles with each failure. Every
 * lower-priority process decides for itself from the same measurements. */
#include "gate/space.h"

#include "gate/debt.h"
#include "gate/internal.h"

enum {
    PPM = 1000 * 1000,
    PERIOD_NS = 20 * 1000 * 1000,  /* the shortest time between two evaluations */
    WAITS_MIN = 8,                 /* waits of holders that an evaluation needs */
    FEW_WAITS_NS = 500 * 1000 * 1000, /* after this long, fewer waits suffice */
    SILENT_NS = 2000 * 1000 * 1000,   /* holders that launch and report nothing for this long count as harmed */
    SMALLEST_PPM = PPM / 20,       /* a smaller part of the SMs is of no use */
    GROWTH_MAX_PPM = 3 * PPM / 2,  /* the largest increase of one evaluation */
    GROWTH_MIN_PPM = PPM / 100,
    OVERDUE_DIVISOR = 4,           /* a request that takes longer than the mean takes this part of it more */
    SHRINK_MIN_PPM = PPM / 2,      /* the largest decrease of one evaluation */
    TOLERANCE_DIVISOR = 8,         /* a loss this close to the permitted one changes nothing */
    WHOLE_FROM_PPM = 95 * PPM / 100, /* a larger part is the whole device */
    DUTY_WEIGHT = 16,              /* the mean activity of holders covers about this many periods, */
    DUTY_PERIODS_MIN = 4,          /* and says something from this many on */
    BUSY_PPM = 40 * PPM / 100,     /* holders that are active for more than this leave little idle time, */
    IDLE_PPM = 30 * PPM / 100,     /* and for less than this much */
    LOSSES_PER_REQUEST = 4,        /* a request may meet this many launches that delay it for their whole time */
    REQUESTS_MIN = 16,             /* requests of a holder from which their mean length is computed */
};
static const uint64_t RETRY_MIN_NS = UINT64_C(1000000000), RETRY_MAX_NS = UINT64_C(60000000000);

/* The sums over all holders; they wrap around, and differences are signed. */
struct totals {
    uint64_t delayed_ns, undelayed_ns, waits, launches;
};

static struct totals totals_of(const struct ct_gate *gate)
{
    struct totals totals = {0};
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        const struct ct_gate_page *page = gate->higher[i].page;
        if (load_acquire(&page->generation) != gate->higher[i].generation)
            continue;
        totals.delayed_ns += load_relaxed(&page->delayed_ns);
        totals.undelayed_ns += load_relaxed(&page->undelayed_ns);
        totals.waits += load_relaxed(&page->measured_waits);
        totals.launches += load_acquire(&page->sequence);
    }
    return totals;
}

static int is_possible(const struct ct_gate *gate)
{
    return gate->is_mps && gate->policy == CT_GATE_FILL && gate->delay_ppm && gate->higher_count && !gate->is_ending;
}

static void begin_evaluation(struct ct_gate_space *space, const struct totals *totals, uint64_t now_ns)
{
    space->from_ns = now_ns;
    space->delayed_ns = totals->delayed_ns;
    space->undelayed_ns = totals->undelayed_ns;
    space->waits = totals->waits;
    space->launches = totals->launches;
}

/* Sets the part of the SMs. One that is too small is tried again later. */
static void set_part(struct ct_gate *gate, uint64_t sm_ppm, uint64_t now_ns)
{
    struct ct_gate_space *space = &gate->space;
    if (sm_ppm >= max_u64(SMALLEST_PPM, gate->sm_step_ppm)) {
        space->sm_ppm = min_u64(sm_ppm, PPM);
        return;
    }
    space->sm_ppm = 0;
    space->retry_wait_ns = min_u64(max_u64(2 * space->retry_wait_ns, RETRY_MIN_NS), RETRY_MAX_NS);
    space->retry_ns = sat_add_u64(now_ns, space->retry_wait_ns);
    space->failed_delay_ppm = gate->delay_ppm;
}

/* Begins with the smallest part if it has not failed recently, or not with so large a permitted loss. */
static void try_again(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_gate_space *space = &gate->space;
    const int is_permitted_more = gate->delay_ppm > space->failed_delay_ppm + space->failed_delay_ppm / 4;
    if ((now_ns < space->retry_ns && !is_permitted_more) || ct_gate_idle_first_until(gate) > now_ns)
        return;
    if (is_permitted_more)
        space->retry_wait_ns = 0;
    set_part(gate, 2 * max_u64(SMALLEST_PPM, gate->sm_step_ppm), now_ns);
}

/* Returns the part of the SMs after holders have lost `loss_ppm` of the time that their work takes alone. */
static uint64_t next_part(uint64_t sm_ppm, uint64_t loss_ppm, uint64_t permitted_ppm)
{
    const uint64_t tolerance_ppm = permitted_ppm / TOLERANCE_DIVISOR;
    if (loss_ppm > permitted_ppm)
        return sm_ppm * max_u64(permitted_ppm * PPM / loss_ppm, SHRINK_MIN_PPM) / PPM;
    if (loss_ppm > permitted_ppm - 2 * tolerance_ppm)
        return sm_ppm;
    const uint64_t factor_ppm = loss_ppm ? min_u64(permitted_ppm * PPM / loss_ppm, GROWTH_MAX_PPM) : GROWTH_MAX_PPM;
    /* Half of the way: the loss grows faster than the part. */
    return max_u64(sm_ppm * ((PPM + factor_ppm) / 2) / PPM, sm_ppm + GROWTH_MIN_PPM);
}

static void evaluate(struct ct_gate *gate, const struct totals *totals, uint64_t now_ns)
{
    struct ct_gate_space *space = &gate->space;
    const int64_t delayed_ns = (int64_t)(totals->delayed_ns - space->delayed_ns);
    const uint64_t undelayed_us = min_u64(totals->undelayed_ns - space->undelayed_ns, CT_GATE_HORIZON_NS) / 1000;
    const uint64_t lost_ns = delayed_ns > 0 ? min_u64((uint64_t)delayed_ns, CT_GATE_HORIZON_NS) : 0;
    if (gate->idle_debt_ns > space->from_ns) /* the same loss buys more device time while holders are idle */
        set_part(gate, space->sm_ppm / 2, now_ns);
    else if (undelayed_us)
        set_part(gate, next_part(space->sm_ppm, lost_ns * 1000 / undelayed_us, gate->delay_ppm), now_ns);
    if (space->sm_ppm)
        space->retry_wait_ns -= space->retry_wait_ns / 8;
    begin_evaluation(space, totals, now_ns);
}

void ct_space_restart(struct ct_gate *gate)
{
    gate->space.from_ns = 0;
}

/* Computes the mean length of the recent requests of each holder. */
static void follow_requests(struct ct_gate *gate)
{
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        struct ct_gate_peer *peer = &gate->higher[i];
        const uint64_t ended = load_relaxed(&peer->page->requests.ended), sum_ns = load_relaxed(&peer->page->requests.sum_ns);
        const uint64_t count = ended - peer->requests_ended;
        if (count < REQUESTS_MIN || load_acquire(&peer->page->generation) != peer->generation)
            continue;
        peer->request_ns = min_u64((sum_ns - peer->requests_sum_ns) / count, CT_GATE_HORIZON_NS);
        peer->requests_ended = ended;
        peer->requests_sum_ns = sum_ns;
    }
}

/* Follows for which part of the time holders are active. If they pause often, work in the pauses costs them less: work
 * next to them takes from every request, and an SM-limited kernel still runs when the pause begins. */
static void follow_duty(struct ct_gate *gate)
{
    struct ct_gate_space *space = &gate->space;
    const int64_t apart_ppm = (int64_t)min_u64(gate->duty_ppm, PPM) - (int64_t)space->duty_ppm;
    space->duty_periods += space->duty_periods < DUTY_WEIGHT;
    space->duty_ppm = (uint64_t)((int64_t)space->duty_ppm + apart_ppm / (int64_t)space->duty_periods);
    if (space->duty_periods < DUTY_PERIODS_MIN)
        return;
    if (space->duty_ppm > BUSY_PPM)
        space->is_worth_sharing = 1;
    else if (space->duty_ppm < IDLE_PPM)
        space->is_worth_sharing = 0;
}

void ct_space_update(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_gate_space *space = &gate->space;
    if (sat_sub_u64(now_ns, space->requests_ns) >= PERIOD_NS) {
        space->requests_ns = now_ns;
        follow_requests(gate);
        follow_duty(gate);
    }
    if (!is_possible(gate)) {
        space->sm_ppm = 0;
        return;
    }
    if (gate->sm_ppm <= PPM) { /* the node states the part: none with an objective, unless --sms fixes it */
        space->sm_ppm = gate->sm_ppm >= max_u64(SMALLEST_PPM, gate->sm_step_ppm) ? gate->sm_ppm : 0;
        space->from_ns = 0;
        return;
    }
    if (!space->is_worth_sharing) {
        space->sm_ppm = space->from_ns = 0;
        return;
    }
    const uint64_t elapsed_ns = sat_sub_u64(now_ns, space->from_ns);
    if (space->from_ns && elapsed_ns < PERIOD_NS)
        return;
    const struct totals totals = totals_of(gate);
    if (!space->from_ns) {
        begin_evaluation(space, &totals, now_ns);
        return;
    }
    const uint64_t waits = totals.waits - space->waits;
    if (!space->sm_ppm) {
        try_again(gate, now_ns);
        begin_evaluation(space, &totals, now_ns);
    } else if (waits >= WAITS_MIN || (waits && elapsed_ns >= FEW_WAITS_NS)) {
        evaluate(gate, &totals, now_ns);
    } else if (elapsed_ns >= SILENT_NS) {
        if (totals.launches != space->launches)
            set_part(gate, space->sm_ppm / 2, now_ns);
        begin_evaluation(space, &totals, now_ns);
    }
}

/* Returns whether the node states the part of the SMs, with an objective or because --sms fixes it. */
static int is_stated(const struct ct_gate *gate)
{
    return gate->sm_ppm <= PPM && gate->sm_step_ppm;
}

int ct_space_needs_losses(const struct ct_gate *gate)
{
    return !is_possible(gate) || !is_stated(gate);
}

int ct_space_is_open(const struct ct_gate *gate)
{
    return is_possible(gate) && (gate->space.sm_ppm || is_stated(gate));
}

int ct_space_prefers_idle(const struct ct_gate *gate)
{
    return is_possible(gate) && !ct_space_is_open(gate) && gate->space.duty_periods >= DUTY_PERIODS_MIN &&
        !gate->space.is_worth_sharing;
}

/* Returns for how long holders are expected to remain active: until their present requests end. */
static uint64_t remaining_activity(const struct ct_gate *gate, uint64_t *request_ns, uint64_t now_ns)
{
    uint64_t longest_ns = 0;
    *request_ns = 0;
    for (uint32_t i = 0; i < gate->higher_count; i++) {
        const struct ct_gate_peer *peer = &gate->higher[i];
        const uint64_t began_ns = load_relaxed(&peer->page->requests.began_ns);
        if (!began_ns || load_acquire(&peer->page->generation) != peer->generation)
            continue;
        const uint64_t elapsed_ns = sat_sub_u64(now_ns, began_ns);
        const uint64_t rest_ns = max_u64(sat_sub_u64(peer->request_ns, elapsed_ns), peer->request_ns / OVERDUE_DIVISOR);
        longest_ns = max_u64(longest_ns, rest_ns);
        *request_ns = max_u64(*request_ns, peer->request_ns);
    }
    return longest_ns;
}

/* Returns whether a limited launch gains more than it costs. Until its end, which may be after the holders have become
 * idle, the tenant's own next launches wait: they could have used all SMs. */
static int is_worthwhile(const struct ct_gate *gate, uint64_t length_ns, uint64_t limit_ppm, uint64_t now_ns)
{
    uint64_t request_ns;
    const uint64_t rest_ns = remaining_activity(gate, &request_ns, now_ns);
    const uint64_t duty_ppm = min_u64(max_u64(gate->duty_ppm, 1), PPM);
    const uint64_t idle_ns = request_ns * (PPM - duty_ppm) / duty_ppm;
    if (duty_ppm >= WHOLE_FROM_PPM || length_ns <= rest_ns)
        return 1;
    const uint64_t wasted_ns = min_u64(length_ns - rest_ns, idle_ns) * (PPM - limit_ppm) / PPM;
    return request_ns && min_u64(length_ns, rest_ns) * limit_ppm / PPM >= wasted_ns;
}

/* Returns the multiple of the step that is nearest below the part, and at least one. */
static uint64_t limit_of(const struct ct_gate *gate, uint64_t sm_ppm)
{
    return max_u64(sm_ppm / gate->sm_step_ppm, 1) * gate->sm_step_ppm;
}

/* Limits a launch that would occupy `part_ppm` of the SMs: it takes longer. */
static void limit(struct ct_launch_request *request, uint64_t part_ppm, uint64_t limit_ppm)
{
    request->sm_ppm = (uint32_t)limit_ppm;
    request->free_ppm = (uint32_t)sat_sub_u64(PPM, limit_ppm);
    request->expect_ns = min_u64(request->expect_ns, CT_GATE_HORIZON_NS) * part_ppm / limit_ppm;
    request->upper_ns = min_u64(request->upper_ns, CT_GATE_HORIZON_NS) * part_ppm / limit_ppm;
}

void ct_space_limit_open(const struct ct_gate *gate, struct ct_launch_request *request)
{
    const uint64_t part_ppm = sat_sub_u64(PPM, request->free_ppm);
    if (gate->policy == CT_GATE_OPEN && gate->is_mps && gate->sm_step_ppm && gate->higher_count && gate->sm_ppm &&
        gate->sm_ppm < PPM && part_ppm > gate->sm_ppm)
        limit(request, part_ppm, limit_of(gate, gate->sm_ppm));
}

int ct_space_limit(const struct ct_gate *gate, struct ct_launch_request *request, uint64_t now_ns)
{
    const uint64_t part_ppm = sat_sub_u64(PPM, request->free_ppm), sm_ppm = gate->space.sm_ppm;
    request->sm_ppm = 0;
    if (!sm_ppm)
        return 0;
    if (sm_ppm >= WHOLE_FROM_PPM || part_ppm <= sm_ppm)
        return 1;
    if (!gate->sm_step_ppm || request->is_collective) /* its blocks may have to run at once */
        return 0;
    const uint64_t limit_ppm = limit_of(gate, sm_ppm);
    const uint64_t length_ns = min_u64(weight_of(gate, request->expect_ns), CT_GATE_HORIZON_NS) * part_ppm / limit_ppm;
    if (!is_worthwhile(gate, length_ns, limit_ppm, now_ns))
        return 0;
    limit(request, part_ppm, limit_ppm);
    return 1;
}

int ct_space_permits_loss(const struct ct_gate *gate, const struct ct_launch_request *request)
{
    uint64_t shortest_ns = CT_GATE_HORIZON_NS;
    for (uint32_t i = 0; i < gate->higher_count; i++)
        shortest_ns = min_u64(shortest_ns, gate->higher[i].request_ns);
    const uint64_t permitted_ppm = min_u64(gate->delay_ppm, 100 * (uint64_t)PPM);
    return weight_of(gate, request->expect_ns) <= shortest_ns * permitted_ppm / PPM / LOSSES_PER_REQUEST;
}

uint64_t ct_space_bound(const struct ct_gate *gate)
{
    return 2 * gate->bound_ns;
}
