/* A process is limited to its tenant's quota, independent of its record, its neighbours, its threads and its driver. */
#include "hook_tenant.h"

#include <pthread.h>
#include <sys/wait.h>

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);

static void *driver_symbol(const char *name)
{
    void *driver = dlopen(IDLE_DRIVER, RTLD_NOW | RTLD_LOCAL); /* stays loaded */
    EXPECT(driver != NULL);
    void *symbol = dlsym(driver, name);
    EXPECT(symbol != NULL);
    return symbol;
}

static void quota_is_enforced_without_a_record(void)
{
    CUdeviceptr first, second, third;
    size_t free_bytes, total_bytes;
    make_tenant(4 * KIB, false);
    EXPECT_EQ(cuMemAlloc_v2(&first, 1), CUDA_SUCCESS);
    EXPECT_EQ(held(), 512); /* as the device rounds it */
    EXPECT_EQ(cuMemAlloc_v2(&second, 3 * KIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&third, 1 * KIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes, 512);
    EXPECT_EQ(total_bytes, 4 * KIB);
    EXPECT_EQ(line()->denied, 1);
    EXPECT_EQ(line()->denied_bytes, 1 * KIB);
    _Atomic uint64_t *frees = driver_symbol("idle_frees");
    EXPECT_EQ(cuMemFree_v2(first), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(0x123456000), CUDA_SUCCESS); /* an unknown pointer is passed to the driver */
    EXPECT_EQ(*frees, 2);
    EXPECT_EQ(held(), 3 * KIB);
    EXPECT_EQ(cuMemAlloc_v2(&third, 1 * KIB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(0), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(held(), 4 * KIB);
    EXPECT_EQ(line()->begun, line()->ended);
}

static void quota_changes_apply_and_grants_of_others_are_ignored(void)
{
    CUdeviceptr pointer;
    make_tenant(0, false);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 64 * KIB), CUDA_SUCCESS); /* no quota was requested */
    set_quota(64 * KIB, false);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    set_quota(65 * KIB, false);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 1), CUDA_SUCCESS);
    const struct ct_grant next = {.state = CT_GRANT_ACTIVE, .slot = SLOT, .generation = GENERATION + 1};
    ct_grant_write(&node->grant, &next); /* the last quota stays in force */
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 1 * KIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 1), CUDA_SUCCESS);
    const uint64_t before = line()->allocated_bytes;
    struct ct_gate_rules rules = tenant_rules();
    rules.processes[0].generation++;
    ct_tenant_table_write(&node->table, &rules); /* its place was reassigned: nothing more is granted */
    ct_memory_wait_max_ns = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(line()->allocated_bytes, before);
}

static void failed_allocations_release_their_reservation(void)
{
    CUdeviceptr pointer;
    make_tenant(1024 * KIB, false);
    *(_Atomic uint64_t *)driver_symbol("idle_free_bytes") = 4 * KIB;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 8 * KIB), CUDA_ERROR_OUT_OF_MEMORY); /* the driver's error at once, because the
                                                                            * tenant is offline */
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(held(), 0);
    EXPECT_EQ(line()->denied, 0);
    EXPECT_EQ(line()->wanted_bytes, 0);
}

static void *free_memory_when_wanted(void *argument)
{
    (void)argument;
    while (!line()->wanted_bytes) /* until the allocation waits */
        sched_yield();
    EXPECT_EQ(line()->wanted_bytes, 8 * KIB);
    EXPECT_EQ(line()->begun, line()->ended); /* and keeps no other process waiting */
    *(_Atomic uint64_t *)driver_symbol("idle_free_bytes") = 8 * KIB;
    return NULL;
}

