/* The gate of one process: reads the tenant table and announces the process's launches in its own page. */
#include "gate/account.h"
#include "gate/announce.h"
#include "gate/lease.h"
#include "gate/limit.h"
#include "gate/loss.h"
#include "gate/process.h"
#include "gate/request.h"
#include "gate/space.h"
#include "gate/internal.h"

#include <string.h>

void ct_gate_open(struct ct_gate *gate, const struct ct_tenant_table *table, const void *processes,
                  struct ct_gate_page *page, struct ct_arbitration_page *arbitration, uint32_t index,
                  uint32_t generation)
{
    memset(gate, 0, sizeof *gate);
    gate->table = table;
    gate->processes = processes;
    gate->page = page;
    gate->mine = &gate->unlisted_page;
    gate->arbitration = arbitration;
    gate->index = index;
    gate->generation = generation;
    gate->writes = UINT64_MAX;
    ct_gang_join(&gate->gang, NULL, 0, 0);
    gate->duty_ppm = CT_GATE_DUTY_START_PPM; /* until it has been measured */
    ct_gate_reread(gate);
}

/* ---- the tenant table -------------------------------------------------------------------------------------------- */

/* Keeps the state of a process across changes of the table: a debt must not be forgotten because another process was
 * attached. */
static void carry_over(const struct ct_gate *gate, uint32_t previous_count, struct ct_gate_peer *peer)
{
    for (uint32_t i = 0; i < previous_count; i++) {
        const struct ct_gate_peer *previous = &gate->previous[i];
        if (previous->index != peer->index || previous->generation != peer->generation)
            continue;
        peer->admission_sequence = previous->admission_sequence;
        peer->latest_sequence = previous->latest_sequence;
        peer->opened_sequence = previous->opened_sequence;
        peer->requests_ended = previous->requests_ended;
        peer->requests_sum_ns = previous->requests_sum_ns;
        peer->request_ns = previous->request_ns;
        peer->loss_reports = previous->loss_reports;
        peer->loss_sequence = previous->loss_sequence;
        peer->lost_ns = previous->lost_ns;
        return;
    }
    peer->admission_sequence = peer->latest_sequence = peer->loss_sequence = load_acquire(&peer->page->sequence);
    peer->opened_sequence = peer->latest_sequence;
    peer->loss_reports = load_relaxed(&peer->page->loss_reports);
    peer->lost_ns = ct_loss_reported(peer);
}

/* The same for a process of equal or lower priority. */
static void carry_over_use(const struct ct_gate *gate, uint32_t previous_count, struct ct_gate_peer *peer)
{
    for (uint32_t i = 0; i < previous_count; i++) {
        const struct ct_gate_peer *previous = &gate->previous[i];
        if (previous->index != peer->index || previous->generation != peer->generation)
            continue;
        peer->used_ns = previous->used_ns;
        peer->min_share_used_ns = previous->min_share_used_ns;
        peer->busy_looked_ns = previous->busy_looked_ns;
        peer->busy_waited_ns = previous->busy_waited_ns;
        return;
    }
    ct_account_begin(peer);
}

/* Returns the effective priority. An ending tenant defers to all others, including those of its own priority. */
static uint32_t priority_of(const struct ct_tenant_entry *entry)
{
    return entry->flags & CT_TENANT_ENDING ? CT_GATE_PRIORITIES : entry->priority;
}

/* Returns whether the process must ask for admission whatever this one's priority is. */
static int asks_too(const struct ct_gate *gate, const struct ct_gate_peer *peer, uint32_t top)
{
    return peer->priority > top || (peer->is_sibling && gate->is_ending);
}

static void add_higher(struct ct_gate *gate, uint32_t previous_count, struct ct_gate_peer *peer)
{
    carry_over(gate, previous_count, peer);
    gate->higher[gate->higher_count++] = *peer;
}

static void add_peer(struct ct_gate *gate, struct ct_gate_peer *peer)
{
    peer->first = gate->peer_count;
    for (uint32_t i = gate->peer_count; i > 0; i--)
        if (gate->peers[i - 1].tenant == peer->tenant)
            peer->first = gate->peers[i - 1].first;
    gate->sibling_count += (uint32_t)peer->is_sibling;
    gate->peers[gate->peer_count++] = *peer;
}

