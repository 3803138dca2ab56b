/* The hook with a gate: announcements, waiting, and invalid gate files. */
#include "hook_gate_setup.h"

#include <pthread.h>
#include <sched.h>

enum { MANY = 2000 };

/* The key of a kernel `unnamed` of five blocks of 32 threads on a device without a name. */
#define KEY_OF_UNNAMED UINT64_C(0xdb3b73dfe37e22ca)

/* ---- invalid gate files ------------------------------------------------------------------------------------------- */

static void launch_ungated(void)
{
    EXPECT(opened()->gateway == NULL);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(opened()->record.header->calls, 1);
}

static void a_tenant_without_a_file(void)
{
    setenv("COTENANT_SLOT", "0/1", 1);
    setenv("COTENANT_GATE_FD", "0,2", 1); /* descriptors of other files */
    launch_ungated();
}

static void no_tenant(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, ONLINE);
    setenv("COTENANT_SLOT", "", 1);
    launch_ungated();
}

static void a_file_of_something_else(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, ONLINE);
    ((struct ct_tenant_table *)file)->magic++;
    launch_ungated();
}

static void a_file_that_was_cut_short(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, ct_gate_offset(1), OFFLINE); /* its tenant table has more slots than the file */
    launch_ungated();
}

static void a_slot_beyond_the_file(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, SLOTS);
    launch_ungated();
}

static void more_tenants_than_there_can_be(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    rules.tenant_count = UINT64_MAX;
    rules.policy = 77;
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_session *session = opened();
    EXPECT(session->gateway && !session->gateway->gate.must_ask);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
}

/* ---- as the holder ------------------------------------------------------------------------------------------------ */

