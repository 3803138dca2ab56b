/* The gate as one tenant has it: what the roster says of the others, and what the own page says to them. */
#include "gate/limit.h"
#include "gate/loss.h"
#include "gate/request.h"
#include "gate/words.h"

#include <string.h>

/* Who is late is not quiet: of many launches some are always late. */
enum { PATIENCE_LEAST_NS = 250 * 1000, PATIENCE_SPREADS = 4 };

void ct_gate_open(struct ct_gate *gate, const void *file, size_t bytes, struct ct_gate_page *page,
                  struct ct_gate_floor *floor, uint32_t slot, uint32_t generation)
{
    memset(gate, 0, sizeof *gate);
    gate->roster = file;
    gate->page = page;
    gate->mine = &gate->orphan;
    gate->floor = floor;
    gate->slot = slot;
    gate->generation = generation;
    const uint64_t mapped = bytes / CT_GATE_PAGE_BYTES - 2, slots = SEE(gate->roster->slots);
    gate->slots = slots < mapped ? slots : mapped;
    gate->writes = UINT64_MAX;
    gate->duty_ppm = CT_GATE_DUTY_LEAST_PPM; /* until it is known */
    ct_gate_reread(gate);
}

/* ---- the roster ------------------------------------------------------------------------------------------------ */

static const struct ct_gate_page *page_of(const struct ct_gate *gate, uint32_t slot)
{
    return slot < gate->slots
               ? (const struct ct_gate_page *)((const char *)gate->roster + ct_gate_offset(slot))
               : NULL;
}

/* What was known of a tenant is kept when the roster changes: a debt is not forgotten because somebody joined. */
static void keep(const struct ct_gate_peer *known, uint32_t count, struct ct_gate_peer *peer)
{
    for (uint32_t i = 0; i < count; i++)
        if (known[i].slot == peer->slot && known[i].generation == peer->generation) {
            peer->seen = known[i].seen;
            peer->observed = known[i].observed;
            peer->told = known[i].told;
            peer->told_at = known[i].told_at;
            peer->lost_ns = known[i].lost_ns;
            return;
        }
    peer->seen = peer->observed = peer->told_at = SEE(peer->page->sequence);
    peer->told = LOAD(peer->page->told);
    peer->lost_ns = ct_loss_told(peer);
}

/* Who is to end lets everybody go first, its equals too. */
static uint32_t priority_of(const struct ct_gate_seat *seat)
{
    return seat->flags & CT_GATE_SEAT_ENDING ? CT_GATE_PRIORITIES : seat->priority;
}

static void seat_others(struct ct_gate *gate, const struct ct_gate_rules *rules)
{
    struct ct_gate_peer known[CT_GATE_SEATS];
    const uint32_t known_count = gate->above_count;
    memcpy(known, gate->above, sizeof known[0] * known_count);
    uint32_t top = gate->priority;
    for (uint64_t i = 0; i < rules->seats; i++)
        top = priority_of(&rules->seat[i]) < top ? priority_of(&rules->seat[i]) : top;
    gate->above_count = gate->beside_count = 0;
    gate->must_claim = 0;
    for (uint64_t i = 0; i < rules->seats; i++) {
        const struct ct_gate_seat *seat = &rules->seat[i];
        struct ct_gate_peer peer = {.page = page_of(gate, seat->slot),
                                    .generation = seat->generation,
                                    .slot = seat->slot,
                                    .priority = priority_of(seat),
                                    .limit_ppm = seat->limit_ppm,
                                    .is_paused = (seat->flags & CT_GATE_SEAT_PAUSED) != 0};
        /* Another generation in our slot is another tenant: then it is we who have no seat. */
        if ((seat->slot == gate->slot && seat->generation == gate->generation) || !peer.page)
            continue;
        gate->must_claim |= peer.priority > top; /* it must ask as we do, whether above us or beside us */
        if (peer.priority < gate->priority) {
            keep(known, known_count, &peer);
            gate->above[gate->above_count++] = peer;
        } else {
            gate->beside[gate->beside_count++] = peer;
        }
    }
}

/* The page as its first process finds it speaks of the tenant that had the slot before. The sequence goes on: whoever
 * compares it must never see it come back. */
