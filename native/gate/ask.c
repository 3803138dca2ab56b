/* May this kernel go now? What those above leave, what is submitted already, what may still be risked. */
#include "gate/claim.h"
#include "gate/debt.h"
#include "gate/limit.h"
#include "gate/loss.h"
#include "gate/price.h"
#include "gate/words.h"

enum { PAUSE_LOOK_NS = 5 * 1000 * 1000, AGAIN_NS = 2 * 1000, WAITED_FOR_NS = 50 * 1000 };

/* ---- what is seen of the others --------------------------------------------------------------------------------- */

static int is_asking(const struct ct_gate_page *page, uint64_t now_ns)
{
    uint64_t asked_ns = SEE(page->asked_ns);
    return LOAD(page->wanted_ns) != 0 && left(now_ns, asked_ns) <= CT_GATE_LOOK_NS &&
           left(asked_ns, now_ns) <= CT_GATE_LOOK_NS;
}

/* How many kernels a second it has launched lately. */
static uint64_t pace_of(const struct ct_gate_page *page, uint64_t sequence)
{
    /* The oldest may be overwritten while we look, or be of the tenant that had the slot before. */
    const uint64_t known = sooner(LOAD(page->counts.launches), CT_GATE_RECENT - 2);
    const uint64_t from_ns = LOAD(page->recent_ns[(sequence - known + 1) % CT_GATE_RECENT]);
    const uint64_t span_ns = left(LOAD(page->at_ns), from_ns);
    if (known < 2 || !span_ns)
        return UINT32_MAX;
    return sooner((known - 1) * UINT64_C(100000000) * ct_gate_tenths(page) / span_ns, UINT32_MAX);
}

