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
    uint64_t called; /* the host function that became ready last */
    uint64_t digest; /* of all records, in order */
    uint64_t submitted, recorded; /* calls so far, ops done */
};

static uint64_t draw(struct run *w, uint64_t bound)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random % bound;
}

static void open_world(struct run *w, uint64_t seed)
{
    struct ct_device_config config = *ct_device_preset("v100");
    struct ct_device_limits limits = {.clients = 4, .contexts = 6, .streams = 10, .events = 8, .ops = 64,
                                      .records = 128};
    memset(w, 0, sizeof *w);
    w->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    config.sm_count = 1 + (uint32_t)draw(w, 5);
    config.slice_ns = 500 + draw(w, 3000);
    config.switch_ns = draw(w, 3) * 70;
    config.copy_engines = 1 + (uint32_t)draw(w, 3);
    config.copy_latency_ns = draw(w, 50);
    config.resident_kernels = draw(w, 4) == 0 ? 2 : 128;
    config.memory_bytes = 1000;
    size_t bytes = ct_device_bytes(&limits);
    w->memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    EXPECT_EQ(ct_device_init(w->memory, bytes, &config, &limits, 0, &w->device), CT_DEVICE_OK);
}

static void collect(struct run *w)
{
    struct ct_device_record records[128];
    size_t count = ct_device_drain(w->device, records, 128);
    for (size_t i = 0; i < count; i++) {
        const struct ct_device_record *r = &records[i];
        EXPECT(r->submit_ns <= r->ready_ns && r->ready_ns <= r->start_ns);
        EXPECT(r->what == CT_RECORD_READY || r->start_ns <= r->end_ns);
        EXPECT(r->delayed_ns <= ct_device_now(w->device) - r->ready_ns);
        w->digest = (w->digest ^ r->op ^ r->end_ns ^ r->delayed_ns << 20) * UINT64_C(0x100000001b3);
        w->recorded += r->what == CT_RECORD_DONE;
        if (r->what == CT_RECORD_READY)
            w->called = r->op;
    }
}

static void launch(struct run *w, uint32_t stream, uint64_t *op)
{
    struct ct_kernel kernel = {.blocks = 1 + draw(w, 40), .block_ns = 1 + draw(w, 300),
                               .threads_per_block = 32 + 32 * (uint32_t)draw(w, 32)};
    if (draw(w, 2))
        kernel.bytes_per_block = draw(w, 400000);
    if (draw(w, 6) == 0)
        kernel.blocks = 1 + draw(w, 1000);
    if (draw(w, 8) == 0)
        kernel.shared_bytes_per_block = (uint32_t)draw(w, 120000);
    ct_device_launch(w->device, w->now_ns, stream, &kernel, 7, op);
}

/* While nothing is submitted, each op completes exactly at its projected instant. */
static void projections_come_true(struct run *w)
{
    uint64_t projected_ns[SLOTS];
    for (int i = SLOTS - 1; i >= 0; i--)
        projected_ns[i] = ct_device_project_op(w->device, w->ops[i]);
    for (int i = 0; i < SLOTS; i++) {
        EXPECT_EQ(ct_device_project_op(w->device, w->ops[i]), projected_ns[i]);
        EXPECT((projected_ns[i] == CT_DEVICE_DONE) == (ct_device_op_query(w->device, w->ops[i]) == CT_DEVICE_OK));
    }
    for (int turn = 0; turn < SLOTS; turn++) {
        int next = -1;
        for (int i = 0; i < SLOTS; i++)
            if (projected_ns[i] != CT_DEVICE_DONE && projected_ns[i] != CT_DEVICE_NEVER &&
                (next < 0 || projected_ns[i] < projected_ns[next]))
                next = i;
        if (next < 0 || projected_ns[next] > w->now_ns + 50000)
            return;
        if (projected_ns[next] > ct_device_now(w->device)) { /* not at the same instant as the previous one */
            ct_device_advance(w->device, projected_ns[next] - 1);
            EXPECT_EQ(ct_device_op_query(w->device, w->ops[next]), CT_DEVICE_NOT_READY);
            EXPECT_EQ(ct_device_project_op(w->device, w->ops[next]), projected_ns[next]);
            ct_device_advance(w->device, projected_ns[next]);
        }
        EXPECT_EQ(ct_device_op_query(w->device, w->ops[next]), CT_DEVICE_OK);
        w->now_ns = projected_ns[next];
        projected_ns[next] = CT_DEVICE_DONE;
    }
}

/* All of its memory is moved off the device, and back completely or not at all. */
static void park(struct run *w, uint32_t client)
{
    struct ct_device *d = w->device;
    uint64_t on = ct_device_client_memory(d, client), off = ct_device_client_parked(d, client);
    uint64_t free_bytes = ct_device_memory_free(d);
    int is_return = (int)draw(w, 2);
    int result = is_return ? ct_device_client_unpark(d, client) : ct_device_client_park(d, client);
    if (result == CT_DEVICE_STALE)
        return;
    EXPECT_EQ(result, is_return && off > free_bytes ? CT_DEVICE_NO_MEMORY : CT_DEVICE_OK);
    uint64_t now = result != CT_DEVICE_OK ? on : is_return ? on + off : 0;
    EXPECT_EQ(ct_device_client_memory(d, client), now);
    EXPECT_EQ(ct_device_client_parked(d, client), on + off - now);
}