/* Lists the processes of higher priority if `is_higher`, otherwise all others. */
static void read_peers(struct ct_gate *gate, int is_higher, uint32_t previous_count, uint32_t top)
{
    const struct ct_gate_rules *rules = &gate->rules;
    for (uint64_t i = 0; i < rules->process_count; i++) {
        const struct ct_tenant_entry *entry = &rules->processes[i];
        const struct ct_process_pages *pages = ct_process_pages_of(gate->processes, entry->index);
        /* Another generation at our index is another process; then this process has no entry. */
        if ((entry->index == gate->index && entry->generation == gate->generation) || !pages || !entry->generation)
            continue;
        struct ct_gate_peer peer = {.page = &pages->gate,
                                    .generation = entry->generation,
                                    .index = entry->index,
                                    .priority = priority_of(entry),
                                    .tenant = entry->tenant,
                                    .limit_ppm = entry->limit_ppm,
                                    .is_paused = (entry->flags & CT_TENANT_PAUSED) != 0,
                                    .is_sibling = gate->has_entry && entry->tenant == gate->tenant};
        if ((peer.priority < gate->priority) != is_higher)
            continue;
        gate->must_claim |= asks_too(gate, &peer, top);
        if (is_higher) {
            add_higher(gate, previous_count, &peer);
        } else {
            carry_over_use(gate, previous_count, &peer);
            add_peer(gate, &peer);
        }
    }
}

static void read_all_peers(struct ct_gate *gate)
{
    uint32_t top = gate->priority, previous_count = gate->higher_count;
    for (uint64_t i = 0; i < gate->rules.process_count; i++)
        top = priority_of(&gate->rules.processes[i]) < top ? priority_of(&gate->rules.processes[i]) : top;
    gate->must_claim = 0;
    memcpy(gate->previous, gate->higher, sizeof gate->previous[0] * previous_count);
    gate->higher_count = 0;
    read_peers(gate, 1, previous_count, top);
    previous_count = gate->peer_count;
    memcpy(gate->previous, gate->peers, sizeof gate->previous[0] * previous_count);
    gate->peer_count = gate->sibling_count = 0;
    read_peers(gate, 0, previous_count, top);
}

/* Begins to use the page under this generation: the process was attached, or attached again. The sequence number
 * continues, because readers compare it and must never see it repeat. */
static void take_over_page(struct ct_gate *gate)
{
    struct ct_gate_page *page = gate->page;
    if (load_relaxed(&page->generation) == gate->generation) {
        ct_account_restore(gate);
        return;
    }
    store_release(&page->generation, 0);
    _Atomic uint64_t *count = (_Atomic uint64_t *)&page->counts;
    for (size_t i = 0; i < sizeof page->counts / sizeof *count; i++)
        store_relaxed(&count[i], 0);
    ct_gate_request_clear(page);
    store_relaxed(&page->wanted_ns, 0);
    store_relaxed(&page->paid_ns, 0);
    store_relaxed(&page->paid_ppm, 0);
    store_relaxed(&page->over_ns, 0);
    store_relaxed(&page->part_ppm, 0);
    store_relaxed(&page->lost_ns, 0);
    store_relaxed(&page->loss_reports, 0);
    store_relaxed(&page->delayed_ns, 0);
    store_relaxed(&page->undelayed_ns, 0);
    store_relaxed(&page->measured_waits, 0);
    store_relaxed(&page->clean_wanted_ns, 0);
    store_relaxed(&page->ranks_ns, 0);
    store_relaxed(&page->owes_ns, 0);
    store_relaxed(&page->used_ns, 0);
    store_relaxed(&page->min_share_used_ns, 0);
    store_relaxed(&page->min_share_ns, 0);
    store_relaxed(&page->admitted_until_ns, 0);
    store_relaxed(&page->kernel_count, 0);
    store_relaxed(&page->active_ns, 0);
    store_relaxed(&page->active_counted_ns, 0);
    store_relaxed(&page->unknown_ns, 0);
    store_relaxed(&page->unfinished_ns, 0);
    store_relaxed(&page->busy_ns, 0);
    store_relaxed(&page->next_ns, 0);
    store_relaxed(&page->quiet_ns, 0);
    store_relaxed(&page->latest_ns, 0);
    store_relaxed(&page->waits_ns, 0);
    store_relaxed(&page->at_ns, 0);
    store_release(&page->generation, gate->generation);
}

/* Reads the process's own entry. A process without one has the lowest priority. */
static void read_own_entry(struct ct_gate *gate)
{
    gate->has_entry = gate->is_paused = gate->is_ending = 0;
    gate->priority = CT_GATE_PRIORITIES;
    gate->min_share_ppm = gate->limit_ppm = 0;
    gate->is_static = 0;
    for (uint64_t i = 0; i < gate->rules.process_count; i++) {
        const struct ct_tenant_entry *entry = &gate->rules.processes[i];
        if (entry->index != gate->index || entry->generation != gate->generation)
            continue;
        gate->has_entry = 1;
        gate->tenant = entry->tenant;
        gate->priority = priority_of(entry);
        gate->is_paused = (entry->flags & CT_TENANT_PAUSED) != 0;
        gate->is_ending = (entry->flags & CT_TENANT_ENDING) != 0;
        gate->min_share_ppm = entry->min_share_ppm;
        gate->limit_ppm = entry->limit_ppm;
        gate->is_static = (entry->flags & CT_TENANT_STATIC) != 0;
    }
}