static void a_holder_announces_and_takes_back(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, ONLINE);
    struct ct_session *session = opened();
    const struct ct_gate_page *mine = page_of(ONLINE);
    EXPECT_EQ(mine->generation, 1);
    for (int i = 0; i < 10; i++)
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(mine->sequence, 10);
    EXPECT_EQ(mine->counts.launches, 10);
    uint64_t busy_ns = mine->busy_ns, device_ns = mine->counts.device_ns;
    EXPECT_EQ(test_launch(0x1000, 0, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(test_launch(0, 1, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(mine->counts.launches, 10);
    EXPECT_EQ(mine->counts.device_ns, device_ns);
    EXPECT(mine->busy_ns >= busy_ns);
    EXPECT_EQ(session->record.header->calls, 10);
    EXPECT_EQ(mine->counts.waits, 0);
    /* A wait for all work ends what was announced. */
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT(mine->busy_ns <= session->gateway->instant.last_ns);
}

static void a_child_opens_its_own(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    int status;
    make_gate(&rules, SIZE_MAX, ONLINE);
    opened();
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    pid_t child = fork();
    if (child == 0) {
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
        EXPECT(ct_session()->gateway != NULL);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(page_of(ONLINE)->sequence, 2);
}

/* ---- as a lower-priority tenant ----------------------------------------------------------------------------------- */

static void all_pass_while_the_holder_is_quiet(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    page_of(ONLINE)->generation = 1; /* present, but without launches */
    struct ct_arbitration_page *arbitration = (struct ct_arbitration_page *)(file + CT_GATE_PAGE_BYTES);
    arbitration->claim = arbitration->debt_ns = arbitration->asleep_until_ns = UINT64_MAX; /* left by a dead process, or corrupt */
    struct ct_session *session = opened();
    for (int i = 0; i < MANY; i++)
        EXPECT_EQ(test_launch(0x1000, 1 + (unsigned)i % 3, NULL), CUDA_SUCCESS);
    const struct ct_gate_counts *counts = &page_of(OFFLINE)->counts;
    EXPECT_EQ(counts->passed[CT_GATE_FREE], MANY);
    EXPECT_EQ(counts->submitted, MANY);
    EXPECT_EQ(counts->stale, 0);
    EXPECT_EQ(counts->admitted - counts->confirmed, session->gateway->gate.unconfirmed);
    EXPECT(session->kernel_times[0].is_known && session->kernel_times[0].may_fill); /* measured at once, because no
                                                                                     * other tenant was active */
    /* A failed launch is withdrawn, and a wait for all work confirms the rest. */
    EXPECT_EQ(test_launch(0x1000, 0, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(counts->submitted, MANY);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(session->gateway->gate.unconfirmed, 0);
    EXPECT_EQ(session->gateway->completions.outstanding, 0);
    EXPECT_EQ(cuCtxDestroy_v2(NULL), CUDA_ERROR_NOT_SUPPORTED); /* drops the events */
    EXPECT_EQ(session->gateway->completions.count, 0);
}

/* A profile is used until there are measurements; the key is as format/known.py writes it. */
static void a_profile_is_used(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    char path[96];
    const struct {
        char magic[8];
        struct ct_kernel_time_entry entry[2];
        char torn[5];
    } loss_reports = {"COTKNOW1", {{KEY_OF_UNNAMED, 70000, 90000, 400000}, {1, 2, 3, 4}}, "torn"};
    make_gate(&rules, SIZE_MAX, OFFLINE);
    snprintf(path, sizeof path, "%s/known", test_records);
    int descriptor = open(path, O_WRONLY | O_CREAT, 0600);
    EXPECT(descriptor >= 0 && write(descriptor, &loss_reports, sizeof loss_reports) == (ssize_t)sizeof loss_reports);
    close(descriptor);
    struct ct_session *session = opened();
    unlink(path);
    EXPECT_EQ(session->kernel_time_file.count, 2);
    EXPECT_EQ(test_launch(0x1000, 5, NULL), CUDA_SUCCESS);
    EXPECT(session->kernel_times[0].is_known && session->kernel_times[0].may_fill);
    EXPECT_EQ(session->kernel_times[0].expect_ns, 70000);
    EXPECT_EQ(session->kernel_times[0].upper_ns, 800000); /* its p99 exceeds four times its mean: twice the p99 must
                                                           * fit */
    EXPECT_EQ(test_launch(0x1000, 6, NULL), CUDA_SUCCESS);
    EXPECT(!session->kernel_times[1].is_known);
}

/* If nothing that was submitted ends, the next launch passes nevertheless, because the work may depend on it. */
static void what_never_ends_holds_up_nothing_for_good(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    opened();
    int *is_stuck = of_the_driver("idle_is_stuck");
    *is_stuck = 1;
    for (unsigned i = 1; i < 5; i++)
        EXPECT_EQ(test_launch(0x1000, i, NULL), CUDA_SUCCESS); /* each unknown, and therefore as long as the bound */
    const struct ct_gate_counts *counts = &page_of(OFFLINE)->counts;
    EXPECT_EQ(counts->launches, 4);
    EXPECT(counts->stuck > 0);
    *is_stuck = 0;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(opened()->gateway->gate.unconfirmed, 0);
}

static void *launch_one(void *given)
{
    (void)given;
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    return NULL;
}

static void a_change_acts_at_the_next_launch(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    struct ct_tenant_table *table;
    pthread_t thread;
    make_gate(&rules, SIZE_MAX, OFFLINE);
    table = (struct ct_tenant_table *)file;
    struct ct_session *session = opened();
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 1);
    rules = rules_of(7, 2);
    ct_tenant_table_write(table, &rules);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 1); /* there is no higher-priority tenant any more */
    EXPECT_EQ(page_of(OFFLINE)->sequence, 2);
    rules.tenants[1].flags = CT_TENANT_PAUSED;
    ct_tenant_table_write(table, &rules);
    EXPECT_EQ(pthread_create(&thread, NULL, launch_one, NULL), 0);
    while (!page_of(OFFLINE)->wanted_ns)
        sched_yield();
    EXPECT_EQ(page_of(OFFLINE)->sequence, 2);
    rules.tenants[1].flags = 0;
    ct_tenant_table_write(table, &rules);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_EQ(page_of(OFFLINE)->sequence, 3);
    EXPECT_EQ(page_of(OFFLINE)->counts.waits, 1);
    EXPECT_EQ(session->record.header->calls, 3);
}

/* An ending tenant, alone on its device, has at most one launch in flight. */
static void one_at_a_time_at_the_end(void)
{
    struct ct_gate_rules rules = rules_of(7, 2);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_session *session = opened();
    const struct ct_gate *gate = &session->gateway->gate;
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 0);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    rules.tenants[1].flags = CT_TENANT_ENDING;
    for (int i = 0; i < 2; i++) {
        rules.policy = i ? CT_GATE_OPEN : CT_GATE_FILL;
        ct_tenant_table_write((struct ct_tenant_table *)file, &rules);
        for (int j = 0; j < 40; j++) {
            EXPECT_EQ(test_launch(0x1000, 1 + (unsigned)j % 3, (CUstream)(uintptr_t)(j % 2)), CUDA_SUCCESS);
            EXPECT_EQ(gate->unconfirmed, 1);
        }
    }
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 80);
    EXPECT_EQ(page_of(OFFLINE)->counts.confirmed, 79);
    EXPECT_EQ(page_of(OFFLINE)->counts.stuck, 0);
}

static void *launch_many(void *given)
{
    for (int i = 0; i < MANY; i++) {
        EXPECT_EQ(test_launch(0x1000 + (uintptr_t)given, 1 + (unsigned)i % 5, (CUstream)given), CUDA_SUCCESS);
        if (i % 50 == 0)
            EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
    return NULL;
}

/* Threads and streams of a tenant, with a constantly launching higher-priority one in another process. */
static void many_threads_next_to_an_active_holder(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    pthread_t threads[3];
    int status;
    make_gate(&rules, SIZE_MAX, OFFLINE);
    pid_t holder = fork();
    if (holder == 0) {
        setenv("COTENANT_SLOT", "0/1", 1);
        EXPECT(opened()->gateway != NULL);
        launch_many((void *)0x10);
        _exit(0);
    }
    opened();
    for (uintptr_t i = 0; i < 3; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, launch_many, (void *)(i << 4)), 0);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(pthread_join(threads[i], NULL), 0);
    EXPECT(waitpid(holder, &status, 0) == holder);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(page_of(ONLINE)->sequence, MANY);
    EXPECT_EQ(page_of(OFFLINE)->sequence, 3 * MANY);
    EXPECT_EQ(page_of(OFFLINE)->counts.stale, 0);
    EXPECT_EQ(opened()->record.header->calls + opened()->record.header->uncounted, 3 * MANY);
    EXPECT(page_of(ONLINE)->counts.waits == 0);
}

/* ------------------------------------------------------------------------------------------------------------------- */

static void (*const CASES[])(void) = {
    a_tenant_without_a_file,
    no_tenant,
    a_file_of_something_else,
    a_file_that_was_cut_short,
    a_slot_beyond_the_file,
    more_tenants_than_there_can_be,
    a_holder_announces_and_takes_back,
    a_child_opens_its_own,
    all_pass_while_the_holder_is_quiet,
    a_profile_is_used,
    what_never_ends_holds_up_nothing_for_good,
    a_change_acts_at_the_next_launch,
    one_at_a_time_at_the_end,
    many_threads_next_to_an_active_holder,
};

int main(void)
{
    return run_cases(CASES, sizeof CASES / sizeof CASES[0]);
}
