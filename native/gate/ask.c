/* May this kernel go now? What those above leave, what is submitted already, what may still be risked. */
#include "gate/gate.h"

#define LOAD(place) atomic_load_explicit(&(place), memory_order_relaxed)
#define SEE(place) atomic_load_explicit(&(place), memory_order_acquire)
#define STORE(place, value) atomic_store_explicit(&(place), (value), memory_order_relaxed)
#define ADD(place, more) STORE(place, LOAD(place) + (more))

enum { PPM = 1000 * 1000, PAUSE_LOOK_NS = 5 * 1000 * 1000, AGAIN_NS = 2 * 1000, WAITED_FOR_NS = 50 * 1000, MOST_PPM = 1000 * 1000, CHEAP = 4 };

static unsigned power_of(uint64_t ns)
{
    unsigned power = ns ? 63 - (unsigned)__builtin_clzll(ns) : 0;
    return power < CT_GATE_BUCKETS ? power : CT_GATE_BUCKETS - 1;
}

static uint64_t later(uint64_t one_ns, uint64_t other_ns)
{
    return one_ns > other_ns ? one_ns : other_ns;
}

static uint64_t left(uint64_t until_ns, uint64_t now_ns)
{
    return until_ns > now_ns ? until_ns - now_ns : 0;
}

/* An amount as the time in which it is earned at a rate. Nothing is ever earned at rate 0. */
static uint64_t earned_in(uint64_t amount_ns, uint64_t ppm)
{
    if (!ppm || amount_ns > UINT64_MAX / PPM)
        return CT_GATE_DEBT_MOST_NS;
    uint64_t time_ns = amount_ns * PPM / (ppm < MOST_PPM ? ppm : MOST_PPM);
    return time_ns < CT_GATE_DEBT_MOST_NS ? time_ns : CT_GATE_DEBT_MOST_NS;
}

/* ---- the debt --------------------------------------------------------------------------------------------------- */

/* An instant of another boot, or a scribble, must not close the gate for good. */
static uint64_t debt_of(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t debt_ns = left(LOAD(gate->floor->debt_ns), now_ns);
    return debt_ns <= CT_GATE_DEBT_MOST_NS ? debt_ns : 0;
}

static void charge(struct ct_gate *gate, uint64_t lost_ns, uint64_t now_ns)
{
    uint64_t debt_ns = LOAD(gate->floor->debt_ns), more_ns = earned_in(lost_ns, gate->delay_ppm), paid_ns;
    do {
        uint64_t owed_ns = left(debt_ns, now_ns);
        paid_ns = (owed_ns <= CT_GATE_DEBT_MOST_NS ? owed_ns : 0) + more_ns;
        paid_ns = now_ns + (paid_ns < CT_GATE_DEBT_MOST_NS ? paid_ns : CT_GATE_DEBT_MOST_NS);
    } while (!atomic_compare_exchange_weak_explicit(&gate->floor->debt_ns, &debt_ns, paid_ns, memory_order_relaxed,
                                                    memory_order_relaxed));
    ADD(gate->mine->counts.overruns, 1);
    ADD(gate->mine->counts.overrun_ns, lost_ns);
    ADD(gate->mine->counts.overrun[power_of(lost_ns)], 1);
}

/* When one above launched for the first time since our last admission; 0: it has not. Of many, the oldest known. */
static uint64_t came_back(struct ct_gate_peer *peer)
{
    uint64_t sequence = SEE(peer->page->sequence), first = peer->seen + 1;
    if (sequence == peer->seen || SEE(peer->page->generation) != peer->generation)
        return 0;
    if (sequence - peer->seen >= CT_GATE_RECENT)
        first = sequence - CT_GATE_RECENT + 2; /* the oldest may be overwritten while we look */
    peer->observed = sequence;
    return LOAD(peer->page->recent_ns[first % CT_GATE_RECENT]);
}

/* What those above lost since we last looked: from their first launch to the end of our work that ran then. */
static void settle(struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t first_ns = CT_GATE_NEVER;
    for (uint32_t i = 0; i < gate->above_count; i++) {
        struct ct_gate_peer *peer = &gate->above[i];
        uint64_t back_ns = came_back(peer);
        if (!back_ns)
            continue;
        peer->seen = peer->observed;
        if (back_ns < first_ns)
            first_ns = back_ns;
    }
    if (first_ns < gate->charged_until_ns)
        charge(gate, gate->charged_until_ns - first_ns, now_ns);
    if (first_ns != CT_GATE_NEVER) {
        gate->charged_until_ns = 0;
        gate->has_switched = 0;
    }
}

