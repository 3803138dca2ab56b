/* The rules of the device model, one by one, with values computed by hand. */
#include "device/device.h"
#include "expect.h"

#include <string.h>

struct rig {
    struct ct_device *device;
    void *memory;
    uint32_t clients[3], contexts[3], streams[3];
};

static struct rig open_rig(uint32_t sm_count, uint64_t slice_ns, uint64_t switch_ns, uint32_t group_label)
{
    struct rig rig;
    struct ct_device_config config = *ct_device_preset("v100");
    struct ct_device_limits limits = {.clients = 3, .contexts = 4, .streams = 8, .events = 4, .ops = 64,
                                      .records = 128};
    config.sm_count = sm_count;
    config.slice_ns = slice_ns;
    config.switch_ns = switch_ns;
    config.copy_latency_ns = 100;
    config.host_bytes_per_s = 1000000000; /* a byte per nanosecond */
    size_t bytes = ct_device_bytes(&limits);
    rig.memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    EXPECT_EQ(ct_device_init(rig.memory, bytes, &config, &limits, 0, &rig.device), CT_DEVICE_OK);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(ct_device_client_add(rig.device, 0, group_label, &rig.clients[i]), CT_DEVICE_OK);
        EXPECT_EQ(ct_device_context_create(rig.device, 0, rig.clients[i], 0, &rig.contexts[i]), CT_DEVICE_OK);
        EXPECT_EQ(ct_device_stream_create(rig.device, 0, rig.contexts[i], CT_STREAM_BLOCKING, 0, &rig.streams[i]),
                  CT_DEVICE_OK);
    }
    return rig;
}

static uint64_t launch(struct rig *rig, uint64_t now_ns, uint32_t stream, uint64_t blocks, uint64_t block_ns)
{
    struct ct_kernel kernel = {.blocks = blocks, .block_ns = block_ns, .threads_per_block = 256, .blocks_per_sm = 1};
    uint64_t op;
    EXPECT_EQ(ct_device_launch(rig->device, now_ns, stream, &kernel, 0, &op), CT_DEVICE_OK);
    return op;
}

static struct ct_device_record record_of(struct rig *rig, uint64_t op)
{
    struct ct_device_record record;
    while (ct_device_drain(rig->device, &record, 1) == 1)
        if (record.op == op && record.what == CT_RECORD_DONE)
            return record;
    EXPECT(!"a record of this op");
    return record;
}

static void occupancy_follows_the_scarcest_resource(void)
{
    const struct ct_device_config *v100 = ct_device_preset("v100"), *a100 = ct_device_preset("a100-80");
    EXPECT(ct_device_preset("gtx") == NULL);
    EXPECT_EQ(ct_device_preset("t4")->sm_count, 40);
    EXPECT_EQ(ct_device_occupancy(v100, 256, 32, 0), 8);  /* threads: 2048 / 256 */
    EXPECT_EQ(ct_device_occupancy(v100, 32, 16, 0), 32);  /* the block limit */
    EXPECT_EQ(ct_device_occupancy(v100, 256, 128, 0), 2); /* registers: 65536 / (256 * 128) */
    EXPECT_EQ(ct_device_occupancy(v100, 128, 32, 48 * 1024), 2); /* shared memory: 96 / 48 */
    EXPECT_EQ(ct_device_occupancy(a100, 128, 32, 48 * 1024), 3); /* 164 / (48 + 1) */
    EXPECT_EQ(ct_device_occupancy(v100, 1025, 0, 0), 0);
    EXPECT_EQ(ct_device_occupancy(v100, 1024, 255, 0), 0); /* one block needs four times the registers */
}

