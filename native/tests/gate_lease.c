/* A launch that passes under a lease passes by a decision too, and leaves the same words; a lease ends with whatever it was
 * based on. */
#include "gate/lease.h"
#include "tests/device_pages.h"
#include "tests/expect.h"

enum { START = 1000 * 1000 * 1000, US = 1000, MS = 1000 * US, HALF_PPM = 500 * 1000, HOLDER = 0, LOWER = 1, PAIR = 2 };

/* The same history in two devices: in the second one, launches pass under a lease where they can. */
static struct device_pages devices[2];
static struct ct_gate holders[2], lowers[2];
static uint64_t seed = 11;

static uint64_t random_below(uint64_t limit)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % limit;
}

static struct ct_gate_rules rules_of(uint32_t limit_ppm, uint8_t flags)
{
    struct ct_gate_rules rules = {.policy = CT_GATE_FILL, .bound_ns = 500 * US, .delay_ppm = 20000,
                                  .patience_ns = 2 * MS, .process_count = PAIR};
    rules.processes[HOLDER] = (struct ct_tenant_entry){.generation = 1, .index = HOLDER, .priority = 2, .tenant = 0};
    rules.processes[LOWER] = (struct ct_tenant_entry){.generation = 1, .index = LOWER, .priority = 7, .tenant = 1,
                                                      .limit_ppm = limit_ppm, .flags = flags};
    return rules;
}

static void begin(uint32_t limit_ppm, uint8_t flags)
{
    const struct ct_gate_rules rules = rules_of(limit_ppm, flags);
    for (int i = 0; i < 2; i++) {
        memset(&devices[i], 0, page_start(PAIR));
        EXPECT(ct_tenant_table_init(&devices[i].table, CT_TABLE_BYTES) == 0);
        ct_tenant_table_write(&devices[i].table, &rules);
        open_process(&holders[i], &devices[i], HOLDER, 1);
        open_process(&lowers[i], &devices[i], LOWER, 1);
    }
}

static struct ct_launch_request request_of(uint64_t expect_ns)
{
    return (struct ct_launch_request){.expect_ns = expect_ns, .upper_ns = expect_ns, .low_ns = 5 * US,
                                      .high_ns = 20 * US, .may_fill = 1, .kernel_count = 1 + random_below(3),
                                      .granularity_ns = random_below(2) ? US : 0, .free_ppm = (uint32_t)random_below(HALF_PPM)};
}

/* Asks for a launch, and confirms it at once if it passes. */
static struct ct_gate_answer admit(struct ct_gate *gate, struct ct_launch_request request, uint64_t now_ns)
{
    EXPECT(ct_gate_must_ask(gate));
    const struct ct_gate_answer answer = ct_gate_admit(gate, &request, now_ns, now_ns);
    if (answer.pass)
        ct_gate_submitted(gate, &request, 1, now_ns);
    return answer;
}

/* The same, under the lease if it permits. */
static struct ct_gate_answer admit_leased(struct ct_gate *gate, struct ct_launch_request request, uint64_t now_ns,
                                          uint64_t *leased)
{
    EXPECT(ct_gate_must_ask(gate));
    if (!ct_lease_pass(gate, &request, now_ns))
        return admit(gate, request, now_ns);
    ++*leased;
    return (struct ct_gate_answer){.pass = 1, .reason = gate->lease.reason, .until_ns = now_ns};
}

#define EXPECT_SAME(word) EXPECT_EQ(load_relaxed(&pages[1]->word), load_relaxed(&pages[0]->word))

/* Compares what other processes and the node read. */
static void expect_same_pages(void)
{
    const struct ct_gate_page *pages[] = {&devices[0].process[LOWER].gate, &devices[1].process[LOWER].gate};
    EXPECT_SAME(sequence);
    EXPECT_SAME(at_ns);
    EXPECT_SAME(busy_ns);
    EXPECT_SAME(quiet_ns);
    EXPECT_SAME(next_ns);
    EXPECT_SAME(latest_ns);
    EXPECT_SAME(admitted_until_ns);
    EXPECT_SAME(kernel_count);
    EXPECT_SAME(active_ns);
    EXPECT_SAME(counts.launches);
    EXPECT_SAME(counts.device_ns);
    EXPECT_SAME(counts.admitted);
    EXPECT_SAME(counts.submitted);
    EXPECT_SAME(counts.stale);
    EXPECT_SAME(counts.passed[CT_GATE_FREE]);
    EXPECT_SAME(counts.overruns);
    EXPECT_SAME(used_ns);
    /* Time that a tenant below its share has not used is lost at each charge, and a lease charges at its end, as of its
     * last launch. */
    const uint64_t paid_ns[] = {load_relaxed(&pages[0]->paid_ns), load_relaxed(&pages[1]->paid_ns)};
    EXPECT(paid_ns[1] >= paid_ns[0] && paid_ns[1] - paid_ns[0] <= CT_LEASE_NS);
    EXPECT_EQ(lowers[1].unconfirmed, lowers[0].unconfirmed);
    EXPECT_EQ(lowers[1].unconfirmed_ns, lowers[0].unconfirmed_ns);
}

