/* A page counts every request once, in the right bucket, with concurrent writers. */
#include "gate/request.h"
#include "tests/device_pages.h"
#include "tests/expect.h"

#include <pthread.h>

enum { THREADS = 4, EACH = 20000 };

static union {
    struct ct_gate_page page;
    unsigned char bytes[CT_GATE_PAGE_BYTES];
} storage;
static struct ct_gate_page *const page = &storage.page;

static uint64_t bucket_total(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < CT_GATE_REQUEST_BUCKETS; i++)
        sum += page->requests.bucket[i];
    return sum;
}

/* Buckets ascend without gaps, and none is wider than a sixteenth of its start. */
static void buckets_are_contiguous_and_narrow(void)
{
    EXPECT_EQ(ct_gate_request_bucket(0), 0);
    EXPECT_EQ(ct_gate_request_bucket((UINT64_C(1) << 14) - 1), 0);
    EXPECT_EQ(ct_gate_request_bucket(UINT64_MAX), CT_GATE_REQUEST_BUCKETS - 1);
    EXPECT_EQ(ct_gate_request_bucket(UINT64_C(1) << 36), CT_GATE_REQUEST_BUCKETS - 1);
    uint64_t begin_ns = UINT64_C(1) << 14;
    for (uint32_t bucket = 0; bucket < CT_GATE_REQUEST_BUCKETS; bucket++) {
        const uint64_t width_ns = (UINT64_C(1) << 10) << bucket / 16;
        EXPECT_EQ(ct_gate_request_bucket(begin_ns), bucket);
        EXPECT_EQ(ct_gate_request_bucket(begin_ns + width_ns - 1), bucket);
        EXPECT(width_ns * 16 <= begin_ns);
        begin_ns += width_ns;
    }
    EXPECT_EQ(begin_ns, UINT64_C(1) << 36);
}

static void *end_requests(void *argument)
{
    const uint64_t number = (uint64_t)(uintptr_t)argument;
    for (uint64_t i = 0; i < EACH; i++)
        ct_gate_request_ended(page, (number + 1) << 14, UINT64_C(2) << 14);
    return NULL;
}

static void concurrent_requests_are_all_counted(void)
{
    pthread_t threads[THREADS];
    ct_gate_request_clear(page);
    for (uintptr_t i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, end_requests, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    EXPECT_EQ(page->requests.ended, THREADS * EACH);
    EXPECT_EQ(page->requests.over, 2 * EACH); /* of four, two are longer than two */
    EXPECT_EQ(page->requests.sum_ns, (UINT64_C(10) << 14) * EACH);
    EXPECT_EQ(bucket_total(), THREADS * EACH);
}

static void requests_without_slo_are_never_over(void)
{
    ct_gate_request_clear(page);
    ct_gate_request_ended(page, UINT64_MAX, 0);
    ct_gate_request_ended(page, 5, 5);
    EXPECT_EQ(page->requests.ended, 2);
    EXPECT_EQ(page->requests.over, 0);
    ct_gate_request_clear(page);
    EXPECT_EQ(page->requests.ended + page->requests.sum_ns + bucket_total(), 0);
}

static void oldest_request_is_published(void)
{
    ct_gate_request_clear(page);
    ct_gate_request_oldest(page, 30, 0);
    EXPECT_EQ(page->requests.began_ns, 30);
    ct_gate_request_oldest(page, 0, 0);
    EXPECT_EQ(page->requests.began_ns, 0);
}

/* A process starts with cleared counters under each generation; if its gate is opened again, it keeps them. */
static void new_generation_starts_with_cleared_counters(void)
{
    static struct device_pages device;
    static struct ct_gate gate;
    struct ct_gate_rules rules = {.policy = CT_GATE_FILL, .process_count = 1};
    struct ct_gate_page *mine = &device.process[0].gate;
    EXPECT(ct_tenant_table_init(&device.table, CT_TABLE_BYTES) == 0);
    for (uint32_t generation = 1; generation <= 2; generation++) {
        rules.processes[0] = (struct ct_tenant_entry){.generation = generation, .flags = CT_TENANT_ONLINE};
        ct_tenant_table_write(&device.table, &rules);
        for (int opened = 0; opened < 2; opened++) {
            open_process(&gate, &device, 0, generation);
            EXPECT_EQ(mine->requests.ended, opened);
            ct_gate_request_ended(gate.mine, 1000, 10);
            ct_gate_request_set_reported(gate.mine);
        }
        EXPECT_EQ(mine->requests.over, 2);
        EXPECT(ct_gate_request_is_reported(&gate));
    }
}

/* If one process of a tenant reports its requests, the others count no detected ones; other tenants are not affected. */
static void siblings_know_that_requests_are_reported(void)
{
    static struct device_pages device;
    static struct ct_gate gates[3];
    struct ct_gate_rules rules = {.policy = CT_GATE_FILL, .process_count = 3};
    EXPECT(ct_tenant_table_init(&device.table, CT_TABLE_BYTES) == 0);
    for (uint16_t i = 0; i < 3; i++)
        rules.processes[i] = (struct ct_tenant_entry){.generation = 1, .index = i, .tenant = i / 2};
    ct_tenant_table_write(&device.table, &rules);
    for (uint32_t i = 0; i < 3; i++)
        open_process(&gates[i], &device, i, 1);
    EXPECT(!ct_gate_request_is_reported(&gates[1]));
    ct_gate_request_set_reported(gates[0].mine);
    EXPECT(ct_gate_request_is_reported(&gates[0]) && ct_gate_request_is_reported(&gates[1]));
    EXPECT(!ct_gate_request_is_reported(&gates[2]));
}

int main(void)
{
    buckets_are_contiguous_and_narrow();
    concurrent_requests_are_all_counted();
    requests_without_slo_are_never_over();
    oldest_request_is_published();
    new_generation_starts_with_cleared_counters();
    siblings_know_that_requests_are_reported();
    return 0;
}
