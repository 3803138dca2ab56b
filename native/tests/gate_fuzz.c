/* Fuzz test: whatever the pages contain and whatever the instants are, the gate stays within bounds and every wait is
 * finite. */
#include "tests/device_pages.h"
#include "tests/expect.h"

enum { SLOTS = 6, ROUNDS = 1000000, GATES = 3, GANG_RANKS = 3 };

static struct device_pages device;
static struct ct_gang_page gang_page;
static uint64_t seed = 1;

static uint64_t random_word(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* Returns mostly a value near an instant, sometimes an extreme one, sometimes any value. */
static uint64_t word_near(uint64_t now_ns)
{
    switch (random_word() % 8) {
    case 0:
        return random_word();
    case 1:
        return UINT64_MAX - random_word() % 3;
    case 2:
        return random_word() % 3;
    case 3:
        return now_ns;
    default:
        return now_ns + random_word() % 4000000 - 1000000;
    }
}

static uint64_t random_length(void)
{
    const uint64_t lengths[] = {0, 1, 2000, 60000, 700000, 90000000, CT_GATE_HORIZON_NS, UINT64_MAX / 2, UINT64_MAX,
                                random_word()};
    return lengths[random_word() % 10];
}

static struct ct_launch_request random_request(void)
{
    return (struct ct_launch_request){.expect_ns = random_length(),
                                 .upper_ns = random_length(),
                                 .low_ns = random_length(),
                                 .high_ns = random_length(),
                                 .may_fill = (uint32_t)(random_word() % 2),
                                 .kernel_count = (uint32_t)random_length(),
                                 .granularity_ns = random_word() % 2 ? random_length() : 0,
                                 .free_ppm = random_word() % 2 ? (uint32_t)random_length() : 0,
                                 .is_collective = random_word() % 4 == 0};
}

static void corrupt_pages(uint64_t now_ns)
{
    uint64_t *words = (uint64_t *)&device.process[random_word() % SLOTS];
    for (int i = 0; i < 6; i++)
        words[random_word() % (random_word() % 2 ? 13 : CT_GATE_PAGE_BYTES / 8)] = word_near(now_ns);
    if (random_word() % 4 == 0)
        words[5] = random_word() % 3; /* its generation */
    if (random_word() % 8 == 0) /* kernels in a launch: none, few, or many */
        words[offsetof(struct ct_gate_page, counts.launches) / 8] = random_word() % 2 ? random_word() % 3
            : random_word();
    uint64_t *gang = (uint64_t *)&gang_page;
    for (int i = 0; i < 3; i++)
        gang[random_word() % (8 * (GANG_RANKS + 1))] = word_near(now_ns);
    uint64_t *arbitration = (uint64_t *)&device.arbitration;
    if (random_word() % 4 == 0)
        /* the second one of the last is charged_ns */
        arbitration[8 * (random_word() % 4) + (random_word() % 8 == 0)] = word_near(now_ns);
}

static void write_random_table(void)
{
    struct ct_gate_rules rules = {.policy = random_word() % 4,
                                  .bound_ns = random_length(),
                                  .delay_ppm = random_length(),
                                  .patience_ns = random_length(),
                                  .switch_ns = random_length(),
                                  .spin_ppm = random_length(),
                                  .sm_ppm = random_word() % 4 ? random_word() % 1500000 : random_length(),
                                  .process_count = random_word() % 8};
    if (random_word() % 16 == 0)
        rules.process_count = random_word();
    for (int i = 0; i < 8; i++)
        rules.processes[i] = (struct ct_tenant_entry){.generation = (uint32_t)(random_word() % 3),
                                              .index =
                                                  (uint16_t)(random_word() % 16 ? random_word() % SLOTS
                                                             : random_word()),
                                              .priority =
                                                  (uint8_t)(random_word() % 16 ? random_word() % 4 : random_word()),
                                              .flags = (uint8_t)(random_word() % 4 ? 0 : random_word()),
                                              .min_share_ppm = random_word() % 2 ? 0 : (uint32_t)random_length(),
                                              .limit_ppm = random_word() % 2 ? 0 : (uint32_t)random_length(),
                                              .tenant = (uint32_t)(random_word() % 4)};
    ct_tenant_table_write(&device.table, &rules);
    if (random_word() % 64 == 0) { /* as if the node had written garbage */
        uint64_t *copy = (uint64_t *)device.table.copy;
        copy[random_word() % (2 * CT_GATE_RULES_WORDS)] = random_word();
    }
}

/* Asks for admission in whatever state earlier calls have left the gate; every answer has a finite wait. */
static void admit_random_request(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_launch_request request = random_request();
    if (random_word() % 16 == 0) {
        gate->is_mps = (int)(random_word() % 2);
        gate->sm_step_ppm = (uint32_t)(random_word() % 2 ? random_word() % 300000 : 0);
    }
    uint64_t since_ns = random_word() % 4 ? now_ns - random_word() % 200000000 : word_near(now_ns);
    struct ct_gate_answer answer = ct_gate_admit(gate, &request, since_ns, now_ns);
    EXPECT(answer.pass == (answer.reason < CT_GATE_BUSY || answer.reason == CT_GATE_SPACE ||
                           answer.reason == CT_GATE_AGREED));
    EXPECT(answer.reason < CT_GATE_REASON_COUNT);
    const int is_limited_open = answer.reason == CT_GATE_TOP && gate->policy == CT_GATE_OPEN;
    EXPECT(!request.sm_ppm || ((answer.reason == CT_GATE_SPACE || is_limited_open) && request.sm_ppm <= 1000000));
    EXPECT(answer.until_ns >= now_ns);
    EXPECT(gate->duty_ppm >= CT_GATE_DUTY_MIN_PPM && gate->duty_ppm <= 1000000);
    EXPECT(answer.until_ns - now_ns <= SLOTS * CT_GATE_HORIZON_NS);
    EXPECT(answer.pass || answer.until_ns > now_ns || answer.reason == CT_GATE_CHANGED || now_ns == UINT64_MAX);
    if (answer.pass) {
        ct_gate_submitted(gate, &request, random_word() % 4 != 0, word_near(now_ns));
        return;
    }
    struct ct_gate_wait_plan plan = ct_gate_wait_plan(gate, &answer, now_ns);
    EXPECT(plan.sleep_until_ns <= now_ns || plan.sleep_until_ns - now_ns <= CT_GATE_SLEEP_MAX_NS);
    EXPECT(plan.spin_until_ns <= now_ns || plan.spin_until_ns - now_ns <= CT_GATE_SLEEP_MAX_NS);
    if (random_word() % 2)
        ct_gate_waited(gate, since_ns, now_ns);
}

static void call_randomly(struct ct_gate *gate, uint64_t now_ns)
{
    struct ct_launch_request request = random_request();
    switch (random_word() % 13) {
    case 0:
        if (!ct_gate_must_ask(gate))
            ct_gate_announce(gate, &request, now_ns);
        break;
    case 1:
        ct_gate_sync(gate, random_length(), random_length(), (int)(random_word() % 2), now_ns);
        break;
    case 2:
        ct_gate_confirmed(gate, random_length(), now_ns);
        break;
    case 3:
        ct_gate_prolong(gate, word_near(now_ns));
        break;
    case 4:
        ct_gate_spun(gate, random_length(), now_ns);
        ct_gate_slept(gate, random_length());
        ct_gate_overslept(gate, random_length(), now_ns);
        break;
    case 5:
        ct_gate_withdrawn(gate, &request, now_ns);
        EXPECT(ct_gate_has_sleepers(gate, now_ns) <= 1);
        break;
    case 6:
        ct_gate_measured(gate, random_length(), random_length(), now_ns);
        break;
    default:
        admit_random_request(gate, now_ns);
    }
}

static void open_gate(struct ct_gate *gate)
{
    const uint32_t slot = (uint32_t)(random_word() % SLOTS);
    open_process(gate, &device, slot, (uint32_t)(random_word() % 3));
    if (random_word() % 2)
        ct_gang_join(&gate->gang, &gang_page, GANG_RANKS, gate->generation);
}

static void random_pages_and_instants_keep_waits_finite(void)
{
    static struct ct_gate gates[GATES];
    uint64_t now_ns = 1000000000;
    for (int i = 0; i < GATES; i++)
        open_gate(&gates[i]);
    for (int round = 0; round < ROUNDS; round++) {
        now_ns = random_word() % 64 ? now_ns + random_word() % 100000 : word_near(now_ns);
        if (random_word() % 4 == 0)
            corrupt_pages(now_ns);
        if (random_word() % 32 == 0)
            write_random_table();
        if (random_word() % 256 == 0)
            open_gate(&gates[random_word() % GATES]);
        call_randomly(&gates[random_word() % GATES], now_ns);
        if (now_ns > UINT64_MAX / 2 && random_word() % 16 == 0)
            now_ns = 1000000000;
    }
}

/* When the corruption ends and all tenants are quiet, the remaining one passes. */
static void gate_recovers_after_corruption(void)
{
    static struct ct_gate gate;
    for (int round = 0; round < 300; round++) {
        uint64_t now_ns = 1000000000000 + random_word() % 1000000000;
        for (int i = 0; i < 40; i++)
            corrupt_pages(now_ns);
        struct ct_gate_rules rules = {.policy = CT_GATE_STRICT + random_word() % 2,
                                      .bound_ns = 500000,
                                      .delay_ppm = 20000,
                                      .patience_ns = 2000000,
                                      .process_count = SLOTS};
        for (uint16_t i = 0; i < SLOTS; i++)
            rules.processes[i] = (struct ct_tenant_entry){.generation = (uint32_t)(random_word() % 3), .index = i, .tenant = i,
                                                        .priority = (uint8_t)i};
        ct_tenant_table_write(&device.table, &rules);
        open_process(&gate, &device, SLOTS - 1, rules.processes[SLOTS - 1].generation);
        ct_gang_join(&gate.gang, &gang_page, GANG_RANKS, gate.generation);
        struct ct_launch_request request = {.expect_ns = 50000, .upper_ns = 60000, .may_fill =
            (uint32_t)(random_word() % 2),
                                            .granularity_ns = random_word() % 9,
                                            .is_collective = random_word() % 2};
        const uint64_t since_ns = now_ns;
        struct ct_gate_answer answer = {0};
        for (int attempt = 0; attempt < 10000 && !answer.pass; attempt++) {
            answer = ct_gate_admit(&gate, &request, since_ns, now_ns);
            now_ns = answer.until_ns + (answer.reason == CT_GATE_OTHER ? 100000 : 0);
        }
        if (!answer.pass)
            fprintf(stderr, "round %d: the launch still waits for reason %u\n", round, answer.reason);
        EXPECT(answer.pass);
        EXPECT(now_ns - since_ns <= 3 * CT_GATE_HORIZON_NS);
    }
}

int main(void)
{
    EXPECT(ct_tenant_table_init(&device.table, CT_TABLE_BYTES) == 0);
    random_pages_and_instants_keep_waits_finite();
    gate_recovers_after_corruption();
    return 0;
}