/* Asks in both devices at random instants, while the holder launches, waits and drains at random. */
static void a_lease_gives_the_same_as_decisions(uint32_t limit_ppm, uint8_t flags)
{
    uint64_t now_ns = START, leased = 0, launches = 0;
    begin(limit_ppm, flags);
    for (uint64_t step = 0; step < rounds_of(20000, 2000000); step++) {
        now_ns += random_below(8 * US);
        const struct ct_launch_request request = request_of(US + random_below(2 * US));
        const struct ct_gate_answer decided = admit(&lowers[0], request, now_ns),
            answer = admit_leased(&lowers[1], request, now_ns, &leased);
        EXPECT_EQ(answer.pass, decided.pass);
        EXPECT_EQ(answer.reason, decided.reason);
        launches += decided.pass;
        const int is_drained = random_below(64) == 0 || lowers[0].unconfirmed_ns > 300 * US;
        if (is_drained)
            now_ns += 400 * US;
        for (int i = 0; i < 2 && is_drained; i++) {
            while (lowers[i].unconfirmed)
                ct_gate_confirmed(&lowers[i], lowers[i].unconfirmed_ns, now_ns);
            ct_gate_sync(&lowers[i], 5 * US, 20 * US, 1, now_ns);
        }
        if (is_drained)
            expect_same_pages();
        if (random_below(256))
            continue;
        const uint64_t action = random_below(3);
        const struct ct_launch_request launch = request_of(20 * US);
        for (int i = 0; i < 2; i++) {
            if (action == 0)
                ct_gate_announce(&holders[i], &launch, now_ns);
            else
                ct_gate_sync(&holders[i], 200 * US, 300 * US, action == 1, now_ns);
        }
        now_ns += random_below(8 * MS);
    }
    EXPECT(leased > launches / 4);
}

/* Grants a lease, with the holder idle. */
static void begin_with_lease(uint32_t limit_ppm, uint8_t flags)
{
    begin(limit_ppm, flags);
    EXPECT(admit(&lowers[1], request_of(US), START).pass);
    EXPECT(lowers[1].lease.until_ns > START);
}

static int passes(uint64_t expect_ns, uint64_t at_ns)
{
    struct ct_launch_request request = request_of(expect_ns);
    request.free_ppm = 0;
    return ct_gate_must_ask(&lowers[1]) && ct_lease_pass(&lowers[1], &request, at_ns);
}

static void a_lease_ends_with_its_reasons(void)
{
    const struct ct_launch_request launch = request_of(US);
    begin_with_lease(0, 0);
    EXPECT(passes(US, START + US));
    EXPECT(!passes(0, START + 2 * US)); /* of unknown length */
    EXPECT(!passes(US, START + CT_LEASE_NS));
    EXPECT(passes(US, START + 2 * US));
    ct_gate_announce(&holders[1], &launch, START + 3 * US);
    EXPECT(!passes(US, START + 4 * US));

    begin_with_lease(0, 0);
    ct_gate_sync(&holders[1], US, 2 * US, 0, START + US);
    EXPECT(!passes(US, START + 2 * US));

    begin_with_lease(0, 0);
    struct ct_gate_rules rules = rules_of(0, CT_TENANT_PAUSED);
    ct_tenant_table_write(&devices[1].table, &rules);
    EXPECT(!passes(US, START + US));

    begin_with_lease(0, 0);
    for (int i = 0; i < 9; i++)
        EXPECT(passes(50 * US, START + US));
    EXPECT(!passes(50 * US, START + US)); /* the bound */
}

static void a_share_is_charged(void)
{
    begin_with_lease(HALF_PPM, CT_TENANT_STATIC);
    const uint64_t before_ns = load_relaxed(&devices[1].process[LOWER].gate.used_ns);
    EXPECT(passes(40 * US, START + US) && passes(30 * US, START + US));
    EXPECT_EQ(load_relaxed(&devices[1].process[LOWER].gate.used_ns), before_ns);
    ct_lease_end(&lowers[1], START + 2 * US);
    EXPECT_EQ(load_relaxed(&devices[1].process[LOWER].gate.used_ns), before_ns + 70 * US);
    lowers[1].lease.until_ns = START + CT_LEASE_NS;
    lowers[1].lease.use_max_ns = 10 * US;
    EXPECT(passes(10 * US, START + 3 * US) && !passes(US, START + 3 * US));
}