/* ---- what is seen of the others --------------------------------------------------------------------------------- */

struct sight {
    int is_active;     /* somebody above has work, or is expected back */
    uint64_t open_ns;  /* their work is over by then */
    uint64_t end_ns;   /* the first of them is expected back then at the earliest */
    uint64_t late_ns;  /* and hardly after then */
    uint64_t opens_ns; /* what it launches then is over by then, if it is like the last */
    uint64_t quiet_ns; /* all of them are quiet by then */
    uint64_t sequence[CT_GATE_SEATS];
};

static int is_asking(const struct ct_gate_page *page, uint64_t now_ns)
{
    return LOAD(page->wanted_ns) != 0 && left(now_ns, LOAD(page->asked_ns)) <= CT_GATE_LOOK_NS;
}

static void look_up(struct ct_gate *gate, uint64_t now_ns, struct sight *sight)
{
    sight->is_active = 0;
    sight->open_ns = sight->quiet_ns = now_ns;
    sight->end_ns = sight->late_ns = sight->opens_ns = CT_GATE_NEVER;
    for (uint32_t i = 0; i < gate->above_count; i++) {
        struct ct_gate_peer *peer = &gate->above[i];
        const struct ct_gate_page *page = peer->page;
        /* In the opposite order of the stores: a launch whose sequence is seen is seen with its words, or later ones. */
        peer->observed = sight->sequence[i] = SEE(page->sequence);
        if (!sight->sequence[i] || SEE(page->generation) != peer->generation)
            continue;
        uint64_t quiet_ns = SEE(page->quiet_ns), next_ns = SEE(page->next_ns), busy_ns = SEE(page->busy_ns);
        const uint64_t last_ns = left(busy_ns, LOAD(page->at_ns));
        /* Work that a host still waits for is not over, whatever was expected: others may have held it up. */
        if (LOAD(page->waits_ns) && busy_ns <= now_ns && now_ns < busy_ns + gate->patience_ns)
            busy_ns = now_ns + WAITED_FOR_NS;
        /* One that waits at the gate itself launches when it passes, not when it was expected to. */
        int is_expected = now_ns < quiet_ns && !is_asking(page, now_ns);
        if (!is_expected && busy_ns <= now_ns)
            continue;
        sight->is_active = 1;
        sight->open_ns = later(sight->open_ns, busy_ns);
        sight->quiet_ns = later(sight->quiet_ns, is_expected ? later(quiet_ns, busy_ns) : busy_ns);
        if (is_expected && next_ns < sight->end_ns) {
            sight->end_ns = next_ns;
            sight->late_ns = LOAD(page->late_ns);
            sight->opens_ns = next_ns + last_ns;
        }
    }
}

static int has_changed(struct ct_gate *gate, const struct sight *sight)
{
    for (uint32_t i = 0; i < gate->above_count; i++)
        if ((gate->above[i].observed = SEE(gate->above[i].page->sequence)) != sight->sequence[i])
            return 1;
    return 0;
}

/* Expected device time of what we and those beside us have submitted. */
static uint64_t submitted_by(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t sum_ns = left(LOAD(gate->mine->busy_ns), now_ns);
    for (uint32_t i = 0; i < gate->beside_count; i++)
        if (SEE(gate->beside[i].page->generation) == gate->beside[i].generation)
            sum_ns += left(LOAD(gate->beside[i].page->busy_ns), now_ns);
    return sum_ns;
}

/* Whether another kernel that waits goes first: by priority, then the longest that fits, then the lower slot. */
static int better_waits(const struct ct_gate *gate, uint64_t sure_ns, uint64_t room_ns, uint64_t now_ns)
{
    for (uint32_t part = 0; part < 2; part++) {
        const struct ct_gate_peer *peers = part ? gate->beside : gate->above;
        const uint32_t count = part ? gate->beside_count : gate->above_count;
        for (uint32_t i = 0; i < count; i++) {
            const struct ct_gate_peer *peer = &peers[i];
            if (peer->priority > gate->priority || SEE(peer->page->generation) != peer->generation ||
                !is_asking(peer->page, now_ns))
                continue;
            uint64_t its_ns = LOAD(peer->page->wanted_ns);
            if (its_ns <= room_ns && (peer->priority < gate->priority || its_ns > sure_ns ||
                                      (its_ns == sure_ns && peer->slot < gate->slot)))
                return 1;
        }
    }
    return 0;
}

/* ---- the claim: one of those beside each other decides at a time -------------------------------------------------- */

