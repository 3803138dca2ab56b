/* The processes of a tenant share one account: nothing that one of them uses is lost or counted twice. */
#include "gate/account.h"
#include "tests/device_pages.h"
#include "tests/expect.h"

enum { PROCESSES = 4, START = 1000 * 1000 * 1000, US = 1000, MS = 1000 * US, HALF_PPM = 500 * 1000 };

static struct device_pages device;
static struct ct_gate gates[PROCESSES];
static uint64_t seed = 7;

static uint64_t random_word(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* The first `count` processes are of one tenant with a static share of a half; the last one is of another. */
static void write_table(uint32_t count, uint8_t flags, uint32_t limit_ppm)
{
    struct ct_gate_rules rules = {.policy = CT_GATE_FILL, .bound_ns = 500 * US, .delay_ppm = 20000,
                                  .patience_ns = 2 * MS};
    for (uint32_t i = 0; i < PROCESSES; i++) {
        const int is_other = i == PROCESSES - 1;
        if (!is_other && i >= count)
            continue;
        rules.processes[rules.process_count++] = (struct ct_tenant_entry){
            .generation = 1, .index = (uint16_t)i, .tenant = is_other, .priority = is_other ? 6 : 5,
            .flags = is_other ? 0 : flags, .limit_ppm = is_other ? 0 : limit_ppm,
            .min_share_ppm = is_other ? 0 : HALF_PPM};
    }
    ct_tenant_table_write(&device.table, &rules);
}

static void begin(uint8_t flags, uint32_t limit_ppm)
{
    memset(&device, 0, page_start(PROCESSES));
    EXPECT(ct_tenant_table_init(&device.table, CT_TABLE_BYTES) == 0);
    write_table(PROCESSES - 1, flags, limit_ppm);
    for (uint32_t i = 0; i < PROCESSES; i++)
        open_process(&gates[i], &device, i, 1);
    EXPECT_EQ(gates[0].sibling_count, PROCESSES - 2);
    EXPECT_EQ(gates[PROCESSES - 1].sibling_count, 0);
}

static uint64_t ahead_of(uint32_t process)
{
    EXPECT(ct_gate_must_ask(&gates[process]));
    ct_account_update(&gates[process], START);
    return ct_account_ahead(&gates[process], START);
}

/* Whichever process uses or returns time, every process of the tenant knows the sum. */
static void every_process_knows_the_sum(void)
{
    uint64_t used_ns = 0;
    begin(CT_TENANT_STATIC, HALF_PPM);
    for (int round = 0; round < 2000; round++) {
        const uint32_t process = (uint32_t)(random_word() % (PROCESSES - 1));
        const uint64_t more_ns = 1 + random_word() % (10 * MS);
        ct_account_update(&gates[process], START);
        if (round % 3 || used_ns < more_ns) {
            ct_gate_measured(&gates[process], 0, more_ns, START);
            used_ns += more_ns;
        } else {
            ct_gate_measured(&gates[process], more_ns, 0, START);
            used_ns -= more_ns;
        }
        if (round % 5 == 0)
            for (uint32_t i = 0; i < PROCESSES - 1; i++) {
                EXPECT(ahead_of(i) >= 2 * used_ns); /* more if another process has not seen a refund yet */
                EXPECT_EQ(gates[i].paid_ns - START, 2 * used_ns);
            }
    }
    EXPECT(used_ns > 1000 * MS);
}

/* A process that ends takes nothing with it, and one that joins finds what was used before. */
static void account_survives_its_processes(void)
{
    begin(CT_TENANT_STATIC, HALF_PPM);
    for (uint32_t i = 0; i < PROCESSES - 1; i++)
        ct_gate_measured(&gates[i], 0, 10 * MS, START);
    write_table(1, CT_TENANT_STATIC, HALF_PPM); /* two of them end, unseen by the first */
    EXPECT_EQ(ahead_of(0), 2 * 30 * MS);
    write_table(2, CT_TENANT_STATIC, HALF_PPM);
    memset(&device.process[1], 0, sizeof device.process[1]);
    open_process(&gates[1], &device, 1, 1);
    EXPECT_EQ(ahead_of(1), 2 * 30 * MS);
    ct_gate_measured(&gates[1], 0, 10 * MS, START);
    EXPECT_EQ(ahead_of(0), 2 * 40 * MS);
}

/* What another process used before the share changed is earned at the new share. */
static void changed_share_applies_to_all(void)
{
    begin(CT_TENANT_STATIC, HALF_PPM);
    struct ct_launch_request request = {.expect_ns = 10 * MS, .upper_ns = 10 * MS};
    EXPECT(ct_gate_admit(&gates[0], &request, START, START).pass);
    write_table(PROCESSES - 1, CT_TENANT_STATIC, HALF_PPM / 5);
    const struct ct_gate_answer answer = ct_gate_admit(&gates[1], &request, START, START);
    EXPECT(!answer.pass && answer.reason == CT_GATE_LIMIT);
    EXPECT_EQ(answer.until_ns, START + 100 * MS);
}

/* A tenant without others of its priority needs not ask because of its own processes. */
static void siblings_do_not_compete_for_shares(void)
{
    begin(0, HALF_PPM);
    for (uint32_t i = 0; i < PROCESSES - 1; i++)
        EXPECT(!ct_gate_must_ask(&gates[i]));
}

/* An ending tenant has one launch on the device, over all its processes. */
static void ending_tenant_has_one_launch(void)
{
    begin(CT_TENANT_ENDING, 0);
    struct ct_launch_request request = {.expect_ns = MS, .upper_ns = MS};
    EXPECT(gates[0].must_claim);
    EXPECT(ct_gate_admit(&gates[0], &request, START, START).pass);
    EXPECT(ct_gate_admit(&gates[1], &request, START, START).reason == CT_GATE_BOUND);
    ct_gate_submitted(&gates[0], &request, 1, START);
    ct_gate_confirmed(&gates[0], MS, START + US);
    EXPECT(ct_gate_admit(&gates[1], &request, START + US, START + US).pass);
}

/* Siblings with arbitrary totals only affect their own tenant's account, whose debt is bounded. */
static void forged_totals_are_bounded(void)
{
    begin(CT_TENANT_STATIC, HALF_PPM);
    ct_gate_measured(&gates[0], 0, MS, START);
    const uint64_t forged[] = {UINT64_MAX, INT64_MAX, (uint64_t)INT64_MIN, 1, UINT64_MAX / 3};
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        store_relaxed(&device.process[1].gate.used_ns, forged[i]);
        store_relaxed(&device.process[1].gate.min_share_used_ns, forged[i]);
        store_relaxed(&device.process[1].gate.paid_ns, forged[i]);
        store_relaxed(&device.process[1].gate.min_share_ns, forged[i]);
        EXPECT(ahead_of(0) <= CT_GATE_HORIZON_NS);
        EXPECT(ct_account_min_share_ahead(&gates[0], START) <= CT_GATE_HORIZON_NS);
    }
}

int main(void)
{
    every_process_knows_the_sum();
    account_survives_its_processes();
    changed_share_applies_to_all();
    siblings_do_not_compete_for_shares();
    ending_tenant_has_one_launch();
    forged_totals_are_bounded();
    return 0;
}