/* One SM, slices of 1,000 ns, switches of 10 ns: a runs first, b waits, and from then on each waits for the other. */
static void time_slices_freeze_running_blocks(void)
{
    struct rig rig = open_rig(1, 1000, 10, CT_GROUP_OWN);
    uint64_t a = launch(&rig, 0, rig.streams[0], 1, 1500);
    uint64_t b = launch(&rig, 100, rig.streams[1], 1, 1200);
    EXPECT_EQ(ct_device_project_op(rig.device, a), 1000 + 10 + 1000 + 10 + 500);
    EXPECT_EQ(ct_device_project_op(rig.device, b), 2520 + 10 + 200);
    ct_device_advance(rig.device, 10000);
    struct ct_device_record done_a = record_of(&rig, a), done_b = record_of(&rig, b);
    EXPECT_EQ(done_a.end_ns, 2520);
    EXPECT_EQ(done_a.delayed_ns, 1020); /* frozen from 1000 to 2020 */
    EXPECT_EQ(done_b.start_ns, 1010);
    EXPECT_EQ(done_b.end_ns, 2730);
    EXPECT_EQ(done_b.delayed_ns, 910 + 520);
    EXPECT_EQ(ct_device_delay(rig.device, rig.clients[0], rig.clients[1]), 1020);
    EXPECT_EQ(ct_device_delay(rig.device, rig.clients[1], rig.clients[0]), 1430);
    struct ct_device_counters counters;
    ct_device_count(rig.device, &counters);
    EXPECT_EQ(counters.switches, 3);
    EXPECT_EQ(counters.busy_ns, 2700);
    free(rig.memory);
}

/* In one group b only waits for a's block. */
static void clients_of_one_group_wait_only_for_blocks(void)
{
    struct rig rig = open_rig(2, 1000, 10, 7);
    uint64_t a = launch(&rig, 0, rig.streams[0], 2, 1500);
    uint64_t b = launch(&rig, 100, rig.streams[1], 1, 400);
    ct_device_advance(rig.device, 10000);
    EXPECT_EQ(record_of(&rig, a).end_ns, 1500);
    struct ct_device_record done = record_of(&rig, b);
    EXPECT_EQ(done.start_ns, 1500);
    EXPECT_EQ(done.delayed_ns, 1400);
    EXPECT_EQ(ct_device_delay(rig.device, rig.clients[1], rig.clients[0]), 1400);
    EXPECT_EQ(ct_device_delay(rig.device, rig.clients[0], rig.clients[1]), 0);
    free(rig.memory);
}

static void copies_queue_by_direction(void)
{
    struct rig rig = open_rig(1, 1000, 0, CT_GROUP_OWN);
    uint64_t first_up, second_up, down;
    launch(&rig, 0, rig.streams[2], 1, 5000); /* kernels do not delay copies of other streams */
    ct_device_copy(rig.device, 0, rig.streams[0], CT_OP_COPY_HTOD, 1000, 0, &first_up);
    ct_device_copy(rig.device, 0, rig.streams[1], CT_OP_COPY_HTOD, 500, 0, &second_up);
    ct_device_copy(rig.device, 0, rig.streams[0], CT_OP_COPY_DTOH, 300, 0, &down);
    EXPECT_EQ(ct_device_project_op(rig.device, first_up), 1100);
    EXPECT_EQ(ct_device_project_op(rig.device, second_up), 1700);
    EXPECT_EQ(ct_device_project_op(rig.device, down), 1500); /* after `first_up` in its stream, concurrent with
                                                              * `second_up` */
    EXPECT_EQ(ct_device_project_context(rig.device, rig.contexts[0]), 1500);
    free(rig.memory);
}

/* 1 GB within a V100's memory is read and written once: 2 GB at 900 GB/s. */
static void copies_within_the_device_use_its_bandwidth(void)
{
    struct rig rig = open_rig(80, 1000000000, 0, CT_GROUP_OWN);
    uint64_t op;
    ct_device_copy(rig.device, 0, rig.streams[0], CT_OP_COPY_DTOD, 1000000000, 0, &op);
    uint64_t end_ns = ct_device_project_op(rig.device, op);
    EXPECT(end_ns >= 2222222 && end_ns <= 2222300);
    ct_device_copy(rig.device, 0, rig.streams[0], CT_OP_MEMSET, 0, 0, &op);
    EXPECT_EQ(ct_device_project_op(rig.device, op), end_ns + 1);
    free(rig.memory);
}

