/* Rare cases with a gate: other contexts, failing launches, captures, and measuring. */
#include "hook_gate_setup.h"

#include "hook/timing/pairs.h"

#include <pthread.h>
#include <sched.h>

/* Entries used by another context do not prevent events in this one. */
static void events_of_another_context_are_reused(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, OFFLINE);
    struct ct_completions *completions = &open_session()->gateway->completions;
    for (int i = 0; i < CT_COMPLETIONS; i++)
        completions->slots[i] = (struct ct_completion){
            .state = CT_COMPLETION_SPARE, .context = (CUcontext)(uintptr_t)0x77, .event = (CUevent)(uintptr_t)0x77};
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(completions->outstanding, 1);
    EXPECT_EQ(completions->count, 1);
    const struct ct_completion *completion = &completions->slots[completions->queue[completions->first]];
    EXPECT(completion->context != (CUcontext)(uintptr_t)0x77 && completion->event != (CUevent)(uintptr_t)0x77);
}

/* A program's first work may fail because there is no context, after it has been identified. */
static void device_name_is_queried_again_after_a_failure(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, OFFLINE);
    struct ct_session *session = open_session();
    EXPECT_EQ(cuMemcpyHtoDAsync_v2(4096, "", 1, NULL), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(session->record.header->kernels, 1); /* the driver was asked for the device, and failed */
    EXPECT_EQ(session->is_device_named, 0);
}

/* An empty launch is refused, and leaves no entry in the record. */
static void empty_launch_is_not_identified(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    CUfunction function;
    make_gate(&rules, OFFLINE);
    struct ct_session *session = open_session();
    EXPECT_EQ(cuModuleGetFunction(&function, (CUmodule)(uintptr_t)0x10, "named"), CUDA_SUCCESS);
    EXPECT_EQ(test_launch((uintptr_t)function, 0, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(session->record.header->kernels, 0);
    EXPECT_EQ(test_launch((uintptr_t)function, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(session->record.header->kernels, 1);
    EXPECT_EQ(session->gateway->gate.unconfirmed, 1);
}

/* Work without a stream is queried by a valid handle. */
static void copy_during_a_capture_queries_a_valid_stream(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, OFFLINE);
    struct ct_session *session = open_session();
    _Atomic(CUstream) *queried = driver_symbol("idle_queried_stream");
    *queried = (CUstream)(uintptr_t)0x77;
    atomic_store(&session->captures, 1);
    EXPECT_EQ(cuMemcpyHtoD_v2(4096, "", 1), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(*queried == NULL);
}

static void *launch_in_thread(void *argument)
{
    (void)argument;
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    return NULL;
}

/* A measured launch waits for a pair before it is announced: an admitted launch must not wait. */
static void launch_waits_for_a_pair_before_it_is_announced(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    pthread_t thread;
    setenv("COTENANT_MEASURE", "1", 1);
    make_gate(&rules, ONLINE);
    struct ct_session *session = open_session();
    *(int *)driver_symbol("idle_is_stuck") = 1;
    for (int i = 0; i < CT_PAIRS; i++)
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(session->record.header->timed, CT_PAIRS);
    EXPECT_EQ(pthread_create(&thread, NULL, launch_in_thread, NULL), 0);
    while (page_of(ONLINE)->sequence == CT_PAIRS)
        sched_yield();
    EXPECT_EQ(session->timing->failed_waits, 1);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_EQ(session->record.header->timed, CT_PAIRS);
    EXPECT_EQ(page_of(ONLINE)->sequence, CT_PAIRS + 1);
}

/* A tenant with a share and one of equal priority, whose page shows long-running work. */
static struct ct_session *open_with_active_equal(void)
{
    struct ct_gate_rules rules = rules_of(7, 7);
    rules.processes[1].limit_ppm = 1000000;
    rules.processes[1].flags = CT_TENANT_STATIC;
    make_gate(&rules, OFFLINE);
    struct ct_session *session = open_session();
    page_of(ONLINE)->generation = page_of(ONLINE)->sequence = 1;
    page_of(ONLINE)->busy_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock)) + UINT64_C(10000000000);
    return session;
}

/* A measurement would include the wait for our time slice. The next launch may follow our own work, and represents this
 * one too. */
static void launch_into_an_idle_stream_is_measured_later(void)
{
    struct ct_session *session = open_with_active_equal();
    struct ct_kernel_time *time = &session->kernel_times[0];
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    time->expect_ns = time->upper_ns = 400000;
    time->is_known = 1;
    for (int i = 0; i < 6; i++)
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(time->charges, 6);
    EXPECT_EQ(session->record.header->timed, 0);
    *(int *)driver_symbol("idle_is_stuck") = 1;
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(time->charges, 0);
    EXPECT_EQ(session->record.header->timed, 1);
    EXPECT_EQ(session->timing->contexts[0].first->charges, 7);
    EXPECT_EQ(session->timing->contexts[0].first->has_waited, 0);
}

/* Returns whether the work appears complete this long after its predicted end and the beginning of the host's wait;
 * tried again if the test was descheduled. */
static int appears_complete(struct ct_session *session, uint64_t since_end_ms, uint64_t since_wait_ms)
{
    struct ct_gate_page *page = page_of(ONLINE);
    struct ct_quiescence quiescence;
    uint64_t now_ns;
    do {
        now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
        page->busy_ns = now_ns - since_end_ms * 1000000;
        page->waits_ns = since_wait_ms ? now_ns - since_wait_ms * 1000000 : 0;
        quiescence = ct_others_quiescent(session);
    } while (quiescence.from_ns - now_ns > 20000000);
    return quiescence.launches > 0;
}

/* The work should have ended, but its host still waits for it, because tenants of equal priority delayed it. */
static void awaited_work_of_an_equal_tenant_is_not_complete(void)
{
    struct ct_session *session = open_with_active_equal();
    EXPECT_EQ(ct_others_quiescent(session).launches, 0);
    EXPECT(appears_complete(session, 50, 0));
    EXPECT(!appears_complete(session, 50, 60));
    EXPECT(appears_complete(session, 500, 500)); /* after this time nothing can be delayed any more: the host has
                                                  * gone */
}

static void (*const CASES[])(void) = {
    events_of_another_context_are_reused,
    device_name_is_queried_again_after_a_failure,
    empty_launch_is_not_identified,
    copy_during_a_capture_queries_a_valid_stream,
    launch_waits_for_a_pair_before_it_is_announced,
    launch_into_an_idle_stream_is_measured_later,
    awaited_work_of_an_equal_tenant_is_not_complete,
};

int main(void)
{
    return run_cases(CASES, sizeof CASES / sizeof CASES[0]);
}
