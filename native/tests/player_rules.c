/* The player: reading scripts, launch instants, and latencies, with a fake driver. */
#include "expect.h"
#include "player/player.h"

#include <string.h>
#include <time.h>

static uint64_t launched[64], launched_ns[64];
static size_t launches, waits, graphs;
static int failing_launch = -1;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static int record_launch(uint64_t amount)
{
    if ((int)launches == failing_launch)
        return 719;
    launched_ns[launches % 64] = now_ns();
    launched[launches++ % 64] = amount;
    return 0;
}

static int launch(void *function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                  unsigned shared, void *stream, void **parameters, void **extra)
{
    EXPECT(function && blocks && threads && stream && !extra);
    EXPECT_EQ(y * z * ty * tz, 1);
    EXPECT_EQ(shared, 0);
    return record_launch(*(uint64_t *)parameters[0]);
}

static int copy(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    EXPECT(to && from && stream);
    return record_launch(bytes);
}

static int clear(uint64_t to, unsigned char value, size_t bytes, void *stream)
{
    EXPECT(to && !value && stream);
    return record_launch(bytes);
}

static int synchronize(void *stream)
{
    EXPECT(stream != NULL);
    waits++;
    return 0;
}

static int graph_launch(void *graph, void *stream)
{
    EXPECT(graph && stream);
    graphs++;
    return 0;
}

static void *functions[] = {&functions, &launched}, *streams[] = {&launches, &waits};

static struct pl_context fake_context(void)
{
    return (struct pl_context){
        .driver = {launch, synchronize, graph_launch, copy, copy, copy, clear},
        .functions = functions, .streams = streams, .device = 1, .other = 2, .host = 3};
}

static long read_text(struct pl_script *script, const char *text)
{
    return pl_script_read(script, text, strlen(text));
}

static void valid_scripts_are_read_and_invalid_ones_rejected(void)
{
    static const char *const invalid[] = {"", "# nothing\n", "k 1 1 1\n", "k 0 1 1 1\n", "k 1 1025 1 1\n",
                                          "k 1 1 -1 1\n",
                                          "k 1 1 1 1 1 1\n", "@htod 0 1\n", "@warp 1 1\n", "k 1 1 1 x\n", "@dtoh 1\n"};
    struct pl_script script;
    EXPECT_EQ(read_text(&script,
                        "# a comment\nk 80 256 1000 20 7\n\n  @dtod 4096 5 9 # copy\nother 1 32 0 0\nk 1 1 2 3 7"), 0);
    EXPECT_EQ(script.count, 4);
    EXPECT_EQ(script.name_count, 2);
    EXPECT_EQ(script.stream_count, 3);
    EXPECT_EQ(script.max_bytes, 4096);
    EXPECT_EQ(script.steps[0].blocks, 80);
    EXPECT_EQ(script.steps[0].amount, 1000);
    EXPECT_EQ(script.steps[0].interval_ns, 20);
    EXPECT_EQ(script.steps[1].work, PL_DTOD);
    EXPECT_EQ(script.steps[3].function, script.steps[0].function);
    EXPECT_EQ(script.steps[3].stream, script.steps[0].stream);
    EXPECT(script.steps[2].function != script.steps[0].function);
    pl_script_free(&script);
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        EXPECT(read_text(&script, invalid[i]) > 0);
        pl_script_free(&script);
    }
    EXPECT_EQ(read_text(&script, "k 1 1 1 1\n\nk 1 1 1\n"), 3);
    pl_script_free(&script);
    EXPECT_EQ(pl_script_read(&script, "k 1 1 1 1\nk\0 1 1 1 1\n", 22), 2);
    pl_script_free(&script);
}

/* Steps are launched in the script's order, no earlier than their interval, with a wait for each stream at the end, and
 * no wait in between. */
static void launches_keep_their_intervals(void)
{
    struct pl_script script;
    struct pl_context context = fake_context();
    struct pl_plan plan = {.requests = 3};
    struct pl_result result;
    EXPECT_EQ(read_text(&script, "a 1 32 11 30000 0\n@memset 12 0 1\nb 1 32 13 300000 0\n@htod 14 0 1\n"), 0);
    pl_play(&context, &script, &plan, &result);
    EXPECT_EQ(result.failed, 0);
    EXPECT_EQ(result.count, 3);
    EXPECT_EQ(result.launches, 12);
    EXPECT_EQ(waits, 6);
    for (size_t i = 0; i < 12; i++)
        EXPECT_EQ(launched[i], 11 + i % 4);
    for (size_t i = 0; i < 3; i++) {
        EXPECT(result.requests[i].due_ns <= result.requests[i].begin_ns);
        EXPECT(launched_ns[4 * i + 1] >= result.requests[i].begin_ns + 30000);
        EXPECT(launched_ns[4 * i + 3] >= result.requests[i].begin_ns + 330000);
        EXPECT(result.requests[i].end_ns >= launched_ns[4 * i + 3]);
        EXPECT(!i || result.requests[i].due_ns >= result.requests[i - 1].end_ns);
    }
    pl_result_free(&result);
    pl_script_free(&script);
}