void ct_gate_reread(struct ct_gate *gate)
{
    uint64_t writes;
    if (ct_tenant_table_read(gate->table, &gate->rules, &writes) < 0)
        return; /* the previous rules remain in force, and the next launch tries again */
    const struct ct_gate_rules *rules = &gate->rules;
    gate->writes = writes;
    gate->lease.until_ns = 0; /* what was used under it is charged with the next decision */
    ct_account_gather(gate); /* also from siblings that the new table no longer lists */
    read_own_entry(gate);
    gate->policy = rules->policy;
    gate->bound_ns = rules->bound_ns;
    gate->delay_ppm = min_u64(rules->delay_ppm, CT_GATE_DELAY_MAX_PPM);
    gate->patience_ns = rules->patience_ns;
    gate->switch_ns = rules->switch_ns;
    gate->spin_ppm = rules->spin_ppm;
    gate->sm_ppm = rules->sm_ppm;
    gate->ignored_priority_ppm = rules->ignored_priority_ppm;
    read_all_peers(gate);
    gate->duty_from_ns = 0; /* measure the activity of the others from now on */
    ct_space_restart(gate);
    gate->mine = gate->has_entry ? gate->page : &gate->unlisted_page;
    if (gate->has_entry)
        take_over_page(gate);
    gate->must_share = ct_limit_must_ask(gate);
    gate->must_ask = gate->is_paused || gate->is_ending || (gate->policy != CT_GATE_OPEN && gate->higher_count > 0) ||
                     gate->must_share;
    if (!gate->must_ask) /* launches that need not ask are not tracked, and their completion must not end earlier
                          * work */
        gate->unconfirmed = gate->unconfirmed_ns = gate->charged_until_ns = gate->owed_ns = 0;
}

/* ---- the process's own page -------------------------------------------------------------------------------------- */

void ct_gate_announce(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    const struct ct_announcement launch = {request->expect_ns, request->low_ns, request->high_ns,
                                           ct_gate_kernel_count(request), request->is_doubtful};
    ct_announce(gate, launch, 1, now_ns);
}

void ct_gate_withdrawn(struct ct_gate *gate, const struct ct_launch_request *request, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    const uint64_t busy_ns = load_relaxed(&mine->busy_ns);
    add_single_writer(&mine->counts.launches, -UINT64_C(1));
    add_single_writer(&mine->counts.device_ns, -request->expect_ns);
    add_single_writer(&mine->kernel_count, -(uint64_t)ct_gate_kernel_count(request));
    if (busy_ns > now_ns)
        store_relaxed(&mine->busy_ns, busy_ns - now_ns > request->expect_ns ? busy_ns - request->expect_ns : now_ns);
}

void ct_gate_completed(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    store_relaxed(&mine->unknown_ns, 0);
    store_relaxed(&mine->unfinished_ns, 0);
    if (load_relaxed(&mine->busy_ns) > now_ns)
        store_release(&mine->busy_ns, now_ns);
}

void ct_gate_sync(struct ct_gate *gate, uint64_t low_ns, uint64_t high_ns, int is_drained, uint64_t now_ns)
{
    struct ct_gate_page *mine = gate->mine;
    uint64_t busy_ns = load_relaxed(&mine->busy_ns);
    if (load_relaxed(&mine->active_counted_ns))
        count_active(gate, now_ns);
    ct_lease_end(gate, now_ns);
    if (is_drained) {
        ct_loss_drained(gate, now_ns);
        if (load_relaxed(&mine->waits_ns))
            ct_limit_held(gate, sat_sub_u64(now_ns, max_u64(busy_ns, load_relaxed(&mine->waits_ns))), now_ns);
        store_relaxed(&mine->active_counted_ns, 0);
        store_relaxed(&mine->unknown_ns, 0); /* work of unknown length is complete as well */
        store_relaxed(&mine->unfinished_ns, 0);
    }
    if (is_drained || busy_ns < now_ns)
        busy_ns = now_ns; /* a host that waits inside a call cannot launch before its work ends */
    if (is_drained)
        store_release(&mine->busy_ns, busy_ns);
    store_release(&mine->next_ns, instant_after(busy_ns, low_ns, now_ns));
    store_release(&mine->latest_ns, instant_after(busy_ns, high_ns, now_ns));
    store_release(&mine->waits_ns, is_drained ? 0 : now_ns);
    store_release(&mine->quiet_ns,
                  instant_after(sat_add_u64(busy_ns, low_ns), patience_of(gate, low_ns, high_ns), now_ns));
}

int ct_gate_has_sleepers(const struct ct_gate *gate, uint64_t now_ns)
{
    uint64_t until_ns = load_relaxed(&gate->arbitration->asleep_until_ns);
    return until_ns > now_ns && until_ns - now_ns <= CT_GATE_SLEEP_MAX_NS;
}
