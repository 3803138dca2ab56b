/* Plays requests at their arrival times, and measures their latencies. */
#include "player/player.h"

#include "cotenant/request.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define SLEEP_FROM_NS UINT64_C(200000) /* a sleep may overshoot by this much; for less, the clock is polled */
#define WAKE_EARLY_NS UINT64_C(100000)
#define SECOND_NS UINT64_C(1000000000)

static volatile sig_atomic_t stopped;

void pl_stop(void)
{
    stopped = 1;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void pause_until(uint64_t at_ns)
{
    for (uint64_t now = now_ns(); now < at_ns && !stopped; now = now_ns()) {
        if (at_ns - now <= SLEEP_FROM_NS)
            continue;
        uint64_t wake_ns = at_ns - WAKE_EARLY_NS;
        struct timespec wake = {.tv_sec = (time_t)(wake_ns / SECOND_NS), .tv_nsec = (long)(wake_ns % SECOND_NS)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
    }
}

uint64_t pl_exponential(uint64_t *state, uint64_t mean_ns)
{
    /* splitmix64 (Steele, Lea and Flood 2014): every seed is valid, and the state is one word. */
    uint64_t bits = *state += UINT64_C(0x9e3779b97f4a7c15);
    bits = (bits ^ bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ bits >> 27) * UINT64_C(0x94d049bb133111eb);
    bits ^= bits >> 31;
    double uniform = (double)(bits >> 11) / 9007199254740992.0; /* 2^53: uniform in [0, 1) */
    return (uint64_t)(-log1p(-uniform) * (double)mean_ns);
}

/* Plays these steps at their intervals and waits for the last; stops at the first error. */
static int play_steps(const struct pl_context *context, const struct pl_script *script, size_t first, size_t count,
                      uint64_t *launches)
{
    int failed = 0;
    for (size_t i = first; !failed && !stopped && i < first + count; i++) {
        const struct pl_step *step = &script->steps[i];
        uint64_t launched_ns = step->interval_ns ? now_ns() : 0;
        failed = pl_launch(context, step, context->streams[step->stream]);
        ++*launches;
        if (step->interval_ns)
            pause_until(launched_ns + step->interval_ns);
    }
    for (size_t i = 0; !failed && i < script->stream_count; i++)
        failed = context->driver.synchronize(context->streams[i]);
    return failed;
}

static int play_graph(const struct pl_context *context, uint64_t *launches)
{
    int failed = context->driver.graph_launch(context->graph, context->streams[0]);
    ++*launches;
    return failed ? failed : context->driver.synchronize(context->streams[0]);
}

static int add_request(struct pl_result *result, const struct pl_request *request)
{
    if (result->count == result->capacity) {
        size_t capacity = result->capacity ? 2 * result->capacity : 256;
        struct pl_request *more = realloc(result->requests, capacity * sizeof *more);
        if (!more)
            return -1;
        result->requests = more;
        result->capacity = capacity;
    }
    result->requests[result->count++] = *request;
    return 0;
}

/* Waits for the next arrival and returns its instant. A request that arrives while another is in progress waits, and
 * its latency counts from its arrival. */
static uint64_t next_due(const struct pl_plan *plan, uint64_t start_ns, size_t index, uint64_t due_ns, uint64_t *state)
{
    if (plan->arrival == PL_BACK_TO_BACK)
        return now_ns();
    if (plan->arrival == PL_INSTANTS)
        due_ns = start_ns + plan->instants_ns[index];
    else
        due_ns += plan->arrival == PL_POISSON ? pl_exponential(state, plan->period_ns) : plan->period_ns;
    pause_until(due_ns);
    return due_ns;
}

void pl_play(const struct pl_context *context, const struct pl_script *script, const struct pl_plan *plan,
             struct pl_result *result)
{
    uint64_t state = plan->seed, start_ns = now_ns(), due_ns = start_ns;
    *result = (struct pl_result){0};
    prctl(PR_SET_TIMERSLACK, 1UL); /* wake up within microseconds instead of the default 50 */
    while (!stopped && (!plan->requests || result->count < plan->requests)) {
        due_ns = next_due(plan, start_ns, result->count, due_ns, &state);
        if (stopped || (plan->limit_ns && due_ns - start_ns > plan->limit_ns))
            break;
        struct pl_request request = {.due_ns = due_ns, .begin_ns = now_ns()};
        cotenant_request reported = {0, 0};
        if (plan->reports_requests)
            reported = cotenant_request_begin_at(due_ns);
        result->failed = context->graph ? play_graph(context, &result->launches)
            : play_steps(context, script, 0, script->count, &result->launches);
        request.end_ns = now_ns();
        if (plan->reports_requests)
            cotenant_request_end(&reported);
        if (result->failed || (stopped && !context->graph))
            break;
        if (add_request(result, &request)) {
            result->no_memory = 1;
            break;
        }
    }
}

void pl_result_free(struct pl_result *result)
{
    free(result->requests);
    *result = (struct pl_result){0};
}

int pl_play_part(const struct pl_context *context, const struct pl_script *script, size_t first, size_t count,
                 struct pl_request *request)
{
    uint64_t launches = 0;
    cotenant_request reported = cotenant_request_begin_at(request->due_ns);
    request->begin_ns = now_ns();
    int failed = play_steps(context, script, first, count, &launches);
    request->end_ns = now_ns();
    cotenant_request_end(&reported);
    return failed;
}
