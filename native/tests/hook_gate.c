/* The hook with a gate: announcements, waiting, and changes of the rules. */
#include "hook_gate_setup.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

enum { LAUNCHES = 2000 };

/* The key of a kernel `unnamed` of five blocks of 32 threads on a device without a name. */
#define KEY_OF_UNNAMED UINT64_C(0xdb3b73dfe37e22ca)

/* ---- without valid rules ------------------------------------------------------------------------------------------ */

static void unmanaged_process_is_ungated(void)
{
    EXPECT(open_session()->gateway == NULL);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(open_session()->record.header->calls, 1);
}

static void invalid_process_count_is_treated_as_empty_table(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    rules.process_count = UINT64_MAX;
    rules.policy = 77;
    make_gate(&rules, OFFLINE);
    struct ct_session *session = open_session();
    EXPECT(session->gateway && !session->gateway->gate.must_ask);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
}

/* The gate works without a directory for records, as in a container. */
static void tenant_without_records_is_gated(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, ONLINE);
    unsetenv("COTENANT_RECORD");
    EXPECT(open_session()->gateway != NULL);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(ONLINE)->sequence, 1);
}

/* ---- as the holder ------------------------------------------------------------------------------------------------ */

static void holder_announces_launches_and_withdraws_failed_ones(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, ONLINE);
    struct ct_session *session = open_session();
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

/* A child has none of its parent's pages. Without a node it is unmanaged. */
static void forked_child_does_not_use_the_gate_of_its_parent(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    int status;
    make_gate(&rules, ONLINE);
    open_session();
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    pid_t child = fork();
    if (child == 0) {
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
        EXPECT(ct_session()->gateway == NULL);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(page_of(ONLINE)->sequence, 1);
}

/* The node knows the process under another index and generation after it was attached again. */
static void reattached_process_uses_its_new_entry(void)
{
    enum { OTHER_INDEX = 7 };
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, ONLINE);
    const struct ct_session *session = open_session();
    struct ct_membership *membership = ct_page->membership;
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    rules.processes[0].index = OTHER_INDEX;
    rules.processes[0].generation = 9;
    ct_tenant_table_write(&node->table, &rules);
    membership->index = OTHER_INDEX;
    membership->process_generation = 9;
    membership->pages->gate.generation = 9;
    ct_session_reattached();
    EXPECT(session->gateway->gate.has_entry);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(ONLINE)->sequence, 2); /* it continues on the same page */
    EXPECT_EQ(page_of(ONLINE)->counts.launches, 2);
}

/* ---- as a lower-priority tenant ----------------------------------------------------------------------------------- */