static void host_function_blocks_its_stream_until_reported(void)
{
    struct rig rig = open_rig(1, 1000, 0, CT_GROUP_OWN);
    struct ct_device_record record;
    uint64_t host, after;
    launch(&rig, 0, rig.streams[0], 1, 100);
    ct_device_host(rig.device, 0, rig.streams[0], 42, &host);
    after = launch(&rig, 0, rig.streams[0], 1, 100);
    EXPECT_EQ(ct_device_host_done(rig.device, 50, host), CT_DEVICE_NOT_READY);
    EXPECT_EQ(ct_device_project_op(rig.device, host), CT_DEVICE_NEVER);
    EXPECT_EQ(ct_device_project_op(rig.device, after), CT_DEVICE_NEVER);
    ct_device_advance(rig.device, 500);
    EXPECT_EQ(ct_device_drain(rig.device, &record, 1), 1);
    EXPECT_EQ(ct_device_drain(rig.device, &record, 1), 1);
    EXPECT(record.op == host && record.tag == 42 && record.what == CT_RECORD_READY && record.ready_ns == 100);
    EXPECT_EQ(ct_device_next_change(rig.device), CT_DEVICE_NEVER);
    EXPECT_EQ(ct_device_host_done(rig.device, 600, host), CT_DEVICE_OK);
    EXPECT_EQ(ct_device_project_op(rig.device, after), 700);
    EXPECT_EQ(ct_device_host_done(rig.device, 600, host), CT_DEVICE_STALE);
    free(rig.memory);
}

