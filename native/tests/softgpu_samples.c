/* Tests of samples: they are the same however often the counters are read. */
#include "softgpu_server.h"

#define SECOND_NS UINT64_C(1000000000)

static struct sg_server *make_server(void)
{
    const struct ct_device_limits limits = {
        .clients = 4, .contexts = 8, .streams = 8, .events = 8, .ops = 64, .records = 1};
    struct sg_server *server = calloc(1, sizeof *server);
    size_t bytes = ct_device_bytes(&limits);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    EXPECT(server && memory);
    EXPECT_EQ(ct_device_init(memory, bytes, ct_device_preset("v100"), &limits, SECOND_NS, &server->device),
              CT_DEVICE_OK);
    sg_sample_start(server);
    return server;
}

static void free_server(struct sg_server *server)
{
    for (int i = 0; i < SG_CONNECTIONS; i++)
        free(server->clients[i]);
    free(server->device);
    free(server);
}

/* Add a client with a context and a stream, without a socket. */
static uint32_t add_client(struct sg_server *server, int index, uint64_t now_ns)
{
    struct sg_client *client = server->clients[index] = calloc(1, sizeof *client);
    uint32_t context, stream;
    sg_sample_until(server, now_ns);
    EXPECT_EQ(ct_device_client_add(server->device, now_ns, CT_GROUP_OWN, &client->model), CT_DEVICE_OK);
    client->is_registered = 1;
    client->pid = 1000 + index;
    sg_sample_join(server, client);
    EXPECT_EQ(ct_device_context_create(server->device, now_ns, client->model, 0, &context), CT_DEVICE_OK);
    EXPECT_EQ(ct_device_stream_create(server->device, now_ns, context, CT_STREAM_LEGACY, 0, &stream), CT_DEVICE_OK);
    sg_own(server->contexts, context, index);
    return stream;
}

static void launch(struct sg_server *server, uint64_t at_ns, uint32_t stream, uint64_t block_ns)
{
    const struct ct_kernel kernel = {.blocks = 40, .block_ns = block_ns, .bytes_per_block = 1 << 20,
                                     .threads_per_block = 256, .registers_per_thread = 32, .blocks_per_sm = 1};
    sg_sample_until(server, at_ns);
    EXPECT_EQ(ct_device_launch(server->device, at_ns, stream, &kernel, 0, NULL), CT_DEVICE_OK);
}

static struct sg_observation *observe(struct sg_server *server, uint64_t now_ns, uint64_t since_ns)
{
    static struct sg_observation observation;
    memset(&observation, 0, sizeof observation);
    sg_sample_until(server, now_ns);
    ct_device_advance(server->device, now_ns);
    sg_observe(server, since_ns, &observation);
    return &observation;
}

/* Run work that starts and ends within periods and read the counters every `step_ns`. */
static void run_workload(struct sg_server *server, uint64_t step_ns, struct sg_observation *result)
{
    uint32_t stream = add_client(server, 0, SECOND_NS);
    uint64_t next_observe_ns = SECOND_NS;
    for (int i = 0; i < 20; i++) {
        uint64_t at_ns = SECOND_NS + (uint64_t)i * 100000007;
        for (; next_observe_ns < at_ns; next_observe_ns += step_ns)
            observe(server, next_observe_ns, 0);
        launch(server, at_ns, stream, 40000003);
    }
    *result = *observe(server, 4 * SECOND_NS, 0);
}

static void check_observation_rate(void)
{
    static struct sg_observation frequent, rare;
    struct sg_server *first = make_server(), *second = make_server();
    run_workload(first, 1000003, &frequent);
    run_workload(second, UINT64_MAX / 2, &rare);
    EXPECT_EQ(frequent.sample_count, rare.sample_count);
    EXPECT_EQ(frequent.sample_count, 3 * SECOND_NS / SG_SAMPLE_NS);
    for (uint32_t i = 0; i <= frequent.sample_count; i++) {
        const struct sg_sample *a = &frequent.samples[i], *b = &rare.samples[i];
        EXPECT_EQ(a->at_ns, SECOND_NS + i * SG_SAMPLE_NS);
        EXPECT(a->at_ns == b->at_ns && a->busy_ns == b->busy_ns && a->sm_ns == b->sm_ns &&
               a->energy_uj == b->energy_uj && a->traffic_bytes == b->traffic_bytes &&
               a->temperature_mc == b->temperature_mc);
    }
    EXPECT_EQ(frequent.now.busy_ns, 20 * UINT64_C(40000003));
    EXPECT_EQ(frequent.now.sm_ns, 40 * frequent.now.busy_ns);
    EXPECT_EQ(frequent.clients[0].busy_ns, frequent.samples[frequent.sample_count].busy_ns);
    EXPECT_EQ(frequent.clients[0].window_ns, frequent.sample_count * SG_SAMPLE_NS);
    EXPECT(frequent.client_count == 1 && frequent.clients[0].contexts == 1 && frequent.clients[0].pid == 1000);
    free_server(first);
    free_server(second);
}

/* After hours of idle time, only the kept boundaries are sampled and no use is lost. */
static void check_long_idle(void)
{
    struct sg_server *server = make_server();
    launch(server, SECOND_NS, add_client(server, 0, SECOND_NS), 7 * SECOND_NS);
    uint64_t late_ns = 10000 * SECOND_NS;
    const struct sg_observation *observation = observe(server, late_ns, 0);
    EXPECT_EQ(observation->sample_count, SG_SAMPLES_KEPT);
    EXPECT(server->history.count <= SG_SAMPLES_KEPT + 2);
    EXPECT_EQ(observation->samples[0].busy_ns, 7 * SECOND_NS);
    EXPECT(late_ns - observation->samples[SG_SAMPLES_KEPT].at_ns < SG_SAMPLE_NS);
    for (uint32_t i = 1; i <= observation->sample_count; i++)
        EXPECT_EQ(observation->samples[i].at_ns - observation->samples[i - 1].at_ns, SG_SAMPLE_NS);
    /* A reader that has seen all samples receives none. */
    uint64_t last_ns = observation->samples[SG_SAMPLES_KEPT].at_ns;
    EXPECT_EQ(observe(server, late_ns, last_ns)->sample_count, 0);
    EXPECT_EQ(observe(server, late_ns, last_ns - 1)->sample_count, 1);
    EXPECT_EQ(observe(server, late_ns, SG_LATEST_PERIOD)->sample_count, 1);
    free_server(server);
}

/* A client is not charged for the time before it connected. */
static void check_late_client(void)
{
    struct sg_server *server = make_server();
    uint32_t first = add_client(server, 0, SECOND_NS);
    launch(server, SECOND_NS, first, SECOND_NS / 2);
    uint32_t second = add_client(server, 1, 3 * SECOND_NS);
    launch(server, 3 * SECOND_NS, second, SECOND_NS / 10);
    const struct sg_observation *observation = observe(server, 4 * SECOND_NS, 0);
    EXPECT_EQ(observation->client_count, 2);
    EXPECT_EQ(observation->clients[0].busy_ns, SECOND_NS / 2);
    EXPECT_EQ(observation->clients[1].busy_ns, SECOND_NS / 10);
    EXPECT(observation->clients[1].window_ns < 2 * SECOND_NS && observation->clients[0].window_ns > 2 * SECOND_NS);
    EXPECT_EQ(observe(server, 4 * SECOND_NS, 3 * SECOND_NS)->clients[0].busy_ns, 0);
    free_server(server);
}

int main(void)
{
    check_observation_rate();
    check_long_idle();
    check_late_client();
    return 0;
}