static void launches_pass_while_the_holder_is_quiet(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, OFFLINE);
    page_of(ONLINE)->generation = 1; /* present, but without launches */
    struct ct_arbitration_page *arbitration = &node->arbitration;
    arbitration->claim = arbitration->debt_ns = arbitration->asleep_until_ns = UINT64_MAX; /* left by a dead process, or corrupt */
    struct ct_session *session = open_session();
    for (int i = 0; i < LAUNCHES; i++)
        EXPECT_EQ(test_launch(0x1000, 1 + (unsigned)i % 3, NULL), CUDA_SUCCESS);
    const struct ct_gate_counts *counts = &page_of(OFFLINE)->counts;
    EXPECT_EQ(counts->passed[CT_GATE_FREE], LAUNCHES);
    EXPECT_EQ(counts->submitted, LAUNCHES);
    EXPECT_EQ(counts->stale, 0);
    EXPECT_EQ(counts->admitted - counts->confirmed, session->gateway->gate.unconfirmed);
    EXPECT(session->kernel_times[0].is_known && session->kernel_times[0].may_fill); /* measured at once, because no
                                                                                     * other tenant was active */
    /* A failed launch is withdrawn, and a wait for all work confirms the rest. */
    EXPECT_EQ(test_launch(0x1000, 0, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(counts->submitted, LAUNCHES);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(session->gateway->gate.unconfirmed, 0);
    EXPECT_EQ(session->gateway->completions.outstanding, 0);
    EXPECT_EQ(cuCtxDestroy_v2(NULL), CUDA_ERROR_NOT_SUPPORTED); /* drops the events */
    EXPECT_EQ(session->gateway->completions.count, 0);
}

/* Launches a kernel until a launch has passed under a lease: while streams have changed recently, each has an event. */
static void launch_until_leased(const struct ct_session *session)
{
    const struct ct_gate *gate = &session->gateway->gate;
    for (int i = 0; i < 100 * LAUNCHES; i++) {
        const uint64_t until_ns = gate->lease.until_ns;
        const uint32_t outstanding = session->gateway->completions.outstanding;
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
        if (until_ns && gate->lease.until_ns == until_ns && session->gateway->completions.outstanding == outstanding + 1)
            return; /* a decision would have granted another lease */
        if (i % LAUNCHES == 0)
            usleep(1000);
    }
    EXPECT(!"no launch passed under a lease");
}

/* A launch after a holder's launch is decided on again, and a wait for all work confirms those under a lease too. */
static void launches_under_a_lease_are_accounted_for(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, OFFLINE);
    page_of(ONLINE)->generation = 1;
    struct ct_session *session = open_session();
    struct ct_gate *gate = &session->gateway->gate;
    const struct ct_gate_counts *counts = &page_of(OFFLINE)->counts;
    launch_until_leased(session);
    EXPECT_EQ(counts->submitted, counts->admitted);
    EXPECT_EQ(counts->submitted, counts->launches);
    EXPECT_EQ(session->gateway->is_leased, 0);
    page_of(ONLINE)->at_ns = page_of(ONLINE)->busy_ns = session->gateway->instant.last_ns; /* a launch that is over */
    page_of(ONLINE)->sequence++;
    const uint64_t passed = counts->passed[CT_GATE_FREE];
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(gate->higher[0].admission_sequence, 1);
    EXPECT_EQ(counts->passed[CT_GATE_FREE], passed + 1);
    EXPECT_EQ(counts->stale, 0);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(gate->unconfirmed, 0);
    EXPECT_EQ(session->gateway->completions.outstanding, 0);
}

/* A profile is used until there are measurements; the key is as hook/kernel_times.py computes it. */
static void profile_provides_kernel_times(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    char path[96];
    const struct {
        char magic[8];
        struct ct_kernel_time_entry entry[2];
        char partial_entry[5];
    } profile = {"COTKNOW1", {{KEY_OF_UNNAMED, 70000, 90000, 400000}, {1, 2, 3, 4}}, "torn"};
    make_gate(&rules, OFFLINE);
    snprintf(path, sizeof path, "%s/kernel-times", test_records);
    int descriptor = open(path, O_WRONLY | O_CREAT, 0600);
    EXPECT(descriptor >= 0 && write(descriptor, &profile, sizeof profile) == (ssize_t)sizeof profile);
    close(descriptor);
    struct ct_session *session = open_session();
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
static void stuck_work_does_not_block_launches_forever(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, OFFLINE);
    open_session();
    int *is_stuck = driver_symbol("idle_is_stuck");
    *is_stuck = 1;
    for (unsigned i = 1; i < 5; i++)
        EXPECT_EQ(test_launch(0x1000, i, NULL), CUDA_SUCCESS); /* each unknown, and therefore as long as the bound */
    const struct ct_gate_counts *counts = &page_of(OFFLINE)->counts;
    EXPECT_EQ(counts->launches, 4);
    EXPECT(counts->stuck > 0);
    *is_stuck = 0;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(open_session()->gateway->gate.unconfirmed, 0);
}

static void *launch_in_thread(void *argument)
{
    (void)argument;
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    return NULL;
}

