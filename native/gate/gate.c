/* The gate as one tenant has it: what the roster says of the others, and what the own page says to them. */
#include "gate/gate.h"

#include <string.h>

enum { PATIENCE_LEAST_NS = 250 * 1000, PATIENCE_SPREADS = 4 };

#define LOAD(place) atomic_load_explicit(&(place), memory_order_relaxed)
#define STORE(place, value) atomic_store_explicit(&(place), (value), memory_order_relaxed)
#define ADD(place, more) STORE(place, LOAD(place) + (more))

void ct_gate_open(struct ct_gate *gate, const void *file, struct ct_gate_page *page, struct ct_gate_floor *floor,
                  uint32_t slot, uint32_t generation)
{
    memset(gate, 0, sizeof *gate);
    gate->roster = file;
    gate->page = page;
    gate->mine = &gate->orphan;
    gate->floor = floor;
    gate->slot = slot;
    gate->generation = generation;
    gate->writes = UINT64_MAX;
    ct_gate_reread(gate);
}

/* ---- the roster ------------------------------------------------------------------------------------------------ */

static const struct ct_gate_page *page_of(const struct ct_gate *gate, uint32_t slot)
{
    return slot < gate->roster->slots
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
            return;
        }
    peer->seen = peer->observed = atomic_load_explicit(&peer->page->sequence, memory_order_acquire);
}

static void seat_others(struct ct_gate *gate, const struct ct_gate_rules *rules)
{
    struct ct_gate_peer known[CT_GATE_SEATS];
    const uint32_t known_count = gate->above_count;
    memcpy(known, gate->above, sizeof known[0] * known_count);
    gate->above_count = gate->beside_count = 0;
    for (uint64_t i = 0; i < rules->seats; i++) {
        const struct ct_gate_seat *seat = &rules->seat[i];
        struct ct_gate_peer peer = {.page = page_of(gate, seat->slot),
                                    .generation = seat->generation,
                                    .slot = seat->slot,
                                    .priority = seat->priority};
        if (seat->slot == gate->slot || !peer.page)
            continue;
        if (seat->priority < gate->priority) {
            keep(known, known_count, &peer);
            gate->above[gate->above_count++] = peer;
        } else {
            gate->beside[gate->beside_count++] = peer;
        }
    }
}

void ct_gate_reread(struct ct_gate *gate)
{
    struct ct_gate_rules rules;
    uint64_t writes;
    if (ct_roster_read(gate->roster, &rules, &writes) < 0)
        return; /* the last rules hold, and the next launch tries again */
    gate->writes = writes;
    gate->is_seated = gate->is_paused = 0;
    gate->priority = CT_GATE_PRIORITIES; /* who lost its seat is below everybody */
    gate->least_ppm = 0;
    for (uint64_t i = 0; i < rules.seats; i++) {
        const struct ct_gate_seat *seat = &rules.seat[i];
        if (seat->slot != gate->slot || seat->generation != gate->generation)
            continue;
        gate->is_seated = 1;
        gate->priority = seat->priority;
        gate->is_paused = (seat->flags & CT_GATE_SEAT_PAUSED) != 0;
        gate->least_ppm = seat->least_ppm;
    }
    gate->policy = rules.policy;
    gate->bound_ns = rules.bound_ns;
    gate->delay_ppm = rules.delay_ppm;
    gate->patience_ns = rules.patience_ns;
    gate->switch_ns = rules.switch_ns;
    gate->spin_ppm = rules.spin_ppm;
    seat_others(gate, &rules);
    gate->mine = gate->is_seated ? gate->page : &gate->orphan;
    if (gate->is_seated)
        atomic_store_explicit(&gate->page->generation, gate->generation, memory_order_release);
    gate->must_ask = gate->is_paused || (gate->policy != CT_GATE_OPEN && gate->above_count > 0);
}

/* ---- the own page ---------------------------------------------------------------------------------------------- */

static uint64_t quiet_after(const struct ct_gate *gate, uint64_t next_ns, uint64_t low_ns, uint64_t high_ns)
{
    uint64_t patience_ns = high_ns > low_ns ? PATIENCE_SPREADS * (high_ns - low_ns) : 0;
    if (!high_ns || patience_ns > gate->patience_ns)
        patience_ns = gate->patience_ns;
    if (patience_ns < PATIENCE_LEAST_NS)
        patience_ns = PATIENCE_LEAST_NS;
    return next_ns + patience_ns;
}

void ct_gate_announce(struct ct_gate *gate, const struct ct_gate_wish *wish, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    const uint64_t busy_ns = LOAD(mine->busy_ns), sequence = LOAD(mine->sequence), due_ns = LOAD(mine->next_ns);
    const uint64_t next_ns = now_ns + wish->low_ns;

    if (due_ns && LOAD(mine->at_ns)) {
        ADD(mine->counts.foreseen, 1);
        if (now_ns < due_ns)
            ADD(mine->counts.early, 1);
        ADD(mine->counts.miss_ns, now_ns < due_ns ? due_ns - now_ns : now_ns - due_ns);
    }
    ADD(mine->counts.launches, 1);
    ADD(mine->counts.device_ns, wish->expect_ns);
    STORE(mine->recent_ns[(sequence + 1) % CT_GATE_RECENT], now_ns);
    atomic_store_explicit(&mine->busy_ns, (busy_ns > now_ns ? busy_ns : now_ns) + wish->expect_ns, memory_order_release);
    atomic_store_explicit(&mine->next_ns, next_ns, memory_order_release);
    STORE(mine->late_ns, now_ns + wish->high_ns);
    STORE(mine->waits_ns, 0);
    atomic_store_explicit(&mine->quiet_ns, quiet_after(gate, next_ns, wish->low_ns, wish->high_ns),
                          memory_order_release);
    atomic_store_explicit(&mine->at_ns, now_ns, memory_order_release);
    /* Several processes of a tenant may launch at once: the count must not lose one, whatever the rest says. */
    atomic_fetch_add_explicit(&mine->sequence, 1, memory_order_release);
}

void ct_gate_rest(struct ct_gate *gate, uint64_t low_ns, uint64_t high_ns, int is_drained, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    uint64_t busy_ns = LOAD(mine->busy_ns);
    if (is_drained || busy_ns < now_ns)
        busy_ns = now_ns; /* what a host waits for inside of a call ends before it can launch again */
    if (is_drained)
        atomic_store_explicit(&mine->busy_ns, busy_ns, memory_order_release);
    STORE(mine->late_ns, busy_ns + high_ns);
    STORE(mine->waits_ns, is_drained ? 0 : now_ns);
    atomic_store_explicit(&mine->next_ns, busy_ns + low_ns, memory_order_release);
    atomic_store_explicit(&mine->quiet_ns, quiet_after(gate, busy_ns + low_ns, low_ns, high_ns), memory_order_release);
}

int ct_gate_has_sleepers(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t until_ns = atomic_load_explicit(&gate->floor->asleep_until_ns, memory_order_relaxed);
    return until_ns > now_ns && until_ns - now_ns <= CT_GATE_NAP_NS;
}
