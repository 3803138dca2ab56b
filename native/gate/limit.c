/* The share of a tenant as an instant: when all that it used will have been earned at that share. It is in the tenant's own
 * page, so its processes share it; it is changed by compare and swap, so nothing is held that the dead could keep. */
#include "gate/limit.h"

#include "gate/debt.h"
#include "gate/price.h"
#include "gate/words.h"

/* ---- what was used ------------------------------------------------------------------------------------------------ */

/* Device time times the part of the device. */
static uint64_t use_of(const struct ct_gate *gate, const struct ct_gate_wish *wish)
{
    const uint64_t part_ppm = left(CT_LIMIT_WHOLE_PPM, wish->free_ppm);
    return sooner(weight_of(gate, wish->expect_ns), CT_GATE_FAR_NS) * part_ppm / CT_LIMIT_WHOLE_PPM;
}

/* What was not used for longer than the window is lost: who idled gets a small burst, and no more; who begins gets none. Who
 * was lately held up for long by kernels of its equals catches up on that. */
static uint64_t level_of(const struct ct_gate *gate, uint64_t paid_ns, uint64_t now_ns)
{
    const uint64_t held_ns = left(now_ns, gate->held_at_ns) <= CT_LIMIT_HELD_FOR_NS ? gate->held_ns : 0;
    return believed(paid_ns, now_ns) ? later(paid_ns, left(now_ns, CT_LIMIT_WINDOW_NS + 2 * held_ns)) : now_ns;
}

void ct_limit_held(struct ct_gate *gate, uint64_t held_ns, uint64_t now_ns)
{
    if (!gate->limit_ppm || !gate->must_share ||
        (held_ns < gate->held_ns && left(now_ns, gate->held_at_ns) <= CT_LIMIT_HELD_FOR_NS))
        return;
    gate->held_ns = sooner(held_ns, CT_LIMIT_HELD_MOST_NS);
    gate->held_at_ns = now_ns;
}

static void book(struct ct_gate *gate, uint64_t use_ns, int is_back, uint64_t now_ns)
{
    const uint64_t earned_ns = ct_gate_earned_in(use_ns, gate->limit_ppm);
    uint64_t before_ns = LOAD(gate->mine->paid_ns), paid_ns;
    do {
        const uint64_t from_ns = level_of(gate, before_ns, now_ns);
        paid_ns = is_back ? left(from_ns, earned_ns) : sooner(plus(from_ns, earned_ns), plus(now_ns, CT_GATE_FAR_NS));
    } while (!atomic_compare_exchange_weak_explicit(&gate->mine->paid_ns, &before_ns, paid_ns, memory_order_relaxed,
                                                    memory_order_relaxed));
}

void ct_limit_charge(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns)
{
    if (!gate->limit_ppm || gate->is_lent)
        return;
    book(gate, use_of(gate, wish), 0, now_ns);
    STORE(gate->mine->part_ppm, left(CT_LIMIT_WHOLE_PPM, wish->free_ppm));
}

void ct_limit_refund(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns)
{
    if (gate->limit_ppm && !gate->is_lent)
        book(gate, use_of(gate, wish), 1, now_ns);
}

void ct_gate_measured(struct ct_gate *gate, uint64_t charged_ns, uint64_t used_ns, uint64_t now_ns)
{
    if (gate->limit_ppm && charged_ns != used_ns)
        book(gate, charged_ns > used_ns ? charged_ns - used_ns : used_ns - charged_ns, charged_ns > used_ns, now_ns);
}

/* A debt of a smaller share is paid off sooner by a larger one. Whichever process of ours sees the change first does it. */
static void rescale(struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t rate_ppm = LOAD(gate->mine->paid_ppm);
    if (rate_ppm == gate->limit_ppm ||
        !atomic_compare_exchange_strong_explicit(&gate->mine->paid_ppm, &rate_ppm, gate->limit_ppm, memory_order_relaxed,
                                                 memory_order_relaxed))
        return;
    const uint64_t debt_ns = left(believed(LOAD(gate->mine->paid_ns), now_ns), now_ns);
    if (debt_ns && rate_ppm && rate_ppm <= CT_LIMIT_WHOLE_PPM)
        STORE(gate->mine->paid_ns, plus(now_ns, ct_gate_earned_in(debt_ns * rate_ppm / CT_LIMIT_WHOLE_PPM, gate->limit_ppm)));
}