static void killed_client_frees_everything_at_once(void)
{
    struct rig rig = open_rig(1, 1000, 10, CT_GROUP_OWN);
    uint32_t event;
    uint64_t op;
    EXPECT_EQ(ct_device_memory_take(rig.device, rig.contexts[0], ct_device_memory_free(rig.device) + 1),
              CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(ct_device_memory_take(rig.device, rig.contexts[0], 1 << 20), CT_DEVICE_OK);
    EXPECT_EQ(ct_device_memory_give(rig.device, rig.contexts[1], 1), CT_DEVICE_INVALID);
    launch(&rig, 0, rig.streams[0], 1, 1000000);
    EXPECT_EQ(ct_device_event_create(rig.device, rig.contexts[0], &event), CT_DEVICE_OK);
    ct_device_event_record(rig.device, 0, rig.streams[0], event, 0, NULL);
    ct_device_event_wait(rig.device, 0, rig.streams[1], event, 0, NULL);
    op = launch(&rig, 0, rig.streams[1], 1, 300);
    EXPECT_EQ(ct_device_client_kill(rig.device, 400, rig.clients[0]), CT_DEVICE_OK);
    EXPECT_EQ(ct_device_project_op(rig.device, op), 700); /* released, with no state to be saved: no switch */
    EXPECT_EQ(ct_device_memory_free(rig.device), ct_device_config(rig.device)->memory_bytes);
    EXPECT_EQ(ct_device_event_query(rig.device, event), CT_DEVICE_STALE);
    EXPECT_EQ(ct_device_stream_query(rig.device, rig.streams[0]), CT_DEVICE_STALE);
    EXPECT_EQ(ct_device_client_kill(rig.device, 400, rig.clients[0]), CT_DEVICE_STALE);
    EXPECT(ct_device_check(rig.device) == NULL);
    free(rig.memory);
}

static void late_calls_are_clamped_and_counted(void)
{
    struct rig rig = open_rig(1, 1000, 0, CT_GROUP_OWN);
    struct ct_device_counters counters;
    ct_device_advance(rig.device, 1000);
    uint64_t op = launch(&rig, 400, rig.streams[0], 1, 10);
    EXPECT_EQ(ct_device_project_op(rig.device, op), 1010);
    ct_device_count(rig.device, &counters);
    EXPECT_EQ(counters.late_calls, 1);
    free(rig.memory);
}

/* A long grid among short ones of higher priority is divided into many chunks; merging limits their number. */
static void merging_limits_the_number_of_chunks(void)
{
    struct rig rig = open_rig(80, 1000000000, 0, 7);
    uint32_t urgent;
    struct ct_device_counters counters;
    ct_device_stream_create(rig.device, 0, rig.contexts[1], CT_STREAM_NONBLOCKING, -2, &urgent);
    uint64_t op = launch(&rig, 0, rig.streams[0], 80 * 500, 1000);
    for (uint64_t now_ns = 500; now_ns < 400000; now_ns += 1730) {
        launch(&rig, now_ns, urgent, 1 + now_ns % 7, 100 + now_ns * 7 % 890);
        EXPECT(ct_device_check(rig.device) == NULL);
    }
    uint64_t end_ns = ct_device_project_op(rig.device, op);
    EXPECT(end_ns >= 500000 && end_ns <= 520000);
    ct_device_advance(rig.device, end_ns);
    EXPECT_EQ(ct_device_op_query(rig.device, op), CT_DEVICE_OK);
    ct_device_count(rig.device, &counters);
    EXPECT(counters.merged_chunks > 0);
    free(rig.memory);
}

/* Projections in limited steps arrive at the same result. */
static void limited_projections_arrive_at_the_same_result(void)
{
    struct rig rig = open_rig(1, 1000, 10, CT_GROUP_OWN);
    uint64_t a = launch(&rig, 0, rig.streams[0], 1, 1000000);
    uint64_t instant_ns = 0, before_ns = 0;
    int queries = 0;
    launch(&rig, 0, rig.streams[1], 1, 1000000);
    while (ct_device_project_within(rig.device, a, 100, &instant_ns) == CT_DEVICE_NOT_READY) {
        EXPECT(instant_ns > before_ns);
        before_ns = instant_ns;
        queries++;
    }
    EXPECT_EQ(queries, 39); /* 1,999 slices and 1,998 switches, 100 of them at a time */
    EXPECT_EQ(instant_ns, ct_device_project_op(rig.device, a));
    EXPECT_EQ(instant_ns, 1999 * 1000 + 1998 * 10);
    free(rig.memory);
}

/* Records that are not drained are numbered, and the oldest are overwritten first; switches of a client are
 * recorded. */
static void records_can_be_read_without_removing_them(void)
{
    struct rig rig = open_rig(1, 1000, 10, CT_GROUP_OWN);
    const struct ct_device_record *records;
    uint64_t number = 99;
    EXPECT_EQ(ct_device_records(rig.device, 5, &records, &number), 0);
    EXPECT_EQ(number, 0);
    ct_device_record_kinds(rig.device, 1u << CT_OP_KERNEL | CT_RECORD_TURNS);
    uint64_t a = launch(&rig, 0, rig.streams[0], 1, 1500), b = launch(&rig, 100, rig.streams[1], 1, 1200);
    ct_device_advance(rig.device, 10000);
    const struct {
        uint64_t op, at_ns;
        int client, what;
    } expected[] = {{0, 1000, 0, CT_RECORD_OFF}, {0, 2010, 1, CT_RECORD_OFF}, {0, 2020, 0, CT_RECORD_ON},
                    {a, 2520, 0, CT_RECORD_DONE}, {0, 2530, 1, CT_RECORD_ON}, {b, 2730, 1, CT_RECORD_DONE}};
    EXPECT_EQ(ct_device_records(rig.device, 0, &records, &number), 6);
    for (int i = 0; i < 6; i++) {
        EXPECT_EQ(records[i].op, expected[i].op);
        EXPECT_EQ(records[i].end_ns, expected[i].at_ns);
        EXPECT_EQ(records[i].client, rig.clients[expected[i].client]);
        EXPECT_EQ(records[i].what, expected[i].what);
    }
    for (uint64_t i = 0; i < 200; i++)
        launch(&rig, 20000 + 10 * i, rig.streams[0], 1, 5);
    ct_device_advance(rig.device, 30000);
    size_t first = ct_device_records(rig.device, 0, &records, &number);
    EXPECT_EQ(number, 206 - 128);
    EXPECT_EQ(records[0].submit_ns, 20000 + 10 * (number - 6));
    EXPECT_EQ(ct_device_records(rig.device, number + first, &records, &number), 128 - first);
    EXPECT_EQ(ct_device_records(rig.device, 206, &records, &number), 0);
    EXPECT_EQ(number, 206);
    free(rig.memory);
}

static uint64_t launch_limited(struct rig *rig, uint32_t stream, uint64_t blocks, uint64_t block_ns, uint32_t sm_cap)
{
    struct ct_kernel kernel = {.blocks = blocks, .block_ns = block_ns, .threads_per_block = 256, .blocks_per_sm = 1,
                               .sm_cap = sm_cap};
    uint64_t op;
    EXPECT_EQ(ct_device_launch(rig->device, 0, stream, &kernel, 0, &op), CT_DEVICE_OK);
    return op;
}

/* Four SMs. Another stream and another client use the SMs that a limited kernel leaves. */
static void kernels_keep_the_limit_of_their_launch(void)
{
    struct rig rig = open_rig(4, 1000, 10, 7);
    struct ct_kernel wide = {.blocks = 1, .block_ns = 1, .threads_per_block = 32, .sm_cap = 5};
    uint64_t one = launch_limited(&rig, rig.streams[0], 4, 100, 1);
    uint64_t two = launch_limited(&rig, rig.streams[0], 4, 100, 2);
    uint64_t all = launch_limited(&rig, rig.streams[0], 4, 100, 4);
    uint64_t other = launch(&rig, 0, rig.streams[1], 6, 100);
    EXPECT_EQ(ct_device_launch(rig.device, 0, rig.streams[0], &wide, 0, NULL), CT_DEVICE_INVALID);
    EXPECT_EQ(ct_device_project_op(rig.device, other), 200);
    EXPECT_EQ(ct_device_project_op(rig.device, one), 400);
    EXPECT_EQ(ct_device_project_op(rig.device, two), 600);
    EXPECT_EQ(ct_device_project_op(rig.device, all), 700);
    ct_device_advance(rig.device, 1000);
    EXPECT_EQ(record_of(&rig, other).delayed_ns, 25); /* for 100 ns it has three SMs instead of four */
    EXPECT_EQ(record_of(&rig, one).delayed_ns, 0);
    struct ct_device_counters counters;
    EXPECT_EQ(ct_device_count_client(rig.device, rig.clients[0], &counters), CT_DEVICE_OK);
    EXPECT_EQ(counters.sm_ns, 3 * 400);
    EXPECT_EQ(counters.busy_ns, 700);
    free(rig.memory);
}

static void limited_kernels_of_a_client_share_the_sms_of_the_largest_limit(void)
{
    struct rig rig = open_rig(4, 1000, 10, 7);
    uint32_t second, third;
    EXPECT_EQ(ct_device_stream_create(rig.device, 0, rig.contexts[0], CT_STREAM_NONBLOCKING, 0, &second), CT_DEVICE_OK);
    EXPECT_EQ(ct_device_stream_create(rig.device, 0, rig.contexts[0], CT_STREAM_NONBLOCKING, 0, &third), CT_DEVICE_OK);
    uint64_t one = launch_limited(&rig, rig.streams[0], 2, 300, 1);
    uint64_t three = launch_limited(&rig, second, 6, 100, 3); /* two blocks next to that one */
    uint64_t free_one = launch_limited(&rig, third, 3, 100, 0);
    uint64_t of_another = launch_limited(&rig, rig.streams[1], 1, 50, 2);
    EXPECT_EQ(ct_device_project_op(rig.device, one), 600); /* its second block gets the slot of the first */
    EXPECT_EQ(ct_device_project_op(rig.device, three), 300);
    EXPECT_EQ(ct_device_project_op(rig.device, free_one), 300); /* in the fourth SM, one block after the other */
    EXPECT_EQ(ct_device_project_op(rig.device, of_another), 350);
    ct_device_advance(rig.device, 150);
    EXPECT(ct_device_check(rig.device) == NULL);
    free(rig.memory);
}

int main(void)
{
    records_can_be_read_without_removing_them();
    occupancy_follows_the_scarcest_resource();
    time_slices_freeze_running_blocks();
    clients_of_one_group_wait_only_for_blocks();
    copies_queue_by_direction();
    copies_within_the_device_use_its_bandwidth();
    host_function_blocks_its_stream_until_reported();
    killed_client_frees_everything_at_once();
    late_calls_are_clamped_and_counted();
    merging_limits_the_number_of_chunks();
    limited_projections_arrive_at_the_same_result();
    kernels_keep_the_limit_of_their_launch();
    limited_kernels_of_a_client_share_the_sms_of_the_largest_limit();
    return 0;
}