/* The lapse in units of 1,024 ns (40 bits: 13 days of them), generation (13 bits), slot and one. */
enum { CLAIM_SLOT_BITS = 11, CLAIM_GENERATION_BITS = 13, CLAIM_TICK_BITS = 10 };

static uint64_t claim_until(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t who = ((uint64_t)(gate->generation & ((1u << CLAIM_GENERATION_BITS) - 1)) << CLAIM_SLOT_BITS) |
                   ((gate->slot + 1) & ((1u << CLAIM_SLOT_BITS) - 1));
    uint64_t tick = ((now_ns + CT_GATE_CLAIM_NS) >> CLAIM_TICK_BITS) + 1;
    return (tick << (CLAIM_SLOT_BITS + CLAIM_GENERATION_BITS)) | who;
}

/* Forty bits of ticks wrap: compared as a distance. One that lies far ahead is a scribble or of another boot. */
static int has_lapsed(uint64_t claim, uint64_t now_ns)
{
    const unsigned shift = CLAIM_SLOT_BITS + CLAIM_GENERATION_BITS;
    int64_t ahead = (int64_t)(((claim >> shift) << shift) - ((now_ns >> CLAIM_TICK_BITS) << shift)) >> shift;
    return claim == 0 || ahead <= 0 || ahead > (CT_GATE_CLAIM_NS >> CLAIM_TICK_BITS) + 2;
}