/* ---- who has had its share ---------------------------------------------------------------------------------------- */

/* Until when it has had its share; 0: it has not. It works ahead, and then waits until all of that is earned: so it need not
 * wake up for every kernel. */
static uint64_t over_until(struct ct_gate *gate, uint64_t now_ns)
{
    rescale(gate, now_ns);
    const uint64_t ahead_ns = left(believed(LOAD(gate->mine->paid_ns), now_ns), now_ns);
    const int is_over = ahead_ns > CT_LIMIT_AHEAD_NS || (ahead_ns && LOAD(gate->mine->over_ns));
    const uint64_t until_ns = is_over ? plus(now_ns, ahead_ns) : 0;
    SHOW(gate->mine->over_ns, until_ns);
    return until_ns;
}

static int peer_is_over(const struct ct_gate_page *page, uint64_t now_ns)
{
    return believed(SEE(page->over_ns), now_ns) > now_ns || left(believed(LOAD(page->paid_ns), now_ns), now_ns) > CT_LIMIT_AHEAD_NS;
}

/* When all that we and our equals have submitted is expected to be over, or was: before that nobody's work need be. */
static uint64_t over_by(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t last_ns = believed(LOAD(gate->mine->busy_ns), now_ns);
    for (uint32_t i = 0; i < gate->beside_count; i++)
        if (SEE(gate->beside[i].page->generation) == gate->beside[i].generation)
            last_ns = later(last_ns, believed(SEE(gate->beside[i].page->busy_ns), now_ns));
    return last_ns;
}

/* Whether it has work, or waits for it or with some, or would have to wait for ours. Work that its host still waits for is
 * not over, whatever was expected: that of others held it up, for as long as that may last (`over_ns`). */
static int wants_now(const struct ct_gate_page *page, uint64_t over_ns, uint64_t until_ns, uint64_t now_ns)
{
    const uint64_t asked_ns = SEE(page->asked_ns), waits_ns = believed(SEE(page->waits_ns), now_ns);
    const uint64_t busy_ns = believed(SEE(page->busy_ns), now_ns);
    if (busy_ns > now_ns || (waits_ns && left(now_ns, later(waits_ns, later(busy_ns, over_ns))) <= CT_LIMIT_LATE_NS))
        return 1;
    /* One that waits at the gate may sleep on it, and be late to wake up: it still waits. */
    if (LOAD(page->wanted_ns) && left(now_ns, asked_ns) <= CT_LIMIT_ASLEEP_NS && left(asked_ns, now_ns) <= CT_LIMIT_LOOK_NS)
        return 1;
    return now_ns < believed(LOAD(page->quiet_ns), now_ns) && believed(LOAD(page->next_ns), now_ns) < until_ns;
}

/* Under MPS work runs side by side: one whose work takes no more of the device than its share has the rest free for others. */
static int leaves_room(const struct ct_gate *gate, const struct ct_gate_peer *peer)
{
    const uint64_t part_ppm = LOAD(peer->page->part_ppm);
    return gate->is_mps && part_ppm && part_ppm <= peer->limit_ppm + CT_LIMIT_NEAR_PPM;
}

/* An equal that has a share has not had it yet, and wants it. One that has lent work of its own also lets those go first
 * that asked for no share. */
static int is_wanted(const struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns)
{
    const uint64_t busy_ns = later(believed(LOAD(gate->mine->busy_ns), now_ns), now_ns);
    const uint64_t until_ns = plus(busy_ns, weight_of(gate, wish->expect_ns)), over_ns = over_by(gate, now_ns);
    for (uint32_t i = 0; i < gate->beside_count; i++) {
        const struct ct_gate_peer *peer = &gate->beside[i];
        if (peer->priority != gate->priority || peer->is_paused || (!peer->limit_ppm && !gate->limit_ppm) ||
            SEE(peer->page->generation) != peer->generation || !SEE(peer->page->sequence) || leaves_room(gate, peer))
            continue;
        if ((!peer->limit_ppm || !peer_is_over(peer->page, now_ns)) && wants_now(peer->page, over_ns, until_ns, now_ns))
            return 1;
    }
    return 0;
}