static void online_tenant_waits_for_memory_that_can_be_reclaimed(void)
{
    CUdeviceptr pointer;
    pthread_t thread;
    make_tenant(1024 * KIB, true);
    *(_Atomic uint64_t *)driver_symbol("idle_free_bytes") = 4 * KIB;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 4 * KIB), CUDA_SUCCESS);
    node_account()->reclaimable_bytes = 4 * KIB;
    EXPECT_EQ(pthread_create(&thread, NULL, free_memory_when_wanted, NULL), 0);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 8 * KIB), CUDA_SUCCESS);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_EQ(line()->wanted_bytes, 0);
    EXPECT_EQ(held(), 12 * KIB);
}

static uint64_t queries; /* of the free memory, which precede every wait */

static CUresult count_query(size_t *free_bytes, size_t *total_bytes)
{
    queries++;
    *free_bytes = 4 * KIB;
    *total_bytes = 64 * KIB;
    return CUDA_SUCCESS;
}

/* The program gets the error without a wait: it asks for the free memory once, and not again while it waits. */
static void allocation_that_cannot_succeed_fails_immediately(void)
{
    static const uint64_t reclaimable_bytes[] = {0, 1, 4 * KIB - 1};
    CUdeviceptr pointer;
    make_tenant(1024 * KIB, true);
    *(_Atomic uint64_t *)driver_symbol("idle_free_bytes") = 4 * KIB;
    EXPECT_EQ(cuMemFree_v2(1), CUDA_SUCCESS); /* finds the driver */
    ct_next[CT_cuMemGetInfo_v2] = (void *)count_query;
    for (uint64_t i = 0; i < sizeof reclaimable_bytes / sizeof *reclaimable_bytes; i++) {
        node_account()->reclaimable_bytes = reclaimable_bytes[i];
        EXPECT_EQ(cuMemAlloc_v2(&pointer, 8 * KIB), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(queries, i + 1);
        EXPECT_EQ(line()->wanted_bytes, 0);
    }
    EXPECT_EQ(held(), 0);
}

static void *stop_reclaiming_when_wanted(void *argument)
{
    (void)argument;
    while (!line()->wanted_bytes)
        sched_yield();
    node_account()->reclaimable_bytes = 0;
    return NULL;
}

/* The offline tenant has allocated more, or is protected now: the wait ends before its limit of 12 s, which is 600
 * queries. */
static void wait_ends_when_memory_can_no_longer_be_reclaimed(void)
{
    CUdeviceptr pointer;
    pthread_t thread;
    make_tenant(1024 * KIB, true);
    *(_Atomic uint64_t *)driver_symbol("idle_free_bytes") = 4 * KIB;
    EXPECT_EQ(cuMemFree_v2(1), CUDA_SUCCESS); /* finds the driver */
    ct_next[CT_cuMemGetInfo_v2] = (void *)count_query;
    node_account()->reclaimable_bytes = 4 * KIB;
    EXPECT_EQ(pthread_create(&thread, NULL, stop_reclaiming_when_wanted, NULL), 0);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 8 * KIB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT(queries < 600);
    EXPECT_EQ(line()->wanted_bytes, 0);
}

static void *release_unattached_memory(void *argument)
{
    (void)argument;
    while (!line()->begun) /* until the living process tries */
        sched_yield();
    node_account()->unattached_bytes = 0;
    return NULL;
}

/* Memory of an ended process counts until the device has released it, and allocations wait for that. */
static void allocation_waits_for_memory_of_ended_processes(void)
{
    CUdeviceptr pointer;
    pthread_t thread;
    make_tenant(4 * KIB, false);
    EXPECT_EQ(cuMemFree_v2(1), CUDA_SUCCESS);
    node_account()->unattached_bytes = 4 * KIB;
    EXPECT_EQ(held(), 4 * KIB);
    line()->begun = line()->ended = 0;
    ct_memory_wait_max_ns = UINT64_MAX; /* the other thread may be scheduled late */
    EXPECT_EQ(pthread_create(&thread, NULL, release_unattached_memory, NULL), 0);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 1 * KIB), CUDA_SUCCESS);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_EQ(held(), 1 * KIB);
}