static void move_in(struct ct_gate *gate)
{
    struct ct_gate_page *page = gate->page;
    if (LOAD(page->generation) == gate->generation)
        return; /* another process of ours was here first */
    SHOW(page->generation, 0);
    _Atomic uint64_t *count = (_Atomic uint64_t *)&page->counts;
    for (size_t i = 0; i < sizeof page->counts / sizeof *count; i++)
        STORE(count[i], 0);
    ct_gate_request_clear(page);
    STORE(page->wanted_ns, 0);
    STORE(page->paid_ns, 0);
    STORE(page->paid_ppm, 0);
    STORE(page->over_ns, 0);
    STORE(page->part_ppm, 0);
    STORE(page->lost_ns, 0);
    STORE(page->told, 0);
    STORE(page->owes_ns, 0);
    STORE(page->least_ns, 0);
    STORE(page->pieces, 0);
    STORE(page->active_ns, 0);
    STORE(page->marked_ns, 0);
    STORE(page->unsure_ns, 0);
    STORE(page->busy_ns, 0);
    STORE(page->next_ns, 0);
    STORE(page->quiet_ns, 0);
    STORE(page->latest_ns, 0);
    STORE(page->waits_ns, 0);
    STORE(page->at_ns, 0);
    SHOW(page->generation, gate->generation);
}

void ct_gate_reread(struct ct_gate *gate)
{
    struct ct_gate_rules rules;
    uint64_t writes;
    if (ct_roster_read(gate->roster, &rules, &writes) < 0)
        return; /* the last rules hold, and the next launch tries again */
    gate->writes = writes;
    gate->is_seated = gate->is_paused = gate->is_ending = 0;
    gate->priority = CT_GATE_PRIORITIES; /* who lost its seat is below everybody */
    gate->least_ppm = gate->limit_ppm = 0;
    gate->is_static = 0;
    for (uint64_t i = 0; i < rules.seats; i++) {
        const struct ct_gate_seat *seat = &rules.seat[i];
        if (seat->slot != gate->slot || seat->generation != gate->generation)
            continue;
        gate->is_seated = 1;
        gate->priority = priority_of(seat);
        gate->is_paused = (seat->flags & CT_GATE_SEAT_PAUSED) != 0;
        gate->is_ending = (seat->flags & CT_GATE_SEAT_ENDING) != 0;
        gate->least_ppm = seat->least_ppm;
        gate->limit_ppm = seat->limit_ppm;
        gate->is_static = (seat->flags & CT_GATE_SEAT_STATIC) != 0;
    }
    gate->policy = rules.policy;
    gate->bound_ns = rules.bound_ns;
    gate->delay_ppm = sooner(rules.delay_ppm, CT_GATE_DELAY_MOST_PPM);
    gate->patience_ns = rules.patience_ns;
    gate->switch_ns = rules.switch_ns;
    gate->spin_ppm = rules.spin_ppm;
    seat_others(gate, &rules);
    gate->duty_from_ns = 0; /* the activity of others is counted from now on */
    gate->mine = gate->is_seated ? gate->page : &gate->orphan;
    if (gate->is_seated)
        move_in(gate);
    gate->must_share = ct_limit_must_ask(gate);
    gate->must_ask = gate->is_paused || gate->is_ending || (gate->policy != CT_GATE_OPEN && gate->above_count > 0) ||
                     gate->must_share;
    if (!gate->must_ask) /* what is launched from now on is not counted: nor must its end end what was before */
        gate->unconfirmed = gate->unconfirmed_ns = gate->charged_until_ns = gate->owed_ns = 0;
}

/* ---- the own page ---------------------------------------------------------------------------------------------- */

/* No instant of ours lies further ahead than others believe. */
static uint64_t after(uint64_t from_ns, uint64_t more_ns, uint64_t now_ns)
{
    return sooner(plus(from_ns, more_ns), plus(now_ns, CT_GATE_FAR_NS));
}

static uint64_t patience(const struct ct_gate *gate, uint64_t low_ns, uint64_t high_ns)
{
    uint64_t patience_ns = sooner(left(high_ns, low_ns), gate->patience_ns) * PATIENCE_SPREADS;
    if (!high_ns || patience_ns > gate->patience_ns)
        patience_ns = gate->patience_ns;
    return later(patience_ns, PATIENCE_LEAST_NS);
}