int ct_limit_must_ask(const struct ct_gate *gate)
{
    if (gate->limit_ppm && gate->is_static)
        return 1;
    for (uint32_t i = 0; i < gate->beside_count; i++)
        if (gate->beside[i].priority == gate->priority && (gate->limit_ppm || gate->beside[i].limit_ppm))
            return 1;
    return 0;
}

uint32_t ct_limit_ask(struct ct_gate *gate, const struct ct_gate_wish *wish, int is_active, uint64_t since_ns,
                      uint64_t now_ns, uint64_t *until_ns)
{
    gate->is_lent = 0;
    if (gate->is_ending || wish->free_ppm >= CT_LIMIT_WHOLE_PPM)
        return 0;
    *until_ns = gate->limit_ppm ? over_until(gate, now_ns) : plus(now_ns, CT_LIMIT_LOOK_NS);
    if (!*until_ns)
        return 0;
    if (gate->limit_ppm && gate->is_static)
        return CT_GATE_LIMIT;
    /* One without a share is not kept out for good, whatever was promised to others; but the longer its kernel, the longer. */
    const uint64_t length_ns = sooner(weight_of(gate, wish->expect_ns), CT_GATE_FAR_NS);
    const int is_old =
        !gate->limit_ppm && left(now_ns, since_ns) >= CT_GATE_STUCK_NS + CT_LIMIT_KEPT_OUT * length_ns;
    if (!is_active && !is_old && is_wanted(gate, wish, now_ns)) {
        *until_ns = sooner(*until_ns, plus(now_ns, CT_LIMIT_LOOK_NS));
        return gate->limit_ppm ? CT_GATE_LIMIT : CT_GATE_SHARE;
    }
    gate->is_lent = gate->limit_ppm != 0;
    return 0;
}

/* ---- how much may be submitted ------------------------------------------------------------------------------------ */

enum { AGAIN_NS = 2 * 1000 };

/* As time of the whole device: work in few blocks runs beside itself, if its program lets it. */
static uint64_t taken_by(uint64_t length_ns, uint64_t part_ppm)
{
    return sooner(length_ns, CT_GATE_FAR_NS) * part_ppm / CT_LIMIT_WHOLE_PPM;
}

/* A tenant that is to end has one launch on the device at a time, whichever of its processes it is of, for as long as it
 * takes: a kill must not find more. */
int ct_limit_is_full(const struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns)
{
    const uint64_t weight_ns = weight_of(gate, wish->expect_ns);
    if (gate->is_ending)
        return gate->unconfirmed || believed(LOAD(gate->mine->busy_ns), now_ns) > now_ns;
    if (gate->above_count)
        return gate->unconfirmed > 1 && plus(gate->unconfirmed_ns, weight_ns) > ct_price_bound(gate, wish);
    /* Alone it is held back by nothing but its own share: nobody waits for it. */
    const uint64_t part_ppm = later(left(CT_LIMIT_WHOLE_PPM, wish->free_ppm), CT_LIMIT_LEAST_PART_PPM);
    return gate->beside_count && gate->unconfirmed > 1 &&
           taken_by(plus(gate->unconfirmed_ns, weight_ns), part_ppm) > later(gate->bound_ns, CT_LIMIT_AHEAD_NS);
}

/* Among equals it sleeps until half of what it has submitted is over, if all of that runs at once: long enough to be cheap,
 * and before the device runs dry. Whatever has ended was taken off before it asked. */
uint64_t ct_limit_room_at(const struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns)
{
    if (gate->above_count || gate->is_ending) {
        /* The device should not idle while we wake up; but what is ahead of time is in the way of one above that comes. */
        const uint64_t ahead_ns = gate->is_ending ? 0 : ct_price_part(CT_GATE_LEAD_NS, gate->delay_ppm);
        return later(left(believed(LOAD(gate->mine->busy_ns), now_ns), ahead_ns), plus(now_ns, AGAIN_NS));
    }
    /* What nobody knows counts as long, and may be short. */
    const uint64_t all_ns = wish->expect_ns ? taken_by(gate->unconfirmed_ns, left(CT_LIMIT_WHOLE_PPM, wish->free_ppm)) : 0;
    return plus(now_ns, later(all_ns / 2, CT_LIMIT_POLL_NS));
}