/* Plays only the requested steps as a request of its own; after a failure nothing more is launched. */
static void part_of_a_script_is_played_as_one_request(void)
{
    struct pl_script script;
    struct pl_context context = fake_context();
    struct pl_request request = {.due_ns = 5};
    EXPECT_EQ(read_text(&script, "a 1 32 21 0\nb 1 32 22 0\n@htod 23 0\na 1 32 24 0\n"), 0);
    launches = waits = 0;
    EXPECT_EQ(pl_play_part(&context, &script, 1, 2, &request), 0);
    EXPECT_EQ(launches, 2);
    EXPECT_EQ(waits, 1);
    EXPECT_EQ(launched[0], 22);
    EXPECT_EQ(launched[1], 23);
    EXPECT_EQ(request.due_ns, 5);
    EXPECT(request.begin_ns <= launched_ns[0] && launched_ns[1] <= request.end_ns);
    failing_launch = (int)launches + 1;
    EXPECT_EQ(pl_play_part(&context, &script, 0, 4, &request), 719);
    EXPECT_EQ(launches, 3);
    failing_launch = -1;
    launches = waits = 0;
    pl_script_free(&script);
}

/* Arrivals follow the clock, independent of earlier requests. */
static void periodic_arrivals_do_not_drift(void)
{
    struct pl_script script;
    struct pl_context context = fake_context();
    struct pl_plan plan = {.arrival = PL_PERIODIC, .period_ns = 400000, .requests = 5};
    struct pl_result result;
    EXPECT_EQ(read_text(&script, "a 1 32 1 500000\n"), 0);
    pl_play(&context, &script, &plan, &result);
    EXPECT_EQ(result.count, 5);
    for (size_t i = 1; i < 5; i++) {
        EXPECT_EQ(result.requests[i].due_ns - result.requests[i - 1].due_ns, 400000);
        EXPECT(result.requests[i].begin_ns >= result.requests[i - 1].end_ns);
    }
    pl_result_free(&result);
    plan = (struct pl_plan){.arrival = PL_POISSON, .period_ns = 1000, .limit_ns = 2000000};
    pl_play(&context, &script, &plan, &result);
    EXPECT(result.count > 0);
    EXPECT(result.requests[result.count - 1].due_ns - result.requests[0].due_ns <= 2000000);
    pl_result_free(&result);
    pl_script_free(&script);
}

static void exponential_intervals_have_the_requested_mean(void)
{
    uint64_t state = 7, again = 7, sum = 0;
    for (int i = 0; i < 100000; i++) {
        uint64_t after_ns = pl_exponential(&state, 1000000);
        EXPECT_EQ(after_ns, pl_exponential(&again, 1000000));
        sum += after_ns;
    }
    EXPECT(sum / 100000 > 980000 && sum / 100000 < 1020000);
}

static void failure_or_stop_ends_playing(void)
{
    struct pl_script script;
    struct pl_context context = fake_context();
    struct pl_plan plan = {.requests = 2};
    struct pl_result result;
    EXPECT_EQ(read_text(&script, "a 1 32 1 0\na 1 32 2 0\n"), 0);
    context.graph = &context;
    pl_play(&context, &script, &plan, &result);
    EXPECT_EQ(graphs, 2);
    EXPECT_EQ(result.launches, 2);
    pl_result_free(&result);
    context.graph = NULL;
    failing_launch = (int)launches + 3;
    pl_play(&context, &script, &plan, &result);
    EXPECT_EQ(result.failed, 719);
    EXPECT_EQ(result.count, 1);
    pl_result_free(&result);
    failing_launch = -1;
    pl_stop();
    plan.requests = 0;
    pl_play(&context, &script, &plan, &result);
    EXPECT_EQ(result.count, 0);
    EXPECT_EQ(result.launches, 0);
    pl_result_free(&result);
    pl_script_free(&script);
}

int main(void)
{
    valid_scripts_are_read_and_invalid_ones_rejected();
    launches_keep_their_intervals();
    part_of_a_script_is_played_as_one_request();
    periodic_arrivals_do_not_drift();
    exponential_intervals_have_the_requested_mean();
    failure_or_stop_ends_playing();
    return 0;
}