static void changed_rules_apply_at_the_next_launch(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    pthread_t thread;
    make_gate(&rules, OFFLINE);
    struct ct_session *session = open_session();
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 1);
    rules = rules_of(7, 2);
    ct_tenant_table_write(&node->table, &rules);
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 1); /* there is no higher-priority tenant any more */
    EXPECT_EQ(page_of(OFFLINE)->sequence, 2);
    rules.processes[1].flags = CT_TENANT_PAUSED;
    ct_tenant_table_write(&node->table, &rules);
    EXPECT_EQ(pthread_create(&thread, NULL, launch_in_thread, NULL), 0);
    while (!page_of(OFFLINE)->wanted_ns)
        sched_yield();
    EXPECT_EQ(page_of(OFFLINE)->sequence, 2);
    rules.processes[1].flags = 0;
    ct_tenant_table_write(&node->table, &rules);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_EQ(page_of(OFFLINE)->sequence, 3);
    EXPECT_EQ(page_of(OFFLINE)->counts.waits, 1);
    EXPECT_EQ(session->record.header->calls, 3);
}

/* An ending tenant, alone on its device, has at most one launch in flight. */
static void ending_tenant_has_one_launch_in_flight(void)
{
    struct ct_gate_rules rules = rules_of(7, 2);
    make_gate(&rules, OFFLINE);
    struct ct_session *session = open_session();
    const struct ct_gate *gate = &session->gateway->gate;
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 0);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    rules.processes[1].flags = CT_TENANT_ENDING;
    for (int i = 0; i < 2; i++) {
        rules.policy = i ? CT_GATE_OPEN : CT_GATE_FILL;
        ct_tenant_table_write(&node->table, &rules);
        for (int j = 0; j < 40; j++) {
            EXPECT_EQ(test_launch(0x1000, 1 + (unsigned)j % 3, (CUstream)(uintptr_t)(j % 2)), CUDA_SUCCESS);
            EXPECT_EQ(gate->unconfirmed, 1);
        }
    }
    EXPECT_EQ(page_of(OFFLINE)->counts.admitted, 80);
    EXPECT_EQ(page_of(OFFLINE)->counts.confirmed, 79);
    EXPECT_EQ(page_of(OFFLINE)->counts.stuck, 0);
}

static void *launch_many(void *argument)
{
    for (int i = 0; i < LAUNCHES; i++) {
        EXPECT_EQ(test_launch(0x1000 + (uintptr_t)argument, 1 + (unsigned)i % 5, (CUstream)argument), CUDA_SUCCESS);
        if (i % 50 == 0)
            EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
    return NULL;
}

/* Threads and streams of a tenant, with a constantly launching higher-priority one in another process. */
static void threads_next_to_an_active_holder_lose_no_launch(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    pthread_t threads[3];
    int status;
    make_gate(&rules, OFFLINE);
    pid_t holder = fork();
    if (holder == 0) {
        become_member(ONLINE, 1, ONLINE, 1);
        EXPECT(open_session()->gateway != NULL);
        launch_many((void *)0x10);
        _exit(0);
    }
    open_session();
    for (uintptr_t i = 0; i < 3; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, launch_many, (void *)(i << 4)), 0);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(pthread_join(threads[i], NULL), 0);
    EXPECT(waitpid(holder, &status, 0) == holder);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(page_of(ONLINE)->sequence, LAUNCHES);
    EXPECT_EQ(page_of(OFFLINE)->sequence, 3 * LAUNCHES);
    EXPECT_EQ(page_of(OFFLINE)->counts.stale, 0);
    EXPECT_EQ(open_session()->record.header->calls + open_session()->record.header->uncounted, 3 * LAUNCHES);
    EXPECT(page_of(ONLINE)->counts.waits == 0);
}

/* ------------------------------------------------------------------------------------------------------------------- */

static void (*const CASES[])(void) = {
    unmanaged_process_is_ungated,
    invalid_process_count_is_treated_as_empty_table,
    tenant_without_records_is_gated,
    holder_announces_launches_and_withdraws_failed_ones,
    forked_child_does_not_use_the_gate_of_its_parent,
    reattached_process_uses_its_new_entry,
    launches_pass_while_the_holder_is_quiet,
    launches_under_a_lease_are_accounted_for,
    profile_provides_kernel_times,
    stuck_work_does_not_block_launches_forever,
    changed_rules_apply_at_the_next_launch,
    ending_tenant_has_one_launch_in_flight,
    threads_next_to_an_active_holder_lose_no_launch,
};

int main(void)
{
    return run_cases(CASES, sizeof CASES / sizeof CASES[0]);
}
