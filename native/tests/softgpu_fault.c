/* Tests of faults in the device server: affected and unaffected clients, their state afterwards, and invalid
 * requests. */
#include "softgpu_server.h"

#include "softgpu/abi/cuda.h"

static const struct ct_kernel LONG_KERNEL = {.blocks = 1, .block_ns = UINT64_C(3000000000), .threads_per_block = 32};

/* ---- Groups: a server without a socket and three clients --------------------------------------------------------- */

struct fixture {
    struct sg_server *server;
    uint32_t contexts[3], streams[3];
};

static void add_client(struct fixture *fixture, int index, uint32_t group)
{
    struct sg_server *server = fixture->server;
    struct sg_client *client = calloc(1, sizeof *client);
    int descriptor;
    client->socket = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    client->pidfd = -1;
    client->is_registered = 1;
    client->group = group;
    client->ring = sg_map_shared(&descriptor, sizeof *client->ring, "test-ring");
    close(descriptor);
    server->clients[index] = client;
    EXPECT_EQ(ct_device_client_add(server->device, sg_now_ns(), group ? group : CT_GROUP_OWN, &client->model),
              CT_DEVICE_OK);
    EXPECT_EQ(ct_device_context_create(server->device, sg_now_ns(), client->model, 0, &fixture->contexts[index]),
              CT_DEVICE_OK);
    EXPECT_EQ(ct_device_stream_create(server->device, sg_now_ns(), fixture->contexts[index], CT_STREAM_BLOCKING, 0,
                                      &fixture->streams[index]),
              CT_DEVICE_OK);
    sg_own(server->contexts, fixture->contexts[index], index);
    sg_own(server->streams, fixture->streams[index], index);
    EXPECT_EQ(ct_device_memory_take(server->device, fixture->contexts[index], 1000), CT_DEVICE_OK);
}

static void publish(struct fixture *fixture, int index, const struct ct_kernel *kernel)
{
    struct sg_ring *ring = fixture->server->clients[index]->ring;
    uint64_t tail = atomic_load(&ring->tail);
    ring->slots[tail % SG_RING_SLOTS] = (struct sg_slot){
        .at_ns = sg_now_ns(), .kind = SG_SLOT_KERNEL, .stream = fixture->streams[index], .kernel = *kernel};
    atomic_store(&ring->tail, tail + 1);
}

