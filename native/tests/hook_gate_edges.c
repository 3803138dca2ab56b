/* Rare cases with a gate: other contexts, failing launches, captures, and measuring. */
#include "hook_gate_setup.h"

#include "hook/launch/capture_mode.h"
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

enum { WRONG_THREAD = 908, UNMATCHED = 903 };

/* Begins to capture a stream; the driver then ends captures with this result, after which it is captured or not. */
static struct ct_session *begin_capture(CUstream stream, CUresult outcome, int is_capturing)
{
    struct ct_session *session = open_session();
    *(CUresult *)driver_symbol("idle_capture_outcome") = outcome;
    *(int *)driver_symbol("idle_is_capturing") = is_capturing;
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(session->captures, 1);
    return session;
}

/* Otherwise nothing would be timed and no completion would be observed any more. */
static void capture_that_ends_with_an_error_has_ended(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    const CUstream stream = (CUstream)(uintptr_t)0x88;
    CUgraph graph;
    make_gate(&rules, OFFLINE);
    struct ct_session *session = begin_capture(stream, (CUresult)UNMATCHED, 0);
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), (CUresult)UNMATCHED);
    EXPECT_EQ(session->captures, 0);
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), (CUresult)UNMATCHED); /* there is none to end */
    EXPECT_EQ(session->captures, 0);
    EXPECT_EQ(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(session->captures, 0);
}

/* A thread that may not end a capture changes nothing; the capture ends with its stream, or with the context. */
static void capture_ends_with_its_stream_or_context(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    const CUstream stream = (CUstream)(uintptr_t)0x88, other = (CUstream)(uintptr_t)0x99;
    CUgraph graph;
    CUcontext context;
    make_gate(&rules, OFFLINE);
    struct ct_session *session = begin_capture(stream, (CUresult)WRONG_THREAD, 1);
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), (CUresult)WRONG_THREAD);
    EXPECT_EQ(session->captures, 1);
    EXPECT_EQ(cuStreamDestroy_v2(other), CUDA_SUCCESS);
    EXPECT_EQ(session->captures, 1);
    EXPECT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    EXPECT_EQ(session->captures, 0);
    begin_capture(other, (CUresult)WRONG_THREAD, 1);
    EXPECT_EQ(CT_NEXT(cuCtxGetCurrent)(&context), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxDestroy_v2((CUcontext)(uintptr_t)0x77), CUDA_SUCCESS); /* another context */
    EXPECT_EQ(session->captures, 1);
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    EXPECT_EQ(session->captures, 0);
}

/* More streams than the hook has entries for are counted. */
static void many_captures_are_counted(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    CUgraph graph;
    make_gate(&rules, OFFLINE);
    struct ct_session *session = open_session();
    for (uintptr_t i = 0; i < 2 * CT_CAPTURES; i++)
        EXPECT_EQ(cuStreamBeginCapture_v2((CUstream)(0x1000 + i), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(session->captures, 2 * CT_CAPTURES);
    for (uintptr_t i = 0; i < 2 * CT_CAPTURES; i++)
        EXPECT_EQ(cuStreamEndCapture((CUstream)(0x1000 + i), &graph), CUDA_SUCCESS);
    EXPECT_EQ(session->captures, 0);
}

/* Events cannot be recorded into a stream of another context than the current one, in which a program may launch
 * nevertheless. Its launches are confirmed by their predicted lengths: otherwise they would count as submitted for ever. */
static void launches_without_events_are_confirmed_by_prediction(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, OFFLINE);
    struct ct_session *session = open_session();
    const struct ct_completions *completions = &session->gateway->completions;
    *(CUresult *)driver_symbol("idle_record_outcome") = CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < 3 * CT_COMPLETIONS; i++) {
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
        EXPECT_EQ(session->gateway->gate.unconfirmed, 0);
        EXPECT_EQ(completions->outstanding, 0);
    }
    EXPECT_EQ(completions->count, 0);
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
    capture_that_ends_with_an_error_has_ended,
    capture_ends_with_its_stream_or_context,
    many_captures_are_counted,
    launches_without_events_are_confirmed_by_prediction,
    copy_during_a_capture_queries_a_valid_stream,
    launch_waits_for_a_pair_before_it_is_announced,
    launch_into_an_idle_stream_is_measured_later,
    awaited_work_of_an_equal_tenant_is_not_complete,
};

int main(void)
{
    return run_cases(CASES, sizeof CASES / sizeof CASES[0]);
}