/* The activity of holders is measured at the same instants with leases and without. */
static void a_lease_does_not_delay_a_measurement(void)
{
    const uint64_t due_ns = START + CT_GATE_DUTY_NS;
    begin_with_lease(0, 0);
    EXPECT(admit(&lowers[1], request_of(US), due_ns - 50 * US).pass);
    EXPECT_EQ(lowers[1].lease.until_ns, due_ns);
    EXPECT(passes(US, due_ns - US) && !passes(US, due_ns));
    EXPECT(admit(&lowers[1], request_of(US), due_ns).pass);
    EXPECT_EQ(lowers[1].duty_from_ns, due_ns);
    EXPECT_EQ(lowers[1].lease.until_ns, due_ns + CT_LEASE_NS);
}

/* A tenant that pauses after a lease keeps what it earns in the pause, as it would have after decisions. */
static void a_pause_after_a_lease_is_not_charged(void)
{
    const uint64_t idle_ns = START + 500 * MS, resumed_ns = idle_ns + CT_LIMIT_WINDOW_NS / 2;
    begin_with_lease(HALF_PPM, CT_TENANT_STATIC);
    EXPECT(admit(&lowers[1], request_of(US), idle_ns).pass);
    EXPECT(passes(40 * US, idle_ns + US));
    const uint64_t before_ns = lowers[1].paid_ns;
    ct_lease_end(&lowers[1], resumed_ns);
    EXPECT(lowers[1].paid_ns > before_ns && lowers[1].paid_ns <= before_ns + 2 * 40 * US + US);
}

static void a_refused_launch_is_taken_back(void)
{
    const struct ct_gate_page *page = &devices[1].process[LOWER].gate;
    begin_with_lease(HALF_PPM, CT_TENANT_STATIC);
    const struct ct_launch_request request = {.expect_ns = 30 * US, .upper_ns = 30 * US};
    const uint64_t used_ns = load_relaxed(&page->used_ns), unconfirmed_ns = lowers[1].unconfirmed_ns;
    EXPECT(ct_lease_pass(&lowers[1], &request, START + US));
    ct_lease_refused(&lowers[1], &request, 0, START + 2 * US);
    EXPECT_EQ(load_relaxed(&page->used_ns), used_ns);
    EXPECT_EQ(lowers[1].unconfirmed_ns, unconfirmed_ns);
    EXPECT_EQ(load_relaxed(&page->counts.submitted), 1);
    EXPECT(!passes(US, START + 3 * US));
}

static void a_late_launch_is_counted(void)
{
    const struct ct_launch_request launch = request_of(US);
    begin_with_lease(0, 0);
    EXPECT(passes(US, START + US) && ct_lease_is_undisturbed(&lowers[1]));
    ct_gate_announce(&holders[1], &launch, START + 2 * US);
    EXPECT(!ct_lease_is_undisturbed(&lowers[1]));
    ct_lease_late(&lowers[1], START + 5 * US);
    EXPECT_EQ(load_relaxed(&devices[1].process[LOWER].gate.counts.late), 1);
    EXPECT_EQ(load_relaxed(&devices[1].process[LOWER].gate.counts.late_ns), 3 * US);
}

/* Nobody else may depend on launches that it cannot see yet. */
static void a_process_with_peers_gets_no_lease(void)
{
    begin(0, 0);
    struct ct_gate_rules rules = rules_of(0, 0);
    rules.processes[rules.process_count++] =
        (struct ct_tenant_entry){.generation = 1, .index = PAIR, .priority = 9, .tenant = 2};
    ct_tenant_table_write(&devices[1].table, &rules);
    EXPECT(admit(&lowers[1], request_of(US), START).pass);
    EXPECT_EQ(lowers[1].lease.until_ns, 0);
}

int main(void)
{
    a_lease_gives_the_same_as_decisions(0, 0);
    a_lease_gives_the_same_as_decisions(HALF_PPM, CT_TENANT_STATIC);
    a_lease_gives_the_same_as_decisions(HALF_PPM, 0);
    a_lease_ends_with_its_reasons();
    a_lease_does_not_delay_a_measurement();
    a_share_is_charged();
    a_pause_after_a_lease_is_not_charged();
    a_refused_launch_is_taken_back();
    a_late_launch_is_counted();
    a_process_with_peers_gets_no_lease();
    return 0;
}
