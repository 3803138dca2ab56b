/* What is rare at the gate: other contexts, launches that fail, captures beside, measuring. */
#include "hook_at_gate.h"

#include "hook/pairs.h"

#include <pthread.h>
#include <sched.h>

/* What every mark was used for in another context does not keep this one from being marked. */
static void marks_of_another_context_are_taken_over(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_marks *marks = &opened()->gateway->marks;
    for (int i = 0; i < CT_MARKS; i++)
        marks->room[i] = (struct ct_mark){
            .state = CT_MARK_SPARE, .context = (CUcontext)(uintptr_t)0x77, .event = (CUevent)(uintptr_t)0x77};
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(marks->outstanding, 1);
    EXPECT_EQ(marks->count, 1);
    const struct ct_mark *mark = &marks->room[marks->queue[marks->first]];
    EXPECT(mark->context != (CUcontext)(uintptr_t)0x77 && mark->event != (CUevent)(uintptr_t)0x77);
}

/* The first work of a program may fail for want of a context, and is known before it does. */
static void a_device_without_a_name_is_asked_again(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_session *session = opened();
    EXPECT_EQ(cuMemcpyHtoDAsync_v2(4096, "", 1, NULL), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(session->record.header->kernels, 1); /* the driver was asked where it is, and did not know */
    EXPECT_EQ(session->is_device_named, 0);
}

/* A launch of nothing is refused, and leaves nothing in the record that a profile may not hold. */
static void a_launch_of_nothing_is_not_known(void)
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

/* What has no stream of its own is asked after by a handle that the driver knows. */
static void a_copy_beside_a_capture_names_no_stream(void)
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

/* Whoever measures waits for a pair of events before it is announced: what was let pass goes at once. */
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

/* A tenant with a share and an equal, whose page says that work of its runs for long. */
static struct ct_session *beside_an_active_equal(void)
{
    struct ct_gate_rules rules = rules_of(7, 7);
    rules.seat[1].limit_ppm = 1000000;
    rules.seat[1].flags = CT_GATE_SEAT_STATIC;
    make_gate(&rules, SIZE_MAX, OFFLINE);
    struct ct_session *session = opened();
    page_of(ONLINE)->generation = page_of(ONLINE)->sequence = 1;
    page_of(ONLINE)->busy_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock)) + UINT64_C(10000000000);
    return session;
}

/* Events around it would show its wait for our turn. The next may follow work of ours, and stands for it as well. */
static void what_finds_its_stream_idle_beside_a_neighbour_is_not_measured_at_once(void)
{
    struct ct_session *session = beside_an_active_equal();
    struct ct_known *known = &session->known[0];
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    known->expect_ns = known->sure_ns = 400000;
    known->is_known = 1;
    for (int i = 0; i < 6; i++)
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(known->charges, 6);
    EXPECT_EQ(session->record.header->timed, 0);
    *(int *)of_the_driver("idle_is_stuck") = 1;
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(known->charges, 0);
    EXPECT_EQ(session->record.header->timed, 1);
    EXPECT_EQ(session->timing->contexts[0].first->charges, 7);
    EXPECT_EQ(session->timing->contexts[0].first->has_waited, 0);
}

/* Whether it seems over so long after it was to be, and since its host waits; asked again if we were stalled meanwhile. */
static int seems_over(struct ct_session *session, uint64_t over_ms, uint64_t waits_ms)
{
    struct ct_gate_page *its = page_of(ONLINE);
    struct ct_still still;
    uint64_t now_ns;
    do {
        now_ns = ct_gateway_now(session, ct_clock_ticks(&session->clock));
        its->busy_ns = now_ns - over_ms * 1000000;
        its->waits_ns = waits_ms ? now_ns - waits_ms * 1000000 : 0;
        still = ct_others_still(session);
    } while (still.from_ns - now_ns > 20000000);
    return still.launches > 0;
}

/* It was expected to be over, and its host still waits for it: an equal's turns held it up. */
static void work_of_an_equal_that_its_host_waits_for_is_not_over(void)
{
    struct ct_session *session = beside_an_active_equal();
    EXPECT_EQ(ct_others_still(session).launches, 0);
    EXPECT(seems_over(session, 50, 0));
    EXPECT(!seems_over(session, 50, 60));
    EXPECT(seems_over(session, 500, 500)); /* that long nobody holds anybody up: it only went away */
}

static void (*const CASES[])(void) = {
    marks_of_another_context_are_taken_over,
    a_device_without_a_name_is_asked_again,
    a_launch_of_nothing_is_not_known,
    a_copy_beside_a_capture_names_no_stream,
    patience_comes_before_the_gate,
    what_finds_its_stream_idle_beside_a_neighbour_is_not_measured_at_once,
    work_of_an_equal_that_its_host_waits_for_is_not_over,
};

int main(void)
{
    return run_cases(CASES, sizeof CASES / sizeof CASES[0]);
}
