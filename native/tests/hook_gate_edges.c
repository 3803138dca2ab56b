/* Rare cases with a gate: other contexts, failing launches, captures, and measuring. */
#include "hook_gate_setup.h"

#include "hook/timing/pairs.h"

#include <pthread.h>
#include <sched.h>

/* Entries used by another context do not prevent events in this one. */
static void events_of_another_context_are_reused(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_completions *completions = &opened()->gateway->completions;
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
static void a_device_without_a_name_is_asked_again(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_session *session = opened();
    EXPECT_EQ(cuMemcpyHtoDAsync_v2(4096, "", 1, NULL), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(session->record.header->kernels, 1); /* the driver was asked for the device, and failed */
    EXPECT_EQ(session->is_device_named, 0);
}

/* An empty launch is refused, and leaves no entry in the record. */
static void an_empty_launch_is_not_identified(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    CUfunction function;
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_session *session = opened();
    EXPECT_EQ(cuModuleGetFunction(&function, (CUmodule)(uintptr_t)0x10, "named"), CUDA_SUCCESS);
    EXPECT_EQ(test_launch((uintptr_t)function, 0, NULL), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(session->record.header->kernels, 0);
    EXPECT_EQ(test_launch((uintptr_t)function, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(session->record.header->kernels, 1);
    EXPECT_EQ(session->gateway->gate.unconfirmed, 1);
}

/* Work without a stream is queried by a valid handle. */
static void a_copy_during_a_capture_uses_a_valid_stream(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_session *session = opened();
    _Atomic(CUstream) *asked = of_the_driver("idle_asked_stream");
    *asked = (CUstream)(uintptr_t)0x77;
    atomic_store(&session->captures, 1);
    EXPECT_EQ(cuMemcpyHtoD_v2(4096, "", 1), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(*asked == NULL);
}

static void *launch_one(void *given)
{
    (void)given;
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    return NULL;
}

/* A measured launch waits for a pair before it is announced: an admitted launch must not wait. */
static void patience_comes_before_the_gate(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    pthread_t thread;
    setenv("COTENANT_MEASURE", "1", 1);
    make_gate(&rules, SIZE_MAX, ONLINE);
    struct ct_session *session = opened();
    *(int *)of_the_driver("idle_is_stuck") = 1;
    for (int i = 0; i < CT_PAIRS; i++)
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(session->record.header->timed, CT_PAIRS);
    EXPECT_EQ(pthread_create(&thread, NULL, launch_one, NULL), 0);
    while (page_of(ONLINE)->sequence == CT_PAIRS)
        sched_yield();
    EXPECT_EQ(session->timing->in_vain, 1);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    EXPECT_EQ(session->record.header->timed, CT_PAIRS);
    EXPECT_EQ(page_of(ONLINE)->sequence, CT_PAIRS + 1);
}

/* A tenant with a share and one of equal priority, whose page shows long-running work. */
static struct ct_session *with_an_active_equal(void)
{
    struct ct_gate_rules rules = rules_of(7, 7);
    rules.tenants[1].limit_ppm = 1000000;
    rules.tenants[1].flags = CT_TENANT_STATIC;
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_session *session = opened();
    page_of(ONLINE)->generation = page_of(ONLINE)->sequence = 1;
    page_of(ONLINE)->busy_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock)) + UINT64_C(10000000000);
    return session;
}

/* A measurement would include the wait for our time slice. The next launch may follow our own work, and represents this
 * one too. */
static void launches_into_an_idle_stream_are_not_measured_at_once(void)
{
    struct ct_session *session = with_an_active_equal();
    struct ct_kernel_time *time = &session->kernel_times[0];
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    time->expect_ns = time->upper_ns = 400000;
    time->is_known = 1;
    for (int i = 0; i < 6; i++)
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(time->charges, 6);
    EXPECT_EQ(session->record.header->timed, 0);
    *(int *)of_the_driver("idle_is_stuck") = 1;
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(time->charges, 0);
    EXPECT_EQ(session->record.header->timed, 1);
    EXPECT_EQ(session->timing->contexts[0].first->charges, 7);
    EXPECT_EQ(session->timing->contexts[0].first->has_waited, 0);
}

/* Returns whether the work appears complete this long after its predicted end and the beginning of the host's wait;
 * tried again if the test was descheduled. */
static int seems_over(struct ct_session *session, uint64_t over_ms, uint64_t waits_ms)
{
    struct ct_gate_page *its = page_of(ONLINE);
    struct ct_quiescence quiescence;
    uint64_t now_ns;
    do {
        now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
        its->busy_ns = now_ns - over_ms * 1000000;
        its->waits_ns = waits_ms ? now_ns - waits_ms * 1000000 : 0;
        quiescence = ct_others_quiescent(session);
    } while (quiescence.from_ns - now_ns > 20000000);
    return quiescence.launches > 0;
}

/* The work should have ended, but its host still waits for it, because tenants of equal priority delayed it. */
static void work_of_an_equal_that_its_host_waits_for_is_not_over(void)
{
    struct ct_session *session = with_an_active_equal();
    EXPECT_EQ(ct_others_quiescent(session).launches, 0);
    EXPECT(seems_over(session, 50, 0));
    EXPECT(!seems_over(session, 50, 60));
    EXPECT(seems_over(session, 500, 500)); /* after this time nothing can be delayed any more: the host has gone */
}

static void (*const CASES[])(void) = {
    events_of_another_context_are_reused,
    a_device_without_a_name_is_asked_again,
    an_empty_launch_is_not_identified,
    a_copy_during_a_capture_uses_a_valid_stream,
    patience_comes_before_the_gate,
    launches_into_an_idle_stream_are_not_measured_at_once,
    work_of_an_equal_that_its_host_waits_for_is_not_over,
};

int main(void)
{
    return run_cases(CASES, sizeof CASES / sizeof CASES[0]);
}