static void clients(struct run *w)
{
    struct ct_device *d = w->device;
    uint32_t *client = &w->clients[draw(w, 4)], *context = &w->contexts[draw(w, 6)];
    uint32_t *stream = &w->streams[draw(w, SLOTS)], *event = &w->events[draw(w, SLOTS)];
    switch (draw(w, 15)) {
    case 0:
        if (*client == 0)
            ct_device_client_add(d, w->now_ns, draw(w, 2) ? CT_GROUP_OWN : (uint32_t)draw(w, 2), client);
        break;
    case 1:
        if (draw(w, 10) == 0 && ct_device_client_kill(d, w->now_ns, *client) == CT_DEVICE_OK)
            *client = 0;
        break;
    case 2:
    case 3:
        if (ct_device_context_query(d, *context) == CT_DEVICE_STALE)
            ct_device_context_create(d, w->now_ns, *client, draw(w, 3) ? 0 : 1, context);
        break;
    case 4:
        if (draw(w, 8) == 0)
            ct_device_context_destroy(d, w->now_ns, *context);
        else if (draw(w, 3))
            ct_device_context_cap(d, w->now_ns, *context, (uint32_t)draw(w, 7));
        else
            ct_device_client_cap(d, w->now_ns, *client, (uint32_t)draw(w, 7));
        break;
    case 5:
        if (draw(w, 3))
            ct_device_memory_take(d, *context, draw(w, 600));
        else
            ct_device_client_take(d, *client, draw(w, 600));
        break;
    case 6:
        if (draw(w, 3))
            ct_device_memory_give(d, *context, draw(w, 600));
        else if (draw(w, 3))
            ct_device_client_give(d, *client, draw(w, 600));
        else
            park(w, *client);
        break;
    case 7:
    case 8:
        if (ct_device_stream_query(d, *stream) == CT_DEVICE_STALE)
            ct_device_stream_create(d, w->now_ns, *context, (int)draw(w, 4), (int32_t)draw(w, 12) - 8, stream);
        break;
    case 9:
        if (draw(w, 3) == 0)
            ct_device_stream_destroy(d, w->now_ns, *stream);
        break;
    case 11:
        if (draw(w, 6) == 0)
            ct_device_client_stop(d, w->now_ns, *client);
        break;
    case 12:
        ct_device_op_cut(d, w->now_ns, w->ops[draw(w, SLOTS)]);
        break;
    case 13:
        /* Mostly back to full speed: otherwise work accumulates and every check takes longer. */
        ct_device_set_speed(d, w->now_ns, CT_DEVICE_FULL_SPEED - (draw(w, 4) ? 0 : (uint32_t)draw(w, 900000000)));
        break;
    case 10:
        if (ct_device_event_query(d, *event) == CT_DEVICE_STALE)
            ct_device_event_create(d, *context, event);
        break;
    default:
        if (draw(w, 3) == 0)
            ct_device_event_destroy(d, *event);
    }
}

static void work(struct run *w)
{
    struct ct_device *d = w->device;
    uint32_t stream = w->streams[draw(w, SLOTS)], event = w->events[draw(w, SLOTS)];
    uint64_t *op = &w->ops[draw(w, SLOTS)];
    switch (draw(w, 10)) {
    case 0:
    case 1:
    case 2:
        launch(w, stream, op);
        break;
    case 3:
        ct_device_copy(d, w->now_ns, stream, (int)draw(w, 6), draw(w, 100000), 8, op);
        break;
    case 4:
        ct_device_event_record(d, w->now_ns, stream, event, 9, op);
        break;
    case 5:
        ct_device_event_wait(d, w->now_ns, stream, event, 10, op);
        break;
    case 6:
        if (draw(w, 2))
            ct_device_host(d, w->now_ns, stream, 11, op);
        else
            ct_device_marker(d, w->now_ns, stream, 12, op);
        break;
    case 7:
    case 8:
        ct_device_host_done(d, w->now_ns, draw(w, 3) ? w->called : *op);
        break;
    default:
        projections_come_true(w);
    }
}

static void call(struct run *w)
{
    if (draw(w, 2))
        w->now_ns += draw(w, 6000);
    if (draw(w, 50) == 0)
        w->now_ns -= draw(w, w->now_ns + 1) / 64; /* late: clamped and counted */
    if (draw(w, 6) == 0 || w->submitted++ < 100) /* clients first, then mostly work */
        clients(w);
    else
        work(w);
    if (draw(w, 8) == 0)
        ct_device_advance(w->device, w->now_ns);
    const char *wrong = ct_device_check(w->device);
    if (wrong != NULL) {
        fprintf(stderr, "invariant: %s\n", wrong);
        exit(1);
    }
    collect(w);
}

static void everyone_leaves(struct run *w)
{
    struct ct_device_counters counters;
    for (int i = 0; i < 4; i++)
        for (uint32_t generation = 1; generation < 2000; generation++)
            ct_device_client_kill(w->device, w->now_ns, generation << 16 | (uint32_t)i);
    ct_device_count(w->device, &counters);
    EXPECT_EQ(counters.memory_bytes, 0);
    EXPECT_EQ(counters.dropped_records, 0);
    EXPECT_EQ(ct_device_next_change(w->device), CT_DEVICE_NEVER);
    EXPECT(ct_device_check(w->device) == NULL);
    EXPECT_EQ(ct_device_memory_free(w->device), 1000);
}

int main(void)
{
    const uint64_t seeds = rounds_of(30, 600);
    uint64_t records = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        struct run one, two;
        open_world(&one, seed);
        open_world(&two, seed);
        for (int i = 0; i < CALLS; i++) {
            call(&one);
            call(&two);
            EXPECT_EQ(one.digest, two.digest);
            EXPECT_EQ(one.random, two.random);
        }
        everyone_leaves(&one);
        records += one.recorded;
        free(one.memory);
        free(two.memory);
    }
    EXPECT(records > 10000);
    printf("%" PRIu64 " ops completed in %" PRIu64 " worlds\n", records, seeds);
    return 0;
}
