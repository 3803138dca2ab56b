/* The hook counts a program's requests: those that it reports, and before it does, those that are detected. */
#include "hook_gate_setup.h"

#include "gate/request.h"

#include <pthread.h>
#include <string.h>

enum { BURSTS = 40, TRIES = 100, PAUSE_NS = 1000 * 1000, SLO_NS = 1000, THREADS = 4, EACH = 500 };

static struct ct_gate_requests *requests(void)
{
    return &page_of(ONLINE)->requests;
}

/* The highest-priority tenant, with an SLO in its grant. */
static struct ct_session *open_online_tenant(void)
{
    struct ct_gate_rules rules = rules_of(2, 7);
    const struct ct_grant grant = {.state = CT_GRANT_ACTIVE, .slot = ONLINE, .generation = 1, .online = 1,
                                   .slo_ns = SLO_NS};
    make_gate(&rules, ONLINE);
    ct_grant_write(&node->grant, &grant);
    struct ct_session *session = open_session();
    EXPECT(session->gateway != NULL);
    return session;
}

static uint64_t bucket_total(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < CT_GATE_REQUEST_BUCKETS; i++)
        sum += requests()->bucket[i];
    return sum;
}

static void serve_once(const struct ct_bursts *bursts)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (uintptr_t i = 0; i < 3; i++)
        EXPECT_EQ(test_launch(0x1000 + i, 1, NULL), CUDA_SUCCESS);
    EXPECT(requests()->is_reported || !requests()->began_ns || bursts->burst_count > CT_BURST_WARMUP);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    nanosleep(&pause, NULL);
}

/* Starts again if none was detected: after a stall of the machine during the first pauses all others are short. */
static void serve_until_detected(struct ct_bursts *bursts)
{
    for (int tries = 0; tries < TRIES && bursts->burst_count <= CT_BURST_WARMUP; tries++) {
        bursts->pauses = bursts->long_count = bursts->burst_count = 0;
        bursts->scale_ns = bursts->total_ns = 0;
        memset(bursts->weight_ns, 0, sizeof bursts->weight_ns);
        memset(bursts->transition, 0, sizeof bursts->transition);
        for (int i = 0; i < BURSTS; i++)
            serve_once(bursts);
    }
}

static void detected_requests_count_until_one_is_reported(void)
{
    struct ct_session *session = open_online_tenant();
    serve_until_detected(&session->gateway->requests.bursts);
    EXPECT_EQ(requests()->began_ns, 0); /* it has waited: no request is in progress */
    const uint64_t detected = requests()->ended;
    EXPECT(detected > 0 && detected < BURSTS);
    EXPECT_EQ(detected, session->gateway->requests.bursts.burst_count - CT_BURST_WARMUP);
    EXPECT_EQ(bucket_total(), detected);
    cotenant_hook_request_took(500);
    cotenant_hook_request_took(5000);
    EXPECT(requests()->is_reported);
    for (int i = 0; i < BURSTS; i++)
        serve_once(&session->gateway->requests.bursts);
    EXPECT_EQ(requests()->ended, detected + 2);
    EXPECT(requests()->over >= 1 && requests()->over <= detected + 1);
}

static void detected_request_ends_when_another_process_reports(void)
{
    struct ct_bursts *bursts = &open_online_tenant()->gateway->requests.bursts;
    for (int tries = 0; tries < TRIES && !requests()->began_ns; tries++) { /* a stall may make a pause look short */
        serve_until_detected(bursts);
        serve_once(bursts);
        EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    }
    EXPECT(requests()->began_ns != 0);
    requests()->is_reported = 1;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(requests()->began_ns, 0);
}

