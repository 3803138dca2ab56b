/* Fuzz test: random valid and invalid calls cause no crash and violate no invariant, projections are exact, and two
 * equal runs agree. */
#include "device/device.h"
#include "expect.h"

#include <string.h>

enum { SLOTS = 12, CALLS = 8000 };

struct run {
    struct ct_device *device;
    void *memory;
    uint64_t random;
    uint64_t now_ns;
    uint32_t clients[4], contexts[6], streams[SLOTS], events[SLOTS];
    uint64_t ops[SLOTS];
    uint64_t ready_host_op; /* the host function that became ready last */
    uint64_t digest; /* of all records, in order */
    uint64_t submitted, recorded; /* calls so far, ops done */
};

static uint64_t draw(struct run *run, uint64_t bound)
{
    run->random ^= run->random << 13;
    run->random ^= run->random >> 7;
    run->random ^= run->random << 17;
    return run->random % bound;
}

static void open_run(struct run *run, uint64_t seed)
{
    struct ct_device_config config = *ct_device_preset("v100");
    struct ct_device_limits limits = {.clients = 4, .contexts = 6, .streams = 10, .events = 8, .ops = 64,
                                      .records = 128};
    memset(run, 0, sizeof *run);
    run->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    config.sm_count = 1 + (uint32_t)draw(run, 5);
    config.slice_ns = 500 + draw(run, 3000);
    config.switch_ns = draw(run, 3) * 70;
    config.copy_engines = 1 + (uint32_t)draw(run, 3);
    config.copy_latency_ns = draw(run, 50);
    config.resident_kernels = draw(run, 4) == 0 ? 2 : 128;
    config.memory_bytes = 1000;
    if (draw(run, 2) == 0) {
        config.issue_full_ppm = (uint32_t)draw(run, 3) * 400000;
        config.cache_contention_ppm = (uint32_t)draw(run, 500000);
        config.dram_contention_ppm = (uint32_t)draw(run, 500000);
        config.clock_drop_ppm = (uint32_t)draw(run, 500000);
        config.priority_effect_ppm = (uint32_t)draw(run, 1000001);
    }
    size_t bytes = ct_device_bytes(&limits);
    run->memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    EXPECT_EQ(ct_device_init(run->memory, bytes, &config, &limits, 0, &run->device), CT_DEVICE_OK);
}

static void collect(struct run *run)
{
    struct ct_device_record records[128];
    size_t count = ct_device_drain(run->device, records, 128);
    for (size_t i = 0; i < count; i++) {
        const struct ct_device_record *r = &records[i];
        EXPECT(r->submit_ns <= r->ready_ns && r->ready_ns <= r->start_ns);
        EXPECT(r->what == CT_RECORD_READY || r->start_ns <= r->end_ns);
        EXPECT(r->delayed_ns <= ct_device_now(run->device) - r->ready_ns);
        run->digest = (run->digest ^ r->op ^ r->end_ns ^ r->delayed_ns << 20) * UINT64_C(0x100000001b3);
        run->recorded += r->what == CT_RECORD_DONE;
        if (r->what == CT_RECORD_READY)
            run->ready_host_op = r->op;
    }
}

static void launch(struct run *run, uint32_t stream, uint64_t *op)
{
    struct ct_kernel kernel = {.blocks = 1 + draw(run, 40), .block_ns = 1 + draw(run, 300),
                               .threads_per_block = 32 + 32 * (uint32_t)draw(run, 32)};
    if (draw(run, 2))
        kernel.bytes_per_block = draw(run, 400000);
    if (draw(run, 6) == 0)
        kernel.blocks = 1 + draw(run, 1000);
    if (draw(run, 8) == 0)
        kernel.shared_bytes_per_block = (uint32_t)draw(run, 120000);
    if (draw(run, 3) == 0)
        kernel.sm_cap = (uint32_t)draw(run, 7); /* at times more than there are */
    ct_device_launch(run->device, run->now_ns, stream, &kernel, 7, op);
}

