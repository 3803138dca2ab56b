/* A page counts every request once, in the right bucket, with concurrent writers. */
#include "gate/gate.h"
#include "gate/request.h"
#include "tests/expect.h"

#include <pthread.h>
#include <string.h>

enum { THREADS = 4, EACH = 20000, SECOND_NS = 1000 * 1000 * 1000 };

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

static void oldest_request_of_all_processes_is_published(void)
{
    const uint64_t now_ns = 200 * (uint64_t)SECOND_NS;
    ct_gate_request_clear(page);
    ct_gate_request_oldest(page, 0, now_ns - 30, now_ns); /* one process */
    ct_gate_request_oldest(page, 0, now_ns - 50, now_ns); /* another process with an older request */
    EXPECT_EQ(page->requests.began_ns, now_ns - 50);
    ct_gate_request_oldest(page, now_ns - 30, now_ns - 10, now_ns); /* the first continues with its next request */
    EXPECT_EQ(page->requests.began_ns, now_ns - 50);
    ct_gate_request_oldest(page, now_ns - 10, 0, now_ns);
    EXPECT_EQ(page->requests.began_ns, now_ns - 50);
    ct_gate_request_oldest(page, now_ns - 50, 0, now_ns);
    EXPECT_EQ(page->requests.began_ns, 0);
}

static void implausible_entries_are_replaced(void)
{
    const uint64_t now_ns = 200 * (uint64_t)SECOND_NS;
    const uint64_t implausible[] = {now_ns - CT_GATE_HORIZON_NS - 1, now_ns + CT_GATE_HORIZON_NS + 1, UINT64_MAX, 1};
    for (size_t i = 0; i < sizeof implausible / sizeof *implausible; i++) {
        page->requests.began_ns = implausible[i];
        ct_gate_request_oldest(page, 0, now_ns - 5, now_ns);
        EXPECT_EQ(page->requests.began_ns, now_ns - 5);
        page->requests.began_ns = implausible[i];
        ct_gate_request_oldest(page, now_ns - 5, 0, now_ns);
        EXPECT_EQ(page->requests.began_ns, 0);
    }
}

/* A new tenant in the slot starts with cleared counters; a second process of the same tenant keeps them. */
static void new_tenant_starts_with_cleared_counters(void)
{
    static _Alignas(64) unsigned char file[3 * CT_GATE_PAGE_BYTES];
    static struct ct_gate gate;
    struct ct_gate_rules rules = {.policy = CT_GATE_FILL, .tenant_count = 1};
    struct ct_gate_page *mine = (struct ct_gate_page *)(file + ct_gate_offset(0));
    EXPECT(ct_tenant_table_init(file, sizeof file, 1) == 0);
    for (uint32_t generation = 1; generation <= 2; generation++) {
        rules.tenants[0] = (struct ct_tenant_entry){.generation = generation, .flags = CT_TENANT_ONLINE};
        ct_tenant_table_write((struct ct_tenant_table *)file, &rules);
        for (int process = 0; process < 2; process++) {
            ct_gate_open(&gate, file, sizeof file, mine, (struct ct_arbitration_page *)(file + CT_GATE_PAGE_BYTES), 0,
                         generation);
            EXPECT_EQ(mine->requests.ended, process);
            ct_gate_request_ended(gate.mine, 1000, 10);
            ct_gate_request_set_reported(gate.mine);
        }
        EXPECT_EQ(mine->requests.over, 2);
        EXPECT(ct_gate_request_is_reported(mine));
    }
}

int main(void)
{
    buckets_are_contiguous_and_narrow();
    concurrent_requests_are_all_counted();
    requests_without_slo_are_never_over();
    oldest_request_of_all_processes_is_published();
    implausible_entries_are_replaced();
    new_tenant_starts_with_cleared_counters();
    return 0;
}