static void successful_query_ends_a_burst(void)
{
    const struct ct_bursts *bursts = &open_online_tenant()->gateway->requests.bursts;
    EXPECT_EQ(test_launch(0x1000, 1, NULL), CUDA_SUCCESS);
    EXPECT(bursts->current->is_active);
    *(int *)driver_symbol("idle_is_stuck") = 1;
    EXPECT_EQ(cuEventQuery((CUevent)(uintptr_t)0x1), CUDA_ERROR_NOT_READY);
    EXPECT(bursts->current->is_active);
    *(int *)driver_symbol("idle_is_stuck") = 0;
    EXPECT_EQ(cuEventQuery((CUevent)(uintptr_t)0x1), CUDA_SUCCESS);
    EXPECT(!bursts->current->is_active && bursts->current->ended_ns);
}

static void reported_request_is_in_progress_until_it_ends(void)
{
    uint64_t first_ns, second_ns, third_ns;
    open_online_tenant();
    const uint64_t now_ns = ct_clock_monotonic_ns();
    const uint64_t first = cotenant_hook_request_begin(0, &first_ns);
    const uint64_t second = cotenant_hook_request_begin(now_ns - 1000000, &second_ns);
    EXPECT(first_ns >= now_ns && second_ns == now_ns - 1000000);
    EXPECT_EQ(requests()->began_ns, second_ns);
    cotenant_hook_request_end(second, second_ns);
    EXPECT_EQ(requests()->began_ns, first_ns);
    const uint64_t third = cotenant_hook_request_begin(UINT64_MAX, &third_ns); /* of another clock */
    EXPECT(third_ns >= first_ns && third_ns <= ct_clock_monotonic_ns());
    cotenant_hook_request_end(first, first_ns);
    cotenant_hook_request_end(third, third_ns);
    EXPECT_EQ(requests()->began_ns, 0);
    EXPECT_EQ(requests()->ended, 3);
    EXPECT(requests()->sum_ns >= 1000000 && requests()->over >= 1);
    cotenant_hook_request_end(UINT64_MAX, 0); /* invalid values count as a request as old as the machine, and do no
                                               * harm */
    EXPECT_EQ(bucket_total(), 4);
}

static void *begin_and_end_requests(void *unused)
{
    uint64_t began_ns;
    (void)unused;
    for (int i = 0; i < EACH; i++) {
        const uint64_t index = cotenant_hook_request_begin(0, &began_ns);
        cotenant_hook_request_end(index, began_ns);
    }
    return NULL;
}

/* More concurrent requests than can be tracked are all counted, from any thread. */
static void concurrent_requests_are_all_counted(void)
{
    static uint64_t index[2 * CT_REQUESTS_MAX], began_ns[2 * CT_REQUESTS_MAX];
    pthread_t threads[THREADS];
    open_online_tenant();
    for (int i = 0; i < 2 * CT_REQUESTS_MAX; i++)
        index[i] = cotenant_hook_request_begin(0, &began_ns[i]);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, begin_and_end_requests, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 2 * CT_REQUESTS_MAX; i++)
        cotenant_hook_request_end(index[i], began_ns[i]);
    EXPECT_EQ(requests()->ended, THREADS * EACH + 2 * CT_REQUESTS_MAX);
    EXPECT_EQ(bucket_total(), requests()->ended);
    EXPECT_EQ(requests()->began_ns, 0);
}

static void requests_without_a_gate_are_ignored(void)
{
    uint64_t began_ns;
    EXPECT(open_session()->gateway == NULL);
    cotenant_hook_request_end(cotenant_hook_request_begin(0, &began_ns), began_ns);
    cotenant_hook_request_took(1);
    EXPECT_EQ(cuEventQuery((CUevent)(uintptr_t)0x1), CUDA_SUCCESS);
}

int main(void)
{
    static void (*const cases[])(void) = {
        detected_requests_count_until_one_is_reported, detected_request_ends_when_another_process_reports,
        successful_query_ends_a_burst,
        reported_request_is_in_progress_until_it_ends,   concurrent_requests_are_all_counted,
        requests_without_a_gate_are_ignored,
    };
    return run_cases(cases, sizeof cases / sizeof *cases);
}