/* While nothing is submitted, each op completes exactly at its projected instant. */
static void check_projections(struct run *run)
{
    uint64_t projected_ns[SLOTS];
    for (int i = SLOTS - 1; i >= 0; i--)
        projected_ns[i] = ct_device_project_op(run->device, run->ops[i]);
    for (int i = 0; i < SLOTS; i++) {
        EXPECT_EQ(ct_device_project_op(run->device, run->ops[i]), projected_ns[i]);
        EXPECT((projected_ns[i] == CT_DEVICE_DONE) == (ct_device_op_query(run->device, run->ops[i]) == CT_DEVICE_OK));
    }
    for (int turn = 0; turn < SLOTS; turn++) {
        int next = -1;
        for (int i = 0; i < SLOTS; i++)
            if (projected_ns[i] != CT_DEVICE_DONE && projected_ns[i] != CT_DEVICE_NEVER &&
                (next < 0 || projected_ns[i] < projected_ns[next]))
                next = i;
        if (next < 0 || projected_ns[next] > run->now_ns + 50000)
            return;
        if (projected_ns[next] > ct_device_now(run->device)) { /* not at the same instant as the previous one */
            ct_device_advance(run->device, projected_ns[next] - 1);
            EXPECT_EQ(ct_device_op_query(run->device, run->ops[next]), CT_DEVICE_NOT_READY);
            EXPECT_EQ(ct_device_project_op(run->device, run->ops[next]), projected_ns[next]);
            ct_device_advance(run->device, projected_ns[next]);
        }
        EXPECT_EQ(ct_device_op_query(run->device, run->ops[next]), CT_DEVICE_OK);
        run->now_ns = projected_ns[next];
        projected_ns[next] = CT_DEVICE_DONE;
    }
}

/* All of its memory is moved off the device, and back completely or not at all. */
static void park_or_unpark(struct run *run, uint32_t client)
{
    struct ct_device *d = run->device;
    uint64_t on_bytes = ct_device_client_memory(d, client), off_bytes = ct_device_client_parked(d, client);
    uint64_t free_bytes = ct_device_memory_free(d);
    int is_return = (int)draw(run, 2);
    int result = is_return ? ct_device_client_unpark(d, client) : ct_device_client_park(d, client);
    if (result == CT_DEVICE_STALE)
        return;
    EXPECT_EQ(result, is_return && off_bytes > free_bytes ? CT_DEVICE_NO_MEMORY : CT_DEVICE_OK);
    uint64_t expected_bytes = result != CT_DEVICE_OK ? on_bytes : is_return ? on_bytes + off_bytes : 0;
    EXPECT_EQ(ct_device_client_memory(d, client), expected_bytes);
    EXPECT_EQ(ct_device_client_parked(d, client), on_bytes + off_bytes - expected_bytes);
}

static void change_clients(struct run *run)
{
    struct ct_device *d = run->device;
    uint32_t *client = &run->clients[draw(run, 4)], *context = &run->contexts[draw(run, 6)];
    uint32_t *stream = &run->streams[draw(run, SLOTS)], *event = &run->events[draw(run, SLOTS)];
    switch (draw(run, 15)) {
    case 0:
        if (*client == 0)
            ct_device_client_add(d, run->now_ns, draw(run, 2) ? CT_GROUP_OWN : (uint32_t)draw(run, 2), client);
        break;
    case 1:
        if (draw(run, 10) == 0 && ct_device_client_kill(d, run->now_ns, *client) == CT_DEVICE_OK)
            *client = 0;
        break;
    case 2:
    case 3:
        if (ct_device_context_query(d, *context) == CT_DEVICE_STALE)
            ct_device_context_create(d, run->now_ns, *client, draw(run, 3) ? 0 : 1, context);
        break;
    case 4:
        if (draw(run, 8) == 0)
            ct_device_context_destroy(d, run->now_ns, *context);
        else if (draw(run, 3))
            ct_device_context_cap(d, run->now_ns, *context, (uint32_t)draw(run, 7));
        else
            ct_device_client_cap(d, run->now_ns, *client, (uint32_t)draw(run, 7));
        break;
    case 5:
        if (draw(run, 3))
            ct_device_memory_take(d, *context, draw(run, 600));
        else
            ct_device_client_take(d, *client, draw(run, 600));
        break;
    case 6:
        if (draw(run, 3))
            ct_device_memory_give(d, *context, draw(run, 600));
        else if (draw(run, 3))
            ct_device_client_give(d, *client, draw(run, 600));
        else
            park_or_unpark(run, *client);
        break;
    case 7:
    case 8:
        if (ct_device_stream_query(d, *stream) == CT_DEVICE_STALE)
            ct_device_stream_create(d, run->now_ns, *context, (int)draw(run, 4), (int32_t)draw(run, 12) - 8, stream);
        break;
    case 9:
        if (draw(run, 3) == 0)
            ct_device_stream_destroy(d, run->now_ns, *stream);
        break;
    case 11:
        if (draw(run, 6) == 0)
            ct_device_client_stop(d, run->now_ns, *client);
        break;
    case 12:
        ct_device_op_cut(d, run->now_ns, run->ops[draw(run, SLOTS)]);
        break;
    case 13:
        /* Mostly back to full speed: otherwise work accumulates and every check takes longer. */
        ct_device_set_speed(d, run->now_ns, CT_DEVICE_FULL_SPEED - (draw(run, 4) ? 0 : (uint32_t)draw(run, 900000000)));
        break;
    case 10:
        if (ct_device_event_query(d, *event) == CT_DEVICE_STALE)
            ct_device_event_create(d, *context, event);
        break;
    default:
        if (draw(run, 3) == 0)
            ct_device_event_destroy(d, *event);
    }
}

