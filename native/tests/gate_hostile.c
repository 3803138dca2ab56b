/* What processes of lower priority write, in their pages or in the arbitration page, never makes a process of higher
 * priority wait; and no process keeps its equals out for good. */
#include "tests/device_pages.h"
#include "tests/expect.h"

enum { PROCESSES = 6, ROUNDS = 40000, START = 1000 * 1000 * 1000, US = 1000, MS = 1000 * US };

static struct device_pages calm, hostile;
static uint64_t seed = 88172645463325252u;

static uint64_t random_word(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static uint64_t hostile_word(uint64_t now_ns)
{
    const uint64_t words[] = {0, 1, UINT64_MAX, UINT64_MAX / 2, INT64_MAX, now_ns, now_ns + CT_GATE_HORIZON_NS,
                              now_ns + random_word() % (5 * MS), random_word()};
    return words[random_word() % (sizeof words / sizeof *words)];
}

/* Fills the pages from the first index on, and the arbitration page, and keeps the generations valid in most cases. */
static void corrupt(struct device_pages *device, uint32_t first, uint64_t now_ns)
{
    for (uint32_t index = first; index < PROCESSES; index++) {
        uint64_t *words = (uint64_t *)&device->process[index];
        for (size_t i = 0; i < CT_GATE_PAGE_BYTES / sizeof *words; i++)
            if (random_word() % 3 == 0)
                words[i] = hostile_word(now_ns);
        store_relaxed(&device->process[index].gate.generation, random_word() % 8 ? 1 : random_word());
    }
    uint64_t *words = (uint64_t *)&device->arbitration;
    for (size_t i = 0; i < sizeof device->arbitration / sizeof *words; i++)
        words[i] = hostile_word(now_ns);
}

/* Each process is a tenant of its own; `limits` are the shares. */
static void write_table(struct device_pages *device, const int *priorities, const uint32_t *limits)
{
    struct ct_gate_rules rules = {.policy = CT_GATE_FILL, .bound_ns = 500 * US, .delay_ppm = 20000,
                                  .patience_ns = 2 * MS, .process_count = PROCESSES};
    for (uint32_t i = 0; i < PROCESSES; i++)
        rules.processes[i] = (struct ct_tenant_entry){.generation = 1, .index = (uint16_t)i, .tenant = i,
                                                      .priority = (uint8_t)priorities[i], .limit_ppm = limits[i]};
    memset(device, 0, page_start(PROCESSES));
    EXPECT(ct_tenant_table_init(&device->table, CT_TABLE_BYTES) == 0);
    ct_tenant_table_write(&device->table, &rules);
}

static struct ct_launch_request random_request(void)
{
    return (struct ct_launch_request){.expect_ns = 1 + random_word() % MS, .upper_ns = random_word() % MS,
                                      .low_ns = random_word() % MS, .high_ns = random_word() % (2 * MS),
                                      .may_fill = (uint32_t)(random_word() % 2)};
}

static void holder_never_waits(void)
{
    static struct ct_gate gate;
    write_table(&hostile, (const int[]){0, 1, 5, 5, 9, 9}, (const uint32_t[PROCESSES]){0});
    open_process(&gate, &hostile, 0, 1);
    uint64_t now_ns = START;
    for (int round = 0; round < ROUNDS / 10; round++) {
        now_ns += random_word() % MS;
        corrupt(&hostile, 1, now_ns);
        struct ct_launch_request request = random_request();
        const struct ct_gate_answer answer = ct_gate_admit(&gate, &request, now_ns, now_ns);
        EXPECT(answer.pass && answer.reason == CT_GATE_TOP && !gate.must_ask);
        ct_gate_sync(&gate, 0, 0, 0, now_ns);
        ct_gate_sync(&gate, 0, 0, 1, now_ns + MS);
        ct_gate_has_sleepers(&gate, now_ns);
        EXPECT(ct_gate_wake_limit(&gate) == PROCESSES - 1);
    }
}

/* Two processes that share the highest priority get the same answers whatever is written below them. */
static void shares_do_not_depend_on_lower_priorities(void)
{
    static struct ct_gate gates[2][2];
    struct device_pages *devices[2] = {&calm, &hostile};
    uint64_t waits = 0, now_ns = START;
    for (int i = 0; i < 2; i++) {
        write_table(devices[i], (const int[]){2, 2, 5, 5, 9, 9}, (const uint32_t[]){300000, 0, 0, 100000, 0, 0});
        for (uint32_t process = 0; process < 2; process++)
            open_process(&gates[i][process], devices[i], process, 1);
    }
    uint64_t since_ns[2] = {START, START};
    for (int round = 0; round < ROUNDS; round++) {
        const int process = (int)(random_word() % 2);
        struct ct_launch_request request = random_request();
        now_ns += random_word() % (300 * US) + (random_word() % 64 ? 0 : 15 * MS);
        const int is_drained = (int)(random_word() % 2);
        if (round % 8 == 0)
            corrupt(&hostile, 2, now_ns);
        struct ct_gate_answer answers[2];
        for (int i = 0; i < 2; i++) {
            answers[i] = ct_gate_admit(&gates[i][process], &request, since_ns[process], now_ns);
            if (answers[i].pass) {
                ct_gate_submitted(&gates[i][process], &request, round % 16 != 0, now_ns);
                ct_gate_confirmed(&gates[i][process], request.expect_ns, now_ns);
            }
            if (round % 5 == 0)
                ct_gate_sync(&gates[i][process], 0, 0, is_drained, now_ns);
        }
        EXPECT_EQ(answers[0].pass, answers[1].pass);
        EXPECT_EQ(answers[0].reason, answers[1].reason);
        EXPECT_EQ(answers[0].until_ns, answers[1].until_ns);
        waits += !answers[0].pass;
        since_ns[process] = answers[0].pass ? now_ns : since_ns[process];
    }
    EXPECT(waits > 0 && waits < ROUNDS);
}

/* Returns a claim that a process has just taken; see claim.c. */
static uint64_t claim_of(uint32_t index, uint64_t now_ns)
{
    return (((now_ns + CT_GATE_CLAIM_NS) >> 10) + 1) << 24 | 1 << 11 | (index + 1);
}

/* A process of lower priority always states that it has work, owes a debt and holds the claim. */
static void obstruct(struct device_pages *device, uint32_t index, uint64_t now_ns)
{
    struct ct_gate_page *page = &device->process[index].gate;
    store_relaxed(&page->generation, 1);
    store_relaxed(&page->sequence, load_relaxed(&page->sequence) + 1);
    store_relaxed(&page->busy_ns, now_ns + 10 * MS);
    store_relaxed(&page->owes_ns, now_ns + CT_GATE_DEBT_MAX_NS);
    store_relaxed(&page->wanted_ns, 1);
    store_relaxed(&page->asked_ns, now_ns);
    store_relaxed(&device->arbitration.debt_ns, now_ns + CT_GATE_DEBT_MAX_NS);
    store_relaxed(&device->arbitration.claim, claim_of(index, now_ns));
}

/* A process between the holder and the obstructing one: the latter delays it once for a bounded time. */
static void obstruction_ends_after_a_bounded_time(void)
{
    static struct ct_gate gate;
    write_table(&hostile, (const int[]){0, 5, 9, 9, 9, 9}, (const uint32_t[PROCESSES]){0});
    open_process(&gate, &hostile, 1, 1);
    struct ct_launch_request request = {.expect_ns = 400 * US, .upper_ns = 400 * US, .may_fill = 1};
    uint64_t now_ns = START, passed = 0, waited_ns = 0;
    while (now_ns < START + UINT64_C(2000) * MS) {
        const uint64_t since_ns = now_ns;
        struct ct_gate_answer answer;
        do {
            obstruct(&hostile, 2, now_ns);
            answer = ct_gate_admit(&gate, &request, since_ns, now_ns);
            now_ns += answer.pass ? 0 : 20 * US;
            EXPECT(now_ns - since_ns < UINT64_C(300) * MS);
        } while (!answer.pass);
        ct_gate_submitted(&gate, &request, 1, now_ns);
        waited_ns += now_ns - since_ns;
        now_ns += 500 * US;
        ct_gate_confirmed(&gate, request.expect_ns, now_ns);
        passed++;
    }
    EXPECT(waited_ns < UINT64_C(400) * MS);
    EXPECT(passed > 3000);
}

/* An equal that always renews its claim, but states nothing else, delays the others for a bounded time as well. */
static void renewed_claim_is_ignored(void)
{
    static struct ct_gate gate;
    write_table(&hostile, (const int[]){0, 5, 5, 5, 9, 9}, (const uint32_t[PROCESSES]){0});
    open_process(&gate, &hostile, 1, 1);
    struct ct_launch_request request = {.expect_ns = 400 * US, .upper_ns = 400 * US, .may_fill = 1};
    uint64_t now_ns = START, waits = 0;
    for (int launch = 0; launch < 100; launch++, now_ns += 500 * US) {
        struct ct_gate_answer answer;
        do {
            store_relaxed(&hostile.arbitration.claim, claim_of(2, now_ns));
            answer = ct_gate_admit(&gate, &request, now_ns, now_ns);
            EXPECT(answer.pass || answer.reason == CT_GATE_OTHER);
            waits += !answer.pass;
            now_ns += answer.pass ? 0 : 20 * US;
            EXPECT(now_ns < START + UINT64_C(60) * MS);
        } while (!answer.pass);
        ct_gate_confirmed(&gate, request.expect_ns, now_ns + 400 * US);
    }
    EXPECT(waits >= CT_GATE_CLAIM_REFUSALS - 1 && waits <= CT_GATE_CLAIM_REFUSED_MAX_NS / (20 * US) + 1);
}

int main(void)
{
    holder_never_waits();
    shares_do_not_depend_on_lower_priorities();
    obstruction_ends_after_a_bounded_time();
    renewed_claim_is_ignored();
    return 0;
}