static int take_claim(struct ct_gate *gate, uint64_t now_ns, uint64_t *claim)
{
    uint64_t before = atomic_load_explicit(&gate->floor->claim, memory_order_relaxed);
    *claim = claim_until(gate, now_ns);
    if (before == *claim || !has_lapsed(before, now_ns))
        return 0;
    return atomic_compare_exchange_strong_explicit(&gate->floor->claim, &before, *claim, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

static int give_claim(struct ct_gate *gate, uint64_t claim)
{
    return atomic_compare_exchange_strong_explicit(&gate->floor->claim, &claim, 0, memory_order_release,
                                                   memory_order_relaxed);
}

/* ---- the answers -------------------------------------------------------------------------------------------------- */

static struct ct_gate_answer wait_for(uint32_t reason, uint64_t until_ns)
{
    return (struct ct_gate_answer){.pass = 0, .reason = reason, .until_ns = until_ns};
}

/* Announces the kernel and writes down what is known of those above, so that what it costs them can be told later. */
static struct ct_gate_answer pass(struct ct_gate *gate, const struct ct_gate_wish *wish, uint32_t reason,
                                  const struct sight *sight, uint64_t now_ns)
{
    struct ct_gate_counts *counts = &gate->mine->counts;
    for (uint32_t i = 0; i < gate->above_count; i++) {
        if (gate->above[i].observed != sight->sequence[i])
            ADD(counts->stale, 1);
        gate->above[i].seen = sight->sequence[i];
    }
    ct_gate_announce(gate, wish, now_ns);
    STORE(gate->mine->wanted_ns, 0);
    gate->charged_until_ns = LOAD(gate->mine->busy_ns);
    gate->has_switched = 1;
    if (reason == CT_GATE_LEAST)
        gate->least_ns = later(gate->least_ns, now_ns) + earned_in(wish->expect_ns + 1, gate->least_ppm);
    if (reason == CT_GATE_LEAST || reason == CT_GATE_RISK)
        gate->charged_until_ns = 0; /* promised, or charged already */
    if (reason == CT_GATE_GAP)
        ADD(counts->filled_ns, wish->expect_ns);
    gate->unconfirmed++;
    gate->unconfirmed_ns += wish->expect_ns;
    ADD(counts->admitted, 1);
    ADD(counts->passed[reason], 1);
    return (struct ct_gate_answer){.pass = 1, .reason = reason, .until_ns = now_ns};
}

/* The last look before a pass. With others beside us it is under the claim, so that each sees what the other submitted. */
static struct ct_gate_answer pass_if_unchanged(struct ct_gate *gate, const struct ct_gate_wish *wish, uint32_t reason,
                                               const struct sight *sight, uint64_t submitted_ns, uint64_t now_ns)
{
    uint64_t claim = 0;
    if (gate->beside_count && !take_claim(gate, now_ns, &claim))
        return wait_for(CT_GATE_OTHER, now_ns + AGAIN_NS);
    if (has_changed(gate, sight) || (gate->beside_count && submitted_by(gate, now_ns) > submitted_ns)) {
        if (gate->beside_count)
            give_claim(gate, claim);
        return wait_for(CT_GATE_CHANGED, now_ns);
    }
    struct ct_gate_answer answer = pass(gate, wish, reason, sight, now_ns);
    if (gate->beside_count)
        give_claim(gate, claim); /* if it lapsed meanwhile, another may have passed too: one kernel more */
    return answer;
}

/* Nobody above is active. */
static struct ct_gate_answer ask_free(struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                                      uint64_t submitted_ns, uint64_t now_ns)
{
    uint64_t debt_ns = debt_of(gate, now_ns);
    if (debt_ns > CT_GATE_BURST_NS && gate->delay_ppm)
        return wait_for(CT_GATE_DEBT, now_ns + debt_ns - CT_GATE_BURST_NS);
    if (submitted_ns > CT_GATE_LEAD_NS && submitted_ns + wish->expect_ns > gate->bound_ns)
        return wait_for(CT_GATE_BOUND, now_ns + submitted_ns - CT_GATE_LEAD_NS);
    return pass_if_unchanged(gate, wish, CT_GATE_FREE, sight, submitted_ns, now_ns);
}

/* When those above can spare a loss. What costs little of what it is worth is paid out of what was saved up. What costs
 * more must have been earned since this kernel asked, and there must be no debt: the longer it waits, the worse a gap it
 * takes; so it takes about the best that comes by. */
static uint64_t spendable_at(const struct ct_gate *gate, uint64_t loss_ns, uint64_t worth_ns, uint64_t since_ns,
                             uint64_t now_ns)
{
    if (gate->policy != CT_GATE_FILL || !gate->delay_ppm)
        return CT_GATE_NEVER;
    const uint64_t earned_ns = earned_in(loss_ns, gate->delay_ppm), debt_ns = debt_of(gate, now_ns);
    if (loss_ns <= worth_ns / CHEAP)
        return later(later(gate->spent_ns, left(now_ns, CT_GATE_SPARE_NS)) + earned_ns,
                     now_ns + left(debt_ns, CT_GATE_BURST_NS));
    return later(later(gate->spent_ns, since_ns) + earned_ns, now_ns + debt_ns);
}

static void spend(struct ct_gate *gate, uint64_t loss_ns, uint64_t now_ns)
{
    gate->spent_ns = later(gate->spent_ns, left(now_ns, CT_GATE_SPARE_NS)) + earned_in(loss_ns, gate->delay_ppm);
}

/* What one above loses in the mean if our work ends then. Its launch is as likely at any instant between the earliest and
 * the latest expected; past the latest, as soon as it has been waited for. */
static uint64_t loss_of(const struct sight *sight, uint64_t until_ns, uint64_t now_ns)
{
    const uint64_t from_ns = later(sight->end_ns, now_ns), over_ns = left(until_ns, from_ns);
    const uint64_t width_ns = later(left(sight->late_ns, from_ns), left(now_ns, sight->end_ns));
    if (over_ns >= width_ns)
        return over_ns - width_ns / 2;
    return over_ns < UINT32_MAX ? over_ns * over_ns / (2 * width_ns) : over_ns / 2;
}

/* Somebody above is expected back: does it end before that, or is what that may cost to be spared? */
static struct ct_gate_answer ask_gap(struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                                     uint64_t submitted_ns, uint64_t since_ns, uint64_t now_ns)
{
    const uint64_t cost_ns = gate->has_switched ? 0 : gate->switch_ns, depth_ns = CT_GATE_DEPTH_NS;
    const uint64_t from_ns = now_ns + submitted_ns + 2 * cost_ns;
    uint64_t debt_ns = debt_of(gate, now_ns), loss_ns = 0;
    if (!wish->may_fill)
        return wait_for(CT_GATE_DUE, sight->quiet_ns);
    if (debt_ns > CT_GATE_HARD_DEBT_NS)
        return wait_for(CT_GATE_DEBT, now_ns + debt_ns - CT_GATE_BURST_NS);
    if (cost_ns || from_ns + wish->sure_ns > sight->end_ns) {
        /* Hardly any takes as long as it may: mostly the mean counts. */
        loss_ns = (3 * loss_of(sight, from_ns + wish->expect_ns, now_ns) +
                   loss_of(sight, from_ns + wish->sure_ns, now_ns)) / 4 + cost_ns + 1;
        uint64_t spend_ns = spendable_at(gate, loss_ns, wish->expect_ns, since_ns, now_ns);
        const int is_due = now_ns >= sight->end_ns;
        const uint64_t until_ns = is_due ? sight->quiet_ns : sight->opens_ns; /* no use in looking before that */
        if (spend_ns > now_ns)
            return wait_for(is_due ? CT_GATE_DUE : CT_GATE_TIGHT, spend_ns < until_ns ? spend_ns : until_ns);
    }
    if (submitted_ns > CT_GATE_LEAD_NS / 2 && submitted_ns + wish->expect_ns > depth_ns)
        return wait_for(CT_GATE_BOUND, now_ns + submitted_ns - CT_GATE_LEAD_NS / 2);
    if ((gate->beside_count || gate->above_count > 1) &&
        better_waits(gate, wish->sure_ns, left(sight->end_ns, now_ns + submitted_ns), now_ns))
        return wait_for(CT_GATE_OTHER, now_ns + AGAIN_NS);
    struct ct_gate_answer answer = pass_if_unchanged(gate, wish, CT_GATE_GAP, sight, submitted_ns, now_ns);
    if (answer.pass && loss_ns)
        spend(gate, loss_ns, now_ns);
    if (answer.pass && cost_ns)
        charge(gate, cost_ns, now_ns);
    return answer;
}

static struct ct_gate_answer ask_below(struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                                       uint64_t since_ns, uint64_t now_ns)
{
    uint64_t submitted_ns = submitted_by(gate, now_ns);
    struct ct_gate_answer answer;
    if (!sight->is_active)
        return ask_free(gate, wish, sight, submitted_ns, now_ns);
    if (now_ns < sight->open_ns)
        answer = wait_for(CT_GATE_BUSY, sight->open_ns);
    else if (gate->policy != CT_GATE_FILL)
        answer = wait_for(CT_GATE_DUE, sight->quiet_ns);
    else
        answer = ask_gap(gate, wish, sight, submitted_ns, since_ns, now_ns);
    if (answer.pass || answer.reason > CT_GATE_DUE || submitted_ns)
        return answer;
    /* A kernel that fits nowhere spends what those above can spare, one at a time; what it takes is charged at once. */
    uint64_t risk_ns = spendable_at(gate, wish->expect_ns + 1, 0, since_ns, now_ns);
    if (!wish->expect_ns)
        risk_ns = later(risk_ns, since_ns + CT_GATE_RISK_AFTER_NS);
    if (risk_ns > now_ns) {
        if (answer.until_ns > risk_ns)
            answer.until_ns = risk_ns;
        return answer;
    }
    answer = pass_if_unchanged(gate, wish, CT_GATE_RISK, sight, submitted_ns, now_ns);
    if (answer.pass) {
        spend(gate, wish->expect_ns + 1, now_ns);
        charge(gate, wish->expect_ns + 1, now_ns);
    }
    return answer;
}

static int least_is_due(const struct ct_gate *gate, uint64_t now_ns)
{
    return gate->least_ppm && left(gate->least_ns, now_ns) <= CT_GATE_BURST_NS &&
           LOAD(gate->mine->busy_ns) <= now_ns;
}

struct ct_gate_answer ct_gate_ask(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t since_ns,
                                  uint64_t now_ns)
{
    struct sight sight;
    if (!ct_gate_must_ask(gate)) {
        ct_gate_announce(gate, wish, now_ns);
        STORE(gate->mine->wanted_ns, 0);
        ADD(gate->mine->counts.passed[CT_GATE_TOP], 1);
        return (struct ct_gate_answer){.pass = 1, .reason = CT_GATE_TOP, .until_ns = now_ns};
    }
    STORE(gate->mine->wanted_ns, wish->sure_ns + 1);
    STORE(gate->mine->asked_ns, now_ns);
    if (gate->is_paused)
        return wait_for(CT_GATE_PAUSED, now_ns + PAUSE_LOOK_NS);
    settle(gate, now_ns);
    look_up(gate, now_ns, &sight);
    if (gate->unconfirmed > 1 && gate->unconfirmed_ns + wish->expect_ns > gate->bound_ns) {
        if (left(now_ns, since_ns) < CT_GATE_STUCK_NS + 8 * gate->unconfirmed_ns)
            return wait_for(CT_GATE_BOUND, later(LOAD(gate->mine->busy_ns), now_ns + AGAIN_NS));
        ADD(gate->mine->counts.stuck, 1);
        return pass(gate, wish, CT_GATE_STUCK, &sight, now_ns);
    }
    struct ct_gate_answer answer = ask_below(gate, wish, &sight, since_ns, now_ns);
    if (!answer.pass && answer.reason != CT_GATE_CHANGED && least_is_due(gate, now_ns)) {
        look_up(gate, now_ns, &sight);
        return pass(gate, wish, CT_GATE_LEAST, &sight, now_ns);
    }
    return answer;
}