/* Clients 0 and 1 are in a group, client 2 is in none. */
static void make_fixture(struct fixture *fixture, const char *preset)
{
    const struct ct_device_limits limits = {SG_CLIENTS, 64, 64, 64, 4096, 1};
    size_t bytes = ct_device_bytes(&limits);
    struct sg_server *server = mmap(NULL, sizeof *server, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_EQ(ct_device_init(memory, bytes, ct_device_preset(preset), &limits, sg_now_ns(), &server->device),
              CT_DEVICE_OK);
    server->bulletin = sg_map_shared(&server->bulletin_fd, sizeof *server->bulletin, "test-bulletin");
    fixture->server = server;
    add_client(fixture, 0, 7);
    add_client(fixture, 1, 7);
    add_client(fixture, 2, 0);
}

static void drop_client(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    sg_fault_death(server, index);
    server->clients[index] = NULL;
    EXPECT_EQ(ct_device_client_kill(server->device, sg_now_ns(), client->model), CT_DEVICE_OK);
    munmap(client->ring, sizeof *client->ring);
    close(client->socket);
    free(client);
}

static uint32_t fault_of(const struct fixture *fixture, int index)
{
    const struct sg_client *client = fixture->server->clients[index];
    EXPECT_EQ(atomic_load(&client->ring->fault), client->fault.code);
    return client->fault.code;
}

static void close_fixture(struct fixture *fixture)
{
    EXPECT(ct_device_check(fixture->server->device) == NULL);
    for (int i = 0; i < 3; i++)
        if (fixture->server->clients[i])
            drop_client(fixture->server, i);
    EXPECT_EQ(ct_device_memory_free(fixture->server->device), ct_device_config(fixture->server->device)->memory_bytes);
    munmap(fixture->server->bulletin, sizeof *fixture->server->bulletin);
    close(fixture->server->bulletin_fd);
    munmap(fixture->server, sizeof *fixture->server);
}

static void fault_affects_only_its_group(void)
{
    struct fixture fixture;
    struct ct_device_counters counters;
    make_fixture(&fixture, "v100");
    for (int i = 0; i < 3; i++)
        publish(&fixture, i, &LONG_KERNEL);
    sg_fault(fixture.server, 0, CUDA_ERROR_ILLEGAL_ADDRESS, 31);
    EXPECT_EQ(fault_of(&fixture, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(fault_of(&fixture, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(fault_of(&fixture, 2), 0);
    EXPECT_EQ(fixture.server->faults.xid_count, 1);
    /* Work of the affected clients is cancelled but their memory stays; work of the other client continues. */
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(ct_device_stream_query(fixture.server->device, fixture.streams[i]),
                  i < 2 ? CT_DEVICE_OK : CT_DEVICE_NOT_READY);
        EXPECT_EQ(ct_device_count_client(fixture.server->device, fixture.server->clients[i]->model, &counters),
                  CT_DEVICE_OK);
        EXPECT_EQ(counters.memory_bytes, 1000);
    }
    /* Later launches are taken from the ring and discarded. */
    publish(&fixture, 1, &LONG_KERNEL);
    sg_pump(fixture.server, sg_now_ns());
    EXPECT_EQ(atomic_load(&fixture.server->clients[1]->ring->head), 2);
    EXPECT_EQ(ct_device_stream_query(fixture.server->device, fixture.streams[1]), CT_DEVICE_OK);
    /* A second fault changes nothing. */
    sg_fault(fixture.server, 1, CUDA_ERROR_LAUNCH_FAILED, 13);
    EXPECT_EQ(fault_of(&fixture, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(fixture.server->faults.xid_count, 1);
    /* The group refuses new clients until the last affected one has left. */
    EXPECT_EQ(sg_context_refused(fixture.server, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(sg_context_refused(fixture.server, 2), 0);
    EXPECT(sg_group_refuses(fixture.server, 7) && !sg_group_refuses(fixture.server, 0));
    drop_client(fixture.server, 0);
    EXPECT(sg_group_refuses(fixture.server, 7));
    add_client(&fixture, 0, 7);
    EXPECT_EQ(sg_context_refused(fixture.server, 0), CUDA_ERROR_MPS_SERVER_NOT_READY);
    drop_client(fixture.server, 1);
    EXPECT(!sg_group_refuses(fixture.server, 7));
    EXPECT_EQ(sg_context_refused(fixture.server, 0), 0);
    close_fixture(&fixture);
}

static void death_affects_the_group_only_with_work_in_flight(void)
{
    for (int round = 0; round < 3; round++) {
        struct fixture fixture;
        int busy = round > 0, is_isolated = round == 2;
        make_fixture(&fixture, "v100");
        fixture.server->faults.is_death_isolated = (uint32_t)is_isolated;
        if (busy)
            publish(&fixture, 0, &LONG_KERNEL);
        drop_client(fixture.server, 0);
        EXPECT_EQ(fault_of(&fixture, 1), busy && !is_isolated ? CUDA_ERROR_LAUNCH_FAILED : 0);
        EXPECT_EQ(fault_of(&fixture, 2), 0);
        EXPECT_EQ(fixture.server->faults.xid_count, busy && !is_isolated);
        close_fixture(&fixture);
    }
}

static int answer_request(struct fixture *fixture, uint32_t kind, uint64_t a, uint64_t b, uint64_t c,
                          struct sg_reply *reply)
{
    struct sg_request request = {kind, 0, a, b, c};
    *reply = (struct sg_reply){0};
    return sg_fault_answer(fixture->server, 2, &request, reply);
}

static void hang_blocks_its_kernel_until_cleared_or_timed_out(void)
{
    struct fixture fixture;
    struct sg_reply reply;
    const struct ct_kernel short_kernel = {.blocks = 1, .block_ns = 1, .threads_per_block = 32};
    make_fixture(&fixture, "v100");
    EXPECT_EQ(answer_request(&fixture, SG_FAULT, SG_FAULT_HANG, (uint64_t)SG_FAULT_SELF | UINT64_C(2) << 32, 0, &reply),
              CT_DEVICE_OK);
    EXPECT_EQ(reply.a, 1);
    publish(&fixture, 2, &short_kernel);
    sg_pump(fixture.server, sg_now_ns());
    ct_device_advance(fixture.server->device, sg_now_ns() + 1000);
    /* The fault is set for the second launch. */
    EXPECT_EQ(ct_device_stream_query(fixture.server->device, fixture.streams[2]), CT_DEVICE_OK);
    publish(&fixture, 2, &short_kernel);
    sg_pump(fixture.server, sg_now_ns() + 2000);
    ct_device_advance(fixture.server->device, sg_now_ns() + 1000000);
    EXPECT_EQ(ct_device_stream_query(fixture.server->device, fixture.streams[2]), CT_DEVICE_NOT_READY);
    EXPECT_EQ(answer_request(&fixture, SG_FAULT, SG_FAULT_CLEAR, SG_FAULT_SELF, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(ct_device_stream_query(fixture.server->device, fixture.streams[2]), CT_DEVICE_OK);
    EXPECT_EQ(fault_of(&fixture, 2), 0);
    /* The next hang times out. */
    EXPECT_EQ(answer_request(&fixture, SG_FAULT, SG_FAULT_HANG, SG_FAULT_SELF, 1, &reply), CT_DEVICE_OK);
    EXPECT_EQ(sg_fault_due_ns(fixture.server), CT_DEVICE_NEVER);
    publish(&fixture, 2, &short_kernel);
    sg_pump(fixture.server, sg_now_ns());
    EXPECT(sg_fault_due_ns(fixture.server) != CT_DEVICE_NEVER);
    sg_fault_tick(fixture.server, sg_fault_due_ns(fixture.server));
    EXPECT_EQ(fault_of(&fixture, 2), CUDA_ERROR_LAUNCH_TIMEOUT);
    EXPECT_EQ(sg_fault_due_ns(fixture.server), CT_DEVICE_NEVER);
    EXPECT_EQ(fault_of(&fixture, 0), 0);
    close_fixture(&fixture);
}

static void xids_are_reported_in_order_and_the_oldest_dropped(void)
{
    struct fixture fixture;
    struct sg_reply reply;
    make_fixture(&fixture, "a100");
    EXPECT_EQ(answer_request(&fixture, SG_XID_NEXT, 0, 0, 0, &reply), CT_DEVICE_NOT_READY);
    EXPECT_EQ(answer_request(&fixture, SG_FAULT, SG_FAULT_ECC, 0, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(reply.a, 3);
    const uint64_t expected[] = {48, 63, 95};
    for (uint64_t i = 0; i < 3; i++) {
        EXPECT_EQ(answer_request(&fixture, SG_XID_NEXT, i, 0, 0, &reply), CT_DEVICE_OK);
        EXPECT_EQ(reply.a, expected[i]);
        EXPECT_EQ(reply.b, i + 1);
    }
    EXPECT_EQ(answer_request(&fixture, SG_XID_NEXT, 3, 0, 0, &reply), CT_DEVICE_NOT_READY);
    EXPECT_EQ(answer_request(&fixture, SG_XID_NEXT, UINT64_MAX, 0, 0, &reply), CT_DEVICE_NOT_READY);
    EXPECT_EQ(atomic_load(&fixture.server->bulletin->xids), 3);
    for (uint32_t i = 0; i < 2 * SG_XIDS; i++)
        sg_xid_add(fixture.server, 1000 + i, 0, "filler");
    EXPECT_EQ(answer_request(&fixture, SG_XID_NEXT, 1, 0, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(reply.b, 3 + 2 * SG_XIDS - SG_XIDS + 1);
    size_t length = sg_report(fixture.server, fixture.server->report, sizeof fixture.server->report);
    EXPECT(length < sizeof fixture.server->report - 1 && strstr(fixture.server->report, "\"xid\":1127"));
    close_fixture(&fixture);
}

static void clock_reset_and_device_loss_affect_all_clients(void)
{
    struct fixture fixture;
    struct sg_reply reply;
    make_fixture(&fixture, "t4");
    EXPECT_EQ(answer_request(&fixture, SG_CLOCK, CT_DEVICE_FULL_SPEED / 2, 1, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(reply.a, CT_DEVICE_FULL_SPEED);
    EXPECT_EQ(ct_device_speed(fixture.server->device), CT_DEVICE_FULL_SPEED / 2);
    sg_fault_tick(fixture.server, sg_fault_due_ns(fixture.server));
    EXPECT_EQ(ct_device_speed(fixture.server->device), CT_DEVICE_FULL_SPEED);
    EXPECT_EQ(answer_request(&fixture, SG_CLOCK, 0, 0, 0, &reply), CT_DEVICE_INVALID);
    EXPECT_EQ(answer_request(&fixture, SG_CLOCK, UINT64_MAX, 0, 0, &reply), CT_DEVICE_INVALID);
    /* Contained ECC errors exist from compute capability 8 on; an assert ends with the context. */
    EXPECT_EQ(answer_request(&fixture, SG_FAULT, SG_FAULT_ECC_CONTAINED, SG_FAULT_SELF, 0, &reply), CT_DEVICE_INVALID);
    EXPECT_EQ(answer_request(&fixture, SG_FAULT, SG_FAULT_ASSERT, SG_FAULT_SELF, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(fault_of(&fixture, 2), CUDA_ERROR_ASSERT);
    sg_fault_reset_client(fixture.server, 2);
    EXPECT_EQ(fault_of(&fixture, 2), CUDA_ERROR_ASSERT);
    EXPECT_EQ(ct_device_context_destroy(fixture.server->device, sg_now_ns(), fixture.contexts[2]), CT_DEVICE_OK);
    sg_fault_reset_client(fixture.server, 2);
    EXPECT_EQ(fault_of(&fixture, 2), 0);
    EXPECT_EQ(answer_request(&fixture, SG_FAULT, SG_FAULT_MPS_SERVER_DEATH, SG_FAULT_ALL, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(reply.a, 2);
    EXPECT_EQ(fault_of(&fixture, 0), CUDA_ERROR_MPS_RPC_FAILURE);
    EXPECT_EQ(answer_request(&fixture, SG_FAULT, SG_FAULT_DEVICE_LOST, 0, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(reply.a, 1);
    EXPECT_EQ(fault_of(&fixture, 2), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(answer_request(&fixture, SG_FAULT, SG_FAULT_RESET, 0, 0, &reply), CT_DEVICE_NOT_READY);
    EXPECT_EQ(reply.a, 3);
    struct sg_server *server = fixture.server;
    for (int i = 0; i < 3; i++)
        drop_client(server, i);
    EXPECT_EQ(answer_request(&fixture, SG_FAULT, SG_FAULT_RESET, 0, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(server->faults.lost, 0);
    close_fixture(&fixture);
}

/* ---- Over the socket: requests without a ring -------------------------------------------------------------------- */

static struct sg_reply call(int fd, uint32_t kind, uint64_t a, uint64_t b, uint64_t c)
{
    struct sg_request request = {kind, 0, a, b, c};
    struct sg_reply reply;
    EXPECT(send(fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recv(fd, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    return reply;
}

static void invalid_requests_affect_no_other_client(void)
{
    struct test_server server;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    test_server_start(&server, "t4");
    struct test_client victim = test_client_open(server.path);
    int connection = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, server.path);
    EXPECT(connect(connection, (struct sockaddr *)&address, sizeof address) == 0);
    EXPECT_EQ(call(connection, SG_FAULT, 0, 0, 0).result, CT_DEVICE_INVALID);
    EXPECT_EQ(call(connection, SG_FAULT, 99, 0, 0).result, CT_DEVICE_INVALID);
    EXPECT_EQ(call(connection, SG_FAULT, UINT64_MAX, UINT64_MAX, UINT64_MAX).result, CT_DEVICE_INVALID);
    EXPECT_EQ(call(connection, SG_FAULT, SG_FAULT_HANG, SG_FAULT_ALL, UINT64_MAX).result, CT_DEVICE_INVALID);
    EXPECT_EQ(call(connection, SG_FAULT, SG_FAULT_ECC, 5, 0).result, CT_DEVICE_INVALID);
    EXPECT_EQ(call(connection, SG_FAULT, SG_FAULT_ILLEGAL_ADDRESS, 999999999, 0).result, CT_DEVICE_STALE);
    EXPECT_EQ(call(connection, SG_FAULT, SG_FAULT_ILLEGAL_ADDRESS, SG_FAULT_SELF, 0).result, CT_DEVICE_STALE);
    EXPECT_EQ(atomic_load(&victim.ring->fault), 0);
    /* A client that writes a fault to its own ring, or removes it, only deceives itself. */
    uint32_t wake = atomic_load(&victim.ring->wake);
    EXPECT_EQ(call(connection, SG_FAULT, SG_FAULT_LAUNCH_TIMEOUT, (uint64_t)getpid(), 0).a, 1);
    EXPECT_EQ(atomic_load(&victim.ring->fault), CUDA_ERROR_LAUNCH_TIMEOUT);
    EXPECT(atomic_load(&victim.ring->wake) != wake);
    atomic_store(&victim.ring->fault, 0);
    struct sg_reply reply = call(victim.socket, SG_CONTEXT_CREATE, 0, 0, 0);
    EXPECT_EQ(reply.result, SG_REFUSED);
    EXPECT_EQ(reply.a, CUDA_ERROR_LAUNCH_TIMEOUT);
    struct test_client later = test_client_open(server.path);
    EXPECT_EQ(call(later.socket, SG_CONTEXT_CREATE, 0, 0, 0).result, CT_DEVICE_OK);
    close(victim.socket);
    close(later.socket);
    close(connection);
    test_server_stop(&server);
}

int main(void)
{
    fault_affects_only_its_group();
    death_affects_the_group_only_with_work_in_flight();
    hang_blocks_its_kernel_until_cleared_or_timed_out();
    xids_are_reported_in_order_and_the_oldest_dropped();
    clock_reset_and_device_loss_affect_all_clients();
    invalid_requests_affect_no_other_client();
    return 0;
}