static void look_up(struct ct_gate *gate, uint64_t now_ns, struct sight *sight)
{
    sight->is_active = 0;
    sight->open_ns = sight->quiet_ns = now_ns;
    sight->end_ns = sight->latest_ns = sight->opens_ns = CT_GATE_NEVER;
    sight->pieces_per_s = 0;
    for (uint32_t i = 0; i < gate->above_count; i++) {
        struct ct_gate_peer *peer = &gate->above[i];
        const struct ct_gate_page *page = peer->page;
        /* In the opposite order of the stores: a launch whose sequence is seen is seen with its words, or later ones. */
        peer->observed = sight->sequence[i] = SEE(page->sequence);
        if (!sight->sequence[i] || SEE(page->generation) != peer->generation)
            continue;
        uint64_t quiet_ns = believed(SEE(page->quiet_ns), now_ns), next_ns = believed(SEE(page->next_ns), now_ns);
        uint64_t busy_ns = believed(SEE(page->busy_ns), now_ns);
        const uint64_t last_ns = sooner(left(busy_ns, LOAD(page->at_ns)), CT_GATE_FAR_NS);
        /* Work that a host still waits for is not over, whatever was expected: others may have held it up. */
        if (LOAD(page->waits_ns) && busy_ns <= now_ns && now_ns - busy_ns < gate->patience_ns)
            busy_ns = plus(now_ns, WAITED_FOR_NS);
        /* One that waits at the gate itself launches when it passes, not when it was expected to. */
        int is_expected = now_ns < quiet_ns && !is_asking(page, now_ns);
        if (!is_expected && busy_ns <= now_ns)
            continue;
        sight->is_active = 1;
        sight->pieces_per_s = sooner(sight->pieces_per_s + pace_of(page, sight->sequence[i]), UINT32_MAX);
        sight->open_ns = later(sight->open_ns, busy_ns);
        sight->quiet_ns = later(sight->quiet_ns, is_expected ? later(quiet_ns, busy_ns) : busy_ns);
        if (is_expected && next_ns < sight->end_ns) {
            sight->end_ns = next_ns;
            sight->latest_ns = believed(LOAD(page->latest_ns), now_ns);
            sight->opens_ns = plus(next_ns, last_ns);
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

static uint64_t submitted_by(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t sum_ns = left(believed(LOAD(gate->mine->busy_ns), now_ns), now_ns);
    for (uint32_t i = 0; i < gate->beside_count; i++)
        if (SEE(gate->beside[i].page->generation) == gate->beside[i].generation)
            sum_ns += left(believed(LOAD(gate->beside[i].page->busy_ns), now_ns), now_ns);
    return sum_ns;
}

/* Whether this one, which waits too, goes before us: by priority, then the longest that fits, then the lower slot. */
static int is_better(const struct ct_gate *gate, const struct ct_gate_peer *peer, uint64_t sure_ns, uint64_t room_ns,
                     int is_old, uint64_t now_ns)
{
    if (peer->priority > gate->priority || (is_old && peer->priority == gate->priority) ||
        SEE(peer->page->generation) != peer->generation || !is_asking(peer->page, now_ns))
        return 0;
    const uint64_t its_ns = LOAD(peer->page->wanted_ns) - 1; /* of none that waits, or none that may fill: too long */
    if (its_ns > room_ns)
        return 0;
    return peer->priority < gate->priority || its_ns > sure_ns || (its_ns == sure_ns && peer->slot < gate->slot);
}

static int better_waits(const struct ct_gate *gate, uint64_t sure_ns, uint64_t room_ns, uint64_t since_ns,
                        uint64_t now_ns)
{
    /* Who waited long lets only its betters go first: or the longer kernels of an equal would keep it out for good. */
    const int is_old = left(now_ns, since_ns) >= CT_GATE_OLD_NS;
    for (uint32_t i = 0; i < gate->above_count; i++)
        if (is_better(gate, &gate->above[i], sure_ns, room_ns, is_old, now_ns))
            return 1;
    for (uint32_t i = 0; i < gate->beside_count; i++)
        if (is_better(gate, &gate->beside[i], sure_ns, room_ns, is_old, now_ns))
            return 1;
    return 0;
}

/* ---- the answers -------------------------------------------------------------------------------------------------- */

static struct ct_gate_answer wait_for(uint32_t reason, uint64_t until_ns)
{
    return (struct ct_gate_answer){.pass = 0, .reason = reason, .until_ns = until_ns};
}

/* What those above lose for certain is charged at once; what they are to lose in the mean is spent. */
static void charge_upfront(struct ct_gate *gate, const struct ct_gate_wish *wish, uint32_t reason,
                           const struct sight *sight, uint64_t now_ns)
{
    if (reason == CT_GATE_RISK) {
        ct_gate_spend(gate, plus(weight_of(gate, wish->expect_ns), 1), now_ns);
        ct_gate_charge(gate, plus(weight_of(gate, wish->expect_ns), 1), now_ns);
    }
    if (reason != CT_GATE_GAP && reason != CT_GATE_BESIDE)
        return;
    const uint64_t loss_ns =
        reason == CT_GATE_GAP ? ct_price_gap(gate, wish, sight, now_ns) : ct_price_beside(wish, sight, now_ns);
    if (loss_ns)
        ct_gate_spend(gate, loss_ns, now_ns);
    if (ct_price_switch(gate))
        ct_gate_charge(gate, ct_price_switch(gate), now_ns);
}

/* In the tenant's page, as its share is: it was promised to the tenant, not to each of its processes. */
static void use_least(struct ct_gate *gate, uint64_t weight_ns, uint64_t now_ns)
{
    const uint64_t earned_ns = ct_gate_earned_in(plus(weight_ns, 1), gate->least_ppm);
    uint64_t before_ns = LOAD(gate->mine->least_ns), used_ns;
    do
        used_ns = sooner(plus(later(believed(before_ns, now_ns), now_ns), earned_ns), plus(now_ns, CT_GATE_FAR_NS));
    while (!atomic_compare_exchange_weak_explicit(&gate->mine->least_ns, &before_ns, used_ns, memory_order_relaxed,
                                                  memory_order_relaxed));
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
    charge_upfront(gate, wish, reason, sight, now_ns);
    ct_limit_charge(gate, wish, now_ns);
    gate->has_switched = 1;
    if (gate->charged_until_ns <= now_ns)
        gate->grain_ns = wish->grain_ns;
    else if (gate->grain_ns) /* all that runs gives way, or none of it does */
        gate->grain_ns = wish->grain_ns ? later(gate->grain_ns, wish->grain_ns) : 0;
    ct_gate_announce(gate, wish, now_ns);
    ct_loss_show(gate, now_ns);
    STORE(gate->mine->wanted_ns, 0);
    gate->charged_from_ns = now_ns;
    gate->charged_until_ns = reason == CT_GATE_LEAST ? 0 : LOAD(gate->mine->busy_ns); /* 0: it was promised */
    gate->is_back = reason == CT_GATE_RISK; /* charged already, but for what it takes longer than expected */
    const uint64_t weight_ns = weight_of(gate, wish->expect_ns);
    if (reason == CT_GATE_LEAST)
        use_least(gate, weight_ns, now_ns);
    if (reason == CT_GATE_GAP)
        ADD(counts->filled_ns, wish->expect_ns);
    if (!gate->unconfirmed++)
        gate->ended_ns = now_ns;
    gate->unconfirmed_ns = plus(gate->unconfirmed_ns, weight_ns);
    ADD(counts->admitted, 1);
    ADD(counts->passed[reason], 1);
    return (struct ct_gate_answer){.pass = 1, .reason = reason, .until_ns = now_ns};
}

/* What may have changed since we looked. Those above come last: between that look and the launch there is nothing else. */
static int is_outdated(struct ct_gate *gate, uint32_t reason, const struct sight *sight, uint64_t now_ns)
{
    if (gate->must_claim && (submitted_by(gate, now_ns) > sight->submitted_ns ||
                             (reason == CT_GATE_RISK && ct_gate_debt(gate, now_ns))))
        return 1;
    return has_changed(gate, sight);
}

/* The last look before a pass. With others who must ask it is under the claim, so that each sees what the other did. */
static struct ct_gate_answer pass_if_unchanged(struct ct_gate *gate, const struct ct_gate_wish *wish, uint32_t reason,
                                               const struct sight *sight, uint64_t now_ns)
{
    struct ct_gate_answer answer = wait_for(CT_GATE_CHANGED, now_ns);
    uint64_t claim = 0;
    if (gate->must_claim && !ct_gate_take_claim(gate, now_ns, &claim))
        return wait_for(CT_GATE_OTHER, plus(now_ns, AGAIN_NS));
    if (!is_outdated(gate, reason, sight, now_ns))
        answer = pass(gate, wish, reason, sight, now_ns);
    if (gate->must_claim)
        ct_gate_give_claim(gate, claim); /* if it lapsed meanwhile, another may have passed too: one kernel more */
    return answer;
}

/* Nobody above is active. */
static struct ct_gate_answer ask_free(struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                                      uint64_t now_ns)
{
    const uint64_t debt_ns = ct_gate_debt(gate, now_ns), lead_ns = sooner(CT_GATE_LEAD_NS, gate->bound_ns);
    if (debt_ns > CT_GATE_BURST_NS)
        return wait_for(CT_GATE_DEBT, plus(now_ns, debt_ns - CT_GATE_BURST_NS));
    if (sight->submitted_ns > lead_ns && plus(sight->submitted_ns, wish->expect_ns) > ct_price_bound(gate, wish))
        return wait_for(CT_GATE_BOUND, plus(now_ns, sight->submitted_ns - lead_ns));
    return pass_if_unchanged(gate, wish, CT_GATE_FREE, sight, now_ns);
}

/* Somebody above is expected back: does it end before that, or is what that may cost to be spared? */
static struct ct_gate_answer ask_gap(struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                                     uint64_t since_ns, uint64_t now_ns)
{
    const uint64_t submitted_ns = sight->submitted_ns, cost_ns = ct_price_switch(gate);
    const uint64_t taken_ns = plus(submitted_ns, plus(cost_ns, cost_ns)), debt_ns = ct_gate_debt(gate, now_ns);
    const int is_due = now_ns >= sight->end_ns;
    if (!wish->may_fill)
        return wait_for(CT_GATE_DUE, sight->quiet_ns);
    if (debt_ns > CT_GATE_HARD_DEBT_NS)
        return wait_for(CT_GATE_DEBT, plus(now_ns, debt_ns - CT_GATE_HARD_DEBT_NS));
    const uint64_t loss_ns = ct_price_gap(gate, wish, sight, now_ns);
    const uint64_t at_ns = loss_ns ? ct_gate_spendable_at(gate, loss_ns, wish->expect_ns, since_ns, now_ns) : now_ns;
    if (at_ns > now_ns) /* before its next work is over there is no use in looking */
        return wait_for(is_due ? CT_GATE_DUE : CT_GATE_TIGHT, sooner(at_ns, is_due ? sight->quiet_ns : sight->opens_ns));
    if (ct_price_is_deep(gate, wish, sight, now_ns))
        return wait_for(CT_GATE_BOUND, plus(now_ns, submitted_ns - CT_GATE_LEAD_NS / 2));
    if (better_waits(gate, later(wish->sure_ns, wish->expect_ns), left(sight->end_ns, plus(now_ns, taken_ns)), since_ns,
                     now_ns))
        return wait_for(CT_GATE_OTHER, plus(now_ns, AGAIN_NS));
    return pass_if_unchanged(gate, wish, CT_GATE_GAP, sight, now_ns);
}

/* When a kernel that fits nowhere may spend what those above can spare. */
static uint64_t risk_at(const struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t since_ns, uint64_t now_ns)
{
    const uint64_t weight_ns = weight_of(gate, wish->expect_ns);
    const uint64_t at_ns = ct_gate_spendable_at(gate, plus(weight_ns, 1), 0, since_ns, now_ns);
    return wish->expect_ns ? at_ns : later(at_ns, plus(since_ns, CT_GATE_OLD_NS));
}

/* Whether it may run beside those above, whatever they do: at what that costs, and when that can be spared. */
static uint64_t beside_at(const struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                          uint64_t since_ns, uint64_t now_ns)
{
    if (!wish->grain_ns || !wish->expect_ns)
        return CT_GATE_NEVER;
    return ct_gate_spendable_at(gate, ct_price_beside(wish, sight, now_ns), wish->expect_ns, since_ns, now_ns);
}

static struct ct_gate_answer ask_below(struct ct_gate *gate, const struct ct_gate_wish *wish, const struct sight *sight,
                                       uint64_t since_ns, uint64_t now_ns)
{
    struct ct_gate_answer answer;
    if (!sight->is_active)
        return ask_free(gate, wish, sight, now_ns);
    if (now_ns < sight->open_ns)
        answer = wait_for(CT_GATE_BUSY, sight->open_ns);
    else if (gate->policy != CT_GATE_FILL)
        answer = wait_for(CT_GATE_DUE, sight->quiet_ns);
    else
        answer = ask_gap(gate, wish, sight, since_ns, now_ns);
    if (answer.pass || answer.reason > CT_GATE_DUE)
        return answer;
    const uint64_t beside_ns = beside_at(gate, wish, sight, since_ns, now_ns);
    if (beside_ns <= now_ns) {
        if (ct_price_is_deep(gate, wish, sight, now_ns))
            return wait_for(CT_GATE_BOUND, plus(now_ns, sight->submitted_ns - CT_GATE_LEAD_NS / 2));
        /* What is left of a gap is for those whom it lets pass. */
        const uint64_t room_ns = left(sight->end_ns, plus(now_ns, sight->submitted_ns));
        if (now_ns >= sight->open_ns &&
            better_waits(gate, later(wish->sure_ns, wish->expect_ns), room_ns, since_ns, now_ns))
            return wait_for(CT_GATE_OTHER, plus(now_ns, AGAIN_NS));
        return pass_if_unchanged(gate, wish, CT_GATE_BESIDE, sight, now_ns);
    }
    answer.until_ns = sooner(answer.until_ns, beside_ns);
    if (sight->submitted_ns) /* one at a time */
        return answer;
    const uint64_t risk_ns = risk_at(gate, wish, since_ns, now_ns);
    if (risk_ns <= now_ns)
        return pass_if_unchanged(gate, wish, CT_GATE_RISK, sight, now_ns);
    answer.until_ns = sooner(answer.until_ns, risk_ns);
    return answer;
}

static int least_is_due(const struct ct_gate *gate, uint64_t now_ns)
{
    return gate->least_ppm && left(believed(LOAD(gate->mine->least_ns), now_ns), now_ns) <= CT_GATE_BURST_NS &&
           left(believed(LOAD(gate->mine->busy_ns), now_ns), now_ns) <= CT_GATE_LEAD_NS;
}

/* Tells the others that we wait, and for what: CT_GATE_NEVER if no gap would let us pass, so that nobody holds back. */
static void show_wish(struct ct_gate *gate, const struct ct_gate_wish *wish, int may_fill, uint64_t now_ns)
{
    const uint64_t sure_ns = later(wish->sure_ns, wish->expect_ns);
    STORE(gate->mine->wanted_ns, may_fill ? plus(sure_ns, 1) : CT_GATE_NEVER);
    SHOW(gate->mine->asked_ns, now_ns);
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
    const int is_full = ct_limit_is_full(gate, wish, now_ns);
    show_wish(gate, wish, wish->may_fill && !is_full && !gate->is_paused, now_ns);
    ct_gate_settle(gate, now_ns);
    if (gate->is_paused)
        return wait_for(CT_GATE_PAUSED, plus(now_ns, PAUSE_LOOK_NS));
    look_up(gate, now_ns, &sight);
    sight.submitted_ns = submitted_by(gate, now_ns);
    if (is_full) {
        ct_limit_held(gate, left(now_ns, gate->ended_ns), now_ns);
        if (gate->is_ending || left(now_ns, since_ns) / 8 < plus(CT_GATE_STUCK_NS / 8, gate->unconfirmed_ns))
            return wait_for(CT_GATE_BOUND, ct_limit_room_at(gate, wish, now_ns));
        ADD(gate->mine->counts.stuck, 1);
        gate->is_lent = 0; /* nobody has asked whether it is */
        return pass(gate, wish, CT_GATE_STUCK, &sight, now_ns);
    }
    uint64_t until_ns;
    const uint32_t reason = ct_limit_ask(gate, wish, sight.is_active, since_ns, now_ns, &until_ns);
    if (reason) {
        STORE(gate->mine->wanted_ns, CT_GATE_NEVER); /* it competes for no gap */
        return wait_for(reason, until_ns);
    }
    /* Only those ask there who are to end, or are held to shares. */
    if (gate->policy == CT_GATE_OPEN || (!gate->above_count && !gate->is_ending))
        return pass(gate, wish, gate->is_lent ? CT_GATE_LENT : CT_GATE_FREE, &sight, now_ns);
    struct ct_gate_answer answer = ask_below(gate, wish, &sight, since_ns, now_ns);
    if (!answer.pass && answer.reason != CT_GATE_CHANGED && least_is_due(gate, now_ns)) {
        look_up(gate, now_ns, &sight);
        return pass(gate, wish, CT_GATE_LEAST, &sight, now_ns);
    }
    return answer;
}