/* Counts the time since the last call: no longer than the work at hand then and our patience, for a host may just go away.
 * The mark is in the page, so that what several processes of ours do at the same time counts once. */
static void be_active(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    const uint64_t marked_ns = LOAD(mine->marked_ns);
    if (marked_ns && now_ns > marked_ns) {
        const uint64_t most_ns = later(left(LOAD(mine->busy_ns), marked_ns), gate->patience_ns);
        ADD(mine->active_ns, sooner(now_ns - marked_ns, most_ns));
    }
    STORE(mine->marked_ns, now_ns);
}

void ct_gate_announce(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    const uint64_t busy_ns = LOAD(mine->busy_ns), sequence = LOAD(mine->sequence), due_ns = LOAD(mine->next_ns);
    const uint64_t next_ns = after(now_ns, wish->low_ns, now_ns);

    if (due_ns > LOAD(mine->at_ns) && LOAD(mine->at_ns)) { /* else nothing was foreseen */
        ADD(mine->counts.foreseen, 1);
        if (now_ns < due_ns)
            ADD(mine->counts.early, 1);
        ADD(mine->counts.miss_ns, now_ns < due_ns ? due_ns - now_ns : now_ns - due_ns);
    }
    ADD(mine->counts.launches, 1);
    ADD(mine->counts.device_ns, wish->expect_ns);
    ADD(mine->pieces, wish->pieces ? wish->pieces : 1);
    if (!wish->expect_ns)
        STORE(mine->unsure_ns, now_ns);
    be_active(gate, now_ns);
    ct_loss_announced(gate, wish->expect_ns, now_ns);
    STORE(mine->recent_ns[(sequence + 1) % CT_GATE_RECENT], now_ns);
    SHOW(mine->busy_ns, after(later(busy_ns, now_ns), wish->expect_ns, now_ns));
    SHOW(mine->next_ns, next_ns);
    SHOW(mine->latest_ns, after(now_ns, wish->high_ns, now_ns));
    SHOW(mine->waits_ns, 0);
    SHOW(mine->quiet_ns, after(next_ns, patience(gate, wish->low_ns, wish->high_ns), now_ns));
    SHOW(mine->at_ns, now_ns);
    /* Several processes of a tenant may launch at once: the count must not lose one, whatever the rest says. */
    atomic_fetch_add_explicit(&mine->sequence, 1, memory_order_release);
    gate->announced++;
}

void ct_gate_withdrawn(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    const uint64_t busy_ns = LOAD(mine->busy_ns);
    ADD(mine->counts.launches, -UINT64_C(1));
    ADD(mine->counts.device_ns, -wish->expect_ns);
    ADD(mine->pieces, -(uint64_t)(wish->pieces ? wish->pieces : 1));
    if (busy_ns > now_ns)
        STORE(mine->busy_ns, busy_ns - now_ns > wish->expect_ns ? busy_ns - wish->expect_ns : now_ns);
}

void ct_gate_rest(struct ct_gate *gate, uint64_t low_ns, uint64_t high_ns, int is_drained, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    uint64_t busy_ns = LOAD(mine->busy_ns);
    if (LOAD(mine->marked_ns))
        be_active(gate, now_ns);
    if (is_drained) {
        ct_loss_drained(gate, now_ns);
        if (LOAD(mine->waits_ns))
            ct_limit_held(gate, left(now_ns, later(busy_ns, LOAD(mine->waits_ns))), now_ns);
        STORE(mine->marked_ns, 0);
        STORE(mine->unsure_ns, 0); /* however long it was: it is over */
    }
    if (is_drained || busy_ns < now_ns)
        busy_ns = now_ns; /* what a host waits for inside of a call ends before it can launch again */
    if (is_drained)
        SHOW(mine->busy_ns, busy_ns);
    SHOW(mine->next_ns, after(busy_ns, low_ns, now_ns));
    SHOW(mine->latest_ns, after(busy_ns, high_ns, now_ns));
    SHOW(mine->waits_ns, is_drained ? 0 : now_ns);
    SHOW(mine->quiet_ns, after(plus(busy_ns, low_ns), patience(gate, low_ns, high_ns), now_ns));
}

int ct_gate_has_sleepers(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t until_ns = LOAD(gate->floor->asleep_until_ns);
    return until_ns > now_ns && until_ns - now_ns <= CT_GATE_NAP_NS;
}