static void wait_for_a_stopped_sibling_is_bounded(void)
{
    enum { SIBLING = 9 };
    CUdeviceptr pointer;
    make_tenant(4 * KIB, false);
    struct ct_gate_rules rules = tenant_rules();
    rules.process_count = 2;
    rules.processes[1] = (struct ct_tenant_entry){.generation = 6, .index = SIBLING, .tenant = SLOT};
    ct_tenant_table_write(&node->table, &rules);
    node->processes[SIBLING].ledger.generation = 6;
    node->processes[SIBLING].ledger.line.allocated_bytes = 4 * KIB;
    node->processes[SIBLING].ledger.line.begun = 1; /* stopped forever in the middle of a call */
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(held(), 4 * KIB);
    EXPECT_EQ(line()->denied, 1);
}

static void *allocate_in_thread(void *argument)
{
    CUdeviceptr pointer;
    (void)argument;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 512), CUDA_SUCCESS);
    return NULL;
}

static void threads_that_start_concurrently_share_one_ledger(void)
{
    pthread_t threads[8];
    make_tenant(1024 * KIB, false);
    for (int i = 0; i < 8; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, allocate_in_thread, NULL), 0);
    for (int i = 0; i < 8; i++)
        EXPECT_EQ(pthread_join(threads[i], NULL), 0);
    EXPECT_EQ(line()->allocated_bytes, 8 * 512);
}

static void first_fault_is_recorded(void)
{
    make_tenant(0, false);
    CUresult *outcome = driver_symbol("idle_outcome");
    *outcome = CUDA_ERROR_NOT_READY;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_NOT_READY); /* not a fault */
    EXPECT_EQ(cuMemFree_v2(1), CUDA_SUCCESS);
    EXPECT_EQ(line()->fault, 0);
    for (CUresult code = 719; code >= 700; code -= 19) {
        *outcome = code;
        EXPECT_EQ(cuCtxSynchronize(), (uint64_t)code);
        EXPECT_EQ(line()->fault, 719);
    }
}

static void primary_context_counts_once_and_releases_its_memory(void)
{
    CUcontext context;
    CUdeviceptr pointer;
    make_tenant(100 * KIB, false);
    node_account()->context_bytes = 40 * KIB;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(held(), 40 * KIB);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 7), CUDA_ERROR_NO_DEVICE); /* its reservation is released */
    EXPECT_EQ(held(), 40 * KIB);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 1 * KIB), CUDA_SUCCESS);
    set_quota(1 * KIB, false); /* far below what it holds, but existing objects can be retained again */
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    set_quota(100 * KIB, false);
    EXPECT_EQ(line()->begun, line()->ended);
    EXPECT_EQ(line()->own_bytes, 40 * KIB);
    EXPECT_EQ(line()->contexts, 1);
    EXPECT_EQ(ct_memory_home(ct_memory()), CT_HOME_PRIMARY(0)); /* the memory belongs to the primary context */
    ct_holdings_end(ct_memory(), CT_HOME_PRIMARY(0));
    EXPECT_EQ(held(), 0);
    EXPECT_EQ(line()->contexts, 0);
    node_account()->context_bytes = 101 * KIB;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY); /* not even the context fits */
}

static const CUcontext ONLY_CONTEXT = (CUcontext)0x7000;
static bool must_fail;

static CUresult driver_current(CUcontext *context)
{
    *context = ONLY_CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult driver_create(CUcontext *context, unsigned int flags, CUdevice device)
{
    (void)flags, (void)device;
    return driver_current(context);
}

/* Before it returns, another thread creates a context with the same handle, and allocates in it. */
static CUresult driver_destroy(CUcontext context)
{
    CUdeviceptr pointer;
    if (must_fail)
        return CUDA_ERROR_NOT_SUPPORTED;
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 2 * KIB), CUDA_SUCCESS);
    return CUDA_SUCCESS;
}