static void submit_work(struct run *run)
{
    struct ct_device *d = run->device;
    uint32_t stream = run->streams[draw(run, SLOTS)], event = run->events[draw(run, SLOTS)];
    uint64_t *op = &run->ops[draw(run, SLOTS)];
    switch (draw(run, 10)) {
    case 0:
    case 1:
    case 2:
        launch(run, stream, op);
        break;
    case 3:
        ct_device_copy(d, run->now_ns, stream, (int)draw(run, 6), draw(run, 100000), 8, op);
        break;
    case 4:
        ct_device_event_record(d, run->now_ns, stream, event, 9, op);
        break;
    case 5:
        ct_device_event_wait(d, run->now_ns, stream, event, 10, op);
        break;
    case 6:
        if (draw(run, 2))
            ct_device_host(d, run->now_ns, stream, 11, op);
        else
            ct_device_marker(d, run->now_ns, stream, 12, op);
        break;
    case 7:
    case 8:
        ct_device_host_done(d, run->now_ns, draw(run, 3) ? run->ready_host_op : *op);
        break;
    default:
        check_projections(run);
    }
}

static void call_randomly(struct run *run)
{
    if (draw(run, 2))
        run->now_ns += draw(run, 6000);
    if (draw(run, 50) == 0)
        run->now_ns -= draw(run, run->now_ns + 1) / 64; /* late: clamped and counted */
    if (draw(run, 6) == 0 || run->submitted++ < 100) /* clients first, then mostly work */
        change_clients(run);
    else
        submit_work(run);
    if (draw(run, 8) == 0)
        ct_device_advance(run->device, run->now_ns);
    const char *violation = ct_device_check(run->device);
    if (violation != NULL) {
        fprintf(stderr, "invariant: %s\n", violation);
        exit(1);
    }
    collect(run);
}

static void kill_all_clients(struct run *run)
{
    struct ct_device_counters counters;
    for (int i = 0; i < 4; i++)
        for (uint32_t generation = 1; generation < 2000; generation++)
            ct_device_client_kill(run->device, run->now_ns, generation << 16 | (uint32_t)i);
    ct_device_count(run->device, &counters);
    EXPECT_EQ(counters.memory_bytes, 0);
    EXPECT_EQ(counters.dropped_records, 0);
    EXPECT_EQ(ct_device_next_change(run->device), CT_DEVICE_NEVER);
    EXPECT(ct_device_check(run->device) == NULL);
    EXPECT_EQ(ct_device_memory_free(run->device), 1000);
}

int main(void)
{
    const uint64_t seeds = rounds_of(30, 600);
    uint64_t records = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        struct run first, second;
        open_run(&first, seed);
        open_run(&second, seed);
        for (int i = 0; i < CALLS; i++) {
            call_randomly(&first);
            call_randomly(&second);
            EXPECT_EQ(first.digest, second.digest);
            EXPECT_EQ(first.random, second.random);
        }
        kill_all_clients(&first);
        records += first.recorded;
        free(first.memory);
        free(second.memory);
    }
    EXPECT(records > 10000);
    printf("%" PRIu64 " ops completed in %" PRIu64 " runs\n", records, seeds);
    return 0;
}