static void destroyed_context_releases_nothing_of_a_new_one_with_its_handle(void)
{
    CUcontext context;
    CUdeviceptr pointer;
    make_tenant(200 * KIB, false);
    node_account()->context_bytes = 40 * KIB;
    EXPECT_EQ(cuMemFree_v2(1), CUDA_SUCCESS); /* finds the driver */
    ct_next[CT_cuCtxGetCurrent] = (void *)driver_current;
    ct_next[CT_cuCtxCreate_v2] = (void *)driver_create;
    ct_next[CT_cuCtxDestroy_v2] = (void *)driver_destroy;
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 1 * KIB), CUDA_SUCCESS);
    must_fail = true;
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(held(), 41 * KIB);
    must_fail = false;
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    EXPECT_EQ(held(), 42 * KIB); /* of the new context */
    EXPECT_EQ(line()->contexts, 1);
    EXPECT_EQ(line()->begun, line()->ended);
}

/* Compares the table with a plain list. */
static void holdings_are_found_until_they_are_removed(void)
{
    enum { KEYS = 3000, STEPS = 40000 };
    static struct ct_ledger_page page;
    static struct ct_memory memory = {.ledger.page = &page}; /* only the table of holdings is used */
    static uint64_t expected[KEYS];
    uint64_t rng = 11, count = 0;
    for (int step = 0; step < STEPS; step++) {
        rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint64_t index = (rng >> 33) % KEYS, key = 0x7f0000000000 + index * (index % 2 ? 512 : 1 << 21);
        struct ct_holding found;
        if (rng >> 62 && !expected[index]) {
            expected[index] = 1 + (rng >> 40);
            EXPECT(ct_holding_add(&memory, &(struct ct_holding){.key = key, .note = expected[index],
                                                                .home = 1 + index % 5, .held = CT_HELD_MEMORY}));
            count++;
        } else {
            EXPECT_EQ(ct_holding_take(&memory, CT_HELD_MEMORY, key, &found), expected[index] != 0);
            EXPECT(!expected[index] || found.note == expected[index]);
            count -= expected[index] != 0;
            expected[index] = 0;
        }
        EXPECT_EQ(memory.holdings.count, count);
        EXPECT(!ct_holding_find(&memory, CT_HELD_ARRAY, key, &found)); /* the same key with another kind */
    }
    ct_holdings_end(&memory, 3);
    for (uint64_t index = 0; index < KEYS; index++) {
        struct ct_holding found;
        uint64_t key = 0x7f0000000000 + index * (index % 2 ? 512 : 1 << 21);
        EXPECT_EQ(ct_holding_find(&memory, CT_HELD_MEMORY, key, &found), expected[index] && index % 5 != 2);
    }
    EXPECT(memory.holdings.capacity >= 2 * memory.holdings.count && memory.holdings.capacity <= 8192);
    munmap(memory.holdings.entries, memory.holdings.capacity * sizeof *memory.holdings.entries);
}

/* Runs each case in a separate process. */
int main(void)
{
    static void (*const cases[])(void) = {
        quota_is_enforced_without_a_record,
        quota_changes_apply_and_grants_of_others_are_ignored,
        failed_allocations_release_their_reservation,
        online_tenant_waits_for_memory_that_can_be_reclaimed,
        allocation_that_cannot_succeed_fails_immediately,
        wait_ends_when_memory_can_no_longer_be_reclaimed,
        allocation_waits_for_memory_of_ended_processes,
        wait_for_a_stopped_sibling_is_bounded,
        threads_that_start_concurrently_share_one_ledger,
        first_fault_is_recorded,
        destroyed_context_releases_nothing_of_a_new_one_with_its_handle,
        primary_context_counts_once_and_releases_its_memory,
        holdings_are_found_until_they_are_removed,
    };
    test_hook_open("0", "8");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            cases[i]();
            _exit(0);
        }
        EXPECT_EQ(waitpid(child, &status, 0), child);
        if (status)
            fprintf(stderr, "case %zu ended with %d\n", i, status);
        EXPECT_EQ(status, 0);
    }
    EXPECT_EQ(test_hook_close(), 0);
    return 0;
}
