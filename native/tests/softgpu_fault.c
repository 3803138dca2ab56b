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

static void add_client(struct fixture *made, int index, uint32_t group)
{
    struct sg_server *server = made->server;
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
    EXPECT_EQ(ct_device_context_create(server->device, sg_now_ns(), client->model, 0, &made->contexts[index]),
              CT_DEVICE_OK);
    EXPECT_EQ(ct_device_stream_create(server->device, sg_now_ns(), made->contexts[index], CT_STREAM_BLOCKING, 0,
                                      &made->streams[index]),
              CT_DEVICE_OK);
    sg_own(server->contexts, made->contexts[index], index);
    sg_own(server->streams, made->streams[index], index);
    EXPECT_EQ(ct_device_memory_take(server->device, made->contexts[index], 1000), CT_DEVICE_OK);
}

static void publish(struct fixture *made, int index, const struct ct_kernel *kernel)
{
    struct sg_ring *ring = made->server->clients[index]->ring;
    uint64_t tail = atomic_load(&ring->tail);
    ring->slots[tail % SG_RING_SLOTS] = (struct sg_slot){
        .at_ns = sg_now_ns(), .kind = SG_SLOT_KERNEL, .stream = made->streams[index], .kernel = *kernel};
    atomic_store(&ring->tail, tail + 1);
}

/* Clients 0 and 1 are in a group, client 2 is in none. */
static void make_fixture(struct fixture *made, const char *preset)
{
    const struct ct_device_limits limits = {SG_CLIENTS, 64, 64, 64, 4096, 1};
    size_t bytes = ct_device_bytes(&limits);
    struct sg_server *server = mmap(NULL, sizeof *server, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_EQ(ct_device_init(memory, bytes, ct_device_preset(preset), &limits, sg_now_ns(), &server->device),
              CT_DEVICE_OK);
    server->bulletin = sg_map_shared(&server->bulletin_fd, sizeof *server->bulletin, "test-bulletin");
    made->server = server;
    add_client(made, 0, 7);
    add_client(made, 1, 7);
    add_client(made, 2, 0);
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

static uint32_t fault_of(const struct fixture *made, int index)
{
    const struct sg_client *client = made->server->clients[index];
    EXPECT_EQ(atomic_load(&client->ring->fault), client->fault.code);
    return client->fault.code;
}

static void end_fixture(struct fixture *made)
{
    EXPECT(ct_device_check(made->server->device) == NULL);
    for (int i = 0; i < 3; i++)
        if (made->server->clients[i])
            drop_client(made->server, i);
    EXPECT_EQ(ct_device_memory_free(made->server->device), ct_device_config(made->server->device)->memory_bytes);
    munmap(made->server->bulletin, sizeof *made->server->bulletin);
    close(made->server->bulletin_fd);
    munmap(made->server, sizeof *made->server);
}

static void a_fault_reaches_only_its_group(void)
{
    struct fixture made;
    struct ct_device_counters counters;
    make_fixture(&made, "v100");
    for (int i = 0; i < 3; i++)
        publish(&made, i, &LONG_KERNEL);
    sg_fault(made.server, 0, CUDA_ERROR_ILLEGAL_ADDRESS, 31);
    EXPECT_EQ(fault_of(&made, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(fault_of(&made, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(fault_of(&made, 2), 0);
    EXPECT_EQ(made.server->faults.xid_count, 1);
    /* Work of the affected clients is cancelled but their memory stays; work of the other client continues. */
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(ct_device_stream_query(made.server->device, made.streams[i]),
                  i < 2 ? CT_DEVICE_OK : CT_DEVICE_NOT_READY);
        EXPECT_EQ(ct_device_count_client(made.server->device, made.server->clients[i]->model, &counters), CT_DEVICE_OK);
        EXPECT_EQ(counters.memory_bytes, 1000);
    }
    /* Later launches are taken from the ring and discarded. */
    publish(&made, 1, &LONG_KERNEL);
    sg_pump(made.server, sg_now_ns());
    EXPECT_EQ(atomic_load(&made.server->clients[1]->ring->head), 2);
    EXPECT_EQ(ct_device_stream_query(made.server->device, made.streams[1]), CT_DEVICE_OK);
    /* A second fault changes nothing. */
    sg_fault(made.server, 1, CUDA_ERROR_LAUNCH_FAILED, 13);
    EXPECT_EQ(fault_of(&made, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(made.server->faults.xid_count, 1);
    /* The group refuses new clients until the last affected one has left. */
    EXPECT_EQ(sg_context_refused(made.server, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(sg_context_refused(made.server, 2), 0);
    EXPECT(sg_group_refuses(made.server, 7) && !sg_group_refuses(made.server, 0));
    drop_client(made.server, 0);
    EXPECT(sg_group_refuses(made.server, 7));
    add_client(&made, 0, 7);
    EXPECT_EQ(sg_context_refused(made.server, 0), CUDA_ERROR_MPS_SERVER_NOT_READY);
    drop_client(made.server, 1);
    EXPECT(!sg_group_refuses(made.server, 7));
    EXPECT_EQ(sg_context_refused(made.server, 0), 0);
    end_fixture(&made);
}

static void a_death_harms_the_group_only_with_work_in_flight(void)
{
    for (int round = 0; round < 3; round++) {
        struct fixture made;
        int busy = round > 0, is_isolated = round == 2;
        make_fixture(&made, "v100");
        made.server->faults.is_death_isolated = (uint32_t)is_isolated;
        if (busy)
            publish(&made, 0, &LONG_KERNEL);
        drop_client(made.server, 0);
        EXPECT_EQ(fault_of(&made, 1), busy && !is_isolated ? CUDA_ERROR_LAUNCH_FAILED : 0);
        EXPECT_EQ(fault_of(&made, 2), 0);
        EXPECT_EQ(made.server->faults.xid_count, busy && !is_isolated);
        end_fixture(&made);
    }
}

static int ask_fixture(struct fixture *made, uint32_t kind, uint64_t a, uint64_t b, uint64_t c, struct sg_reply *reply)
{
    struct sg_request request = {kind, 0, a, b, c};
    *reply = (struct sg_reply){0};
    return sg_fault_answer(made->server, 2, &request, reply);
}

static void a_hang_holds_its_kernel_until_cleared_or_timed_out(void)
{
    struct fixture made;
    struct sg_reply reply;
    const struct ct_kernel short_kernel = {.blocks = 1, .block_ns = 1, .threads_per_block = 32};
    make_fixture(&made, "v100");
    EXPECT_EQ(ask_fixture(&made, SG_FAULT, SG_FAULT_HANG, (uint64_t)SG_FAULT_SELF | UINT64_C(2) << 32, 0, &reply),
              CT_DEVICE_OK);
    EXPECT_EQ(reply.a, 1);
    publish(&made, 2, &short_kernel);
    sg_pump(made.server, sg_now_ns());
    ct_device_advance(made.server->device, sg_now_ns() + 1000);
    /* The fault is set for the second launch. */
    EXPECT_EQ(ct_device_stream_query(made.server->device, made.streams[2]), CT_DEVICE_OK);
    publish(&made, 2, &short_kernel);
    sg_pump(made.server, sg_now_ns() + 2000);
    ct_device_advance(made.server->device, sg_now_ns() + 1000000);
    EXPECT_EQ(ct_device_stream_query(made.server->device, made.streams[2]), CT_DEVICE_NOT_READY);
    EXPECT_EQ(ask_fixture(&made, SG_FAULT, SG_FAULT_CLEAR, SG_FAULT_SELF, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(ct_device_stream_query(made.server->device, made.streams[2]), CT_DEVICE_OK);
    EXPECT_EQ(fault_of(&made, 2), 0);
    /* The next hang times out. */
    EXPECT_EQ(ask_fixture(&made, SG_FAULT, SG_FAULT_HANG, SG_FAULT_SELF, 1, &reply), CT_DEVICE_OK);
    EXPECT_EQ(sg_fault_due_ns(made.server), CT_DEVICE_NEVER);
    publish(&made, 2, &short_kernel);
    sg_pump(made.server, sg_now_ns());
    EXPECT(sg_fault_due_ns(made.server) != CT_DEVICE_NEVER);
    sg_fault_tick(made.server, sg_fault_due_ns(made.server));
    EXPECT_EQ(fault_of(&made, 2), CUDA_ERROR_LAUNCH_TIMEOUT);
    EXPECT_EQ(sg_fault_due_ns(made.server), CT_DEVICE_NEVER);
    EXPECT_EQ(fault_of(&made, 0), 0);
    end_fixture(&made);
}

static void xids_are_reported_in_order_and_the_oldest_dropped(void)
{
    struct fixture made;
    struct sg_reply reply;
    make_fixture(&made, "a100");
    EXPECT_EQ(ask_fixture(&made, SG_XID_NEXT, 0, 0, 0, &reply), CT_DEVICE_NOT_READY);
    EXPECT_EQ(ask_fixture(&made, SG_FAULT, SG_FAULT_ECC, 0, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(reply.a, 3);
    const uint64_t expected[] = {48, 63, 95};
    for (uint64_t i = 0; i < 3; i++) {
        EXPECT_EQ(ask_fixture(&made, SG_XID_NEXT, i, 0, 0, &reply), CT_DEVICE_OK);
        EXPECT_EQ(reply.a, expected[i]);
        EXPECT_EQ(reply.b, i + 1);
    }
    EXPECT_EQ(ask_fixture(&made, SG_XID_NEXT, 3, 0, 0, &reply), CT_DEVICE_NOT_READY);
    EXPECT_EQ(ask_fixture(&made, SG_XID_NEXT, UINT64_MAX, 0, 0, &reply), CT_DEVICE_NOT_READY);
    EXPECT_EQ(atomic_load(&made.server->bulletin->xids), 3);
    for (uint32_t i = 0; i < 2 * SG_XIDS; i++)
        sg_xid_add(made.server, 1000 + i, 0, "filler");
    EXPECT_EQ(ask_fixture(&made, SG_XID_NEXT, 1, 0, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(reply.b, 3 + 2 * SG_XIDS - SG_XIDS + 1);
    size_t length = sg_report(made.server, made.server->report, sizeof made.server->report);
    EXPECT(length < sizeof made.server->report - 1 && strstr(made.server->report, "\"xid\":1127"));
    end_fixture(&made);
}

static void device_wide_faults(void)
{
    struct fixture made;
    struct sg_reply reply;
    make_fixture(&made, "t4");
    EXPECT_EQ(ask_fixture(&made, SG_CLOCK, CT_DEVICE_FULL_SPEED / 2, 1, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(reply.a, CT_DEVICE_FULL_SPEED);
    EXPECT_EQ(ct_device_speed(made.server->device), CT_DEVICE_FULL_SPEED / 2);
    sg_fault_tick(made.server, sg_fault_due_ns(made.server));
    EXPECT_EQ(ct_device_speed(made.server->device), CT_DEVICE_FULL_SPEED);
    EXPECT_EQ(ask_fixture(&made, SG_CLOCK, 0, 0, 0, &reply), CT_DEVICE_INVALID);
    EXPECT_EQ(ask_fixture(&made, SG_CLOCK, UINT64_MAX, 0, 0, &reply), CT_DEVICE_INVALID);
    /* Contained ECC errors exist from compute capability 8 on; an assert ends with the context. */
    EXPECT_EQ(ask_fixture(&made, SG_FAULT, SG_FAULT_ECC_CONTAINED, SG_FAULT_SELF, 0, &reply), CT_DEVICE_INVALID);
    EXPECT_EQ(ask_fixture(&made, SG_FAULT, SG_FAULT_ASSERT, SG_FAULT_SELF, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(fault_of(&made, 2), CUDA_ERROR_ASSERT);
    sg_fault_reset_client(made.server, 2);
    EXPECT_EQ(fault_of(&made, 2), CUDA_ERROR_ASSERT);
    EXPECT_EQ(ct_device_context_destroy(made.server->device, sg_now_ns(), made.contexts[2]), CT_DEVICE_OK);
    sg_fault_reset_client(made.server, 2);
    EXPECT_EQ(fault_of(&made, 2), 0);
    EXPECT_EQ(ask_fixture(&made, SG_FAULT, SG_FAULT_MPS_SERVER_DEATH, SG_FAULT_ALL, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(reply.a, 2);
    EXPECT_EQ(fault_of(&made, 0), CUDA_ERROR_MPS_RPC_FAILURE);
    EXPECT_EQ(ask_fixture(&made, SG_FAULT, SG_FAULT_DEVICE_LOST, 0, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(reply.a, 1);
    EXPECT_EQ(fault_of(&made, 2), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(ask_fixture(&made, SG_FAULT, SG_FAULT_RESET, 0, 0, &reply), CT_DEVICE_NOT_READY);
    EXPECT_EQ(reply.a, 3);
    struct sg_server *server = made.server;
    for (int i = 0; i < 3; i++)
        drop_client(server, i);
    EXPECT_EQ(ask_fixture(&made, SG_FAULT, SG_FAULT_RESET, 0, 0, &reply), CT_DEVICE_OK);
    EXPECT_EQ(server->faults.lost, 0);
    end_fixture(&made);
}

/* ---- Over the socket: requests without a ring -------------------------------------------------------------------- */

static struct sg_reply ask(int fd, uint32_t kind, uint64_t a, uint64_t b, uint64_t c)
{
    struct sg_request request = {kind, 0, a, b, c};
    struct sg_reply reply;
    EXPECT(send(fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recv(fd, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    return reply;
}

static void hostile_requests_harm_only_their_target(void)
{
    struct test_server server;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    test_server_start(&server, "t4");
    struct test_client victim = test_client_open(server.path);
    int bare = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, server.path);
    EXPECT(connect(bare, (struct sockaddr *)&address, sizeof address) == 0);
    EXPECT_EQ(ask(bare, SG_FAULT, 0, 0, 0).result, CT_DEVICE_INVALID);
    EXPECT_EQ(ask(bare, SG_FAULT, 99, 0, 0).result, CT_DEVICE_INVALID);
    EXPECT_EQ(ask(bare, SG_FAULT, UINT64_MAX, UINT64_MAX, UINT64_MAX).result, CT_DEVICE_INVALID);
    EXPECT_EQ(ask(bare, SG_FAULT, SG_FAULT_HANG, SG_FAULT_ALL, UINT64_MAX).result, CT_DEVICE_INVALID);
    EXPECT_EQ(ask(bare, SG_FAULT, SG_FAULT_ECC, 5, 0).result, CT_DEVICE_INVALID);
    EXPECT_EQ(ask(bare, SG_FAULT, SG_FAULT_ILLEGAL_ADDRESS, 999999999, 0).result, CT_DEVICE_STALE);
    EXPECT_EQ(ask(bare, SG_FAULT, SG_FAULT_ILLEGAL_ADDRESS, SG_FAULT_SELF, 0).result, CT_DEVICE_STALE);
    EXPECT_EQ(atomic_load(&victim.ring->fault), 0);
    /* A client that writes a fault to its own ring, or removes it, only deceives itself. */
    uint32_t wake = atomic_load(&victim.ring->wake);
    EXPECT_EQ(ask(bare, SG_FAULT, SG_FAULT_LAUNCH_TIMEOUT, (uint64_t)getpid(), 0).a, 1);
    EXPECT_EQ(atomic_load(&victim.ring->fault), CUDA_ERROR_LAUNCH_TIMEOUT);
    EXPECT(atomic_load(&victim.ring->wake) != wake);
    atomic_store(&victim.ring->fault, 0);
    struct sg_reply reply = ask(victim.socket, SG_CONTEXT_CREATE, 0, 0, 0);
    EXPECT_EQ(reply.result, SG_REFUSED);
    EXPECT_EQ(reply.a, CUDA_ERROR_LAUNCH_TIMEOUT);
    struct test_client later = test_client_open(server.path);
    EXPECT_EQ(ask(later.socket, SG_CONTEXT_CREATE, 0, 0, 0).result, CT_DEVICE_OK);
    close(victim.socket);
    close(later.socket);
    close(bare);
    test_server_stop(&server);
}

int main(void)
{
    a_fault_reaches_only_its_group();
    a_death_harms_the_group_only_with_work_in_flight();
    a_hang_holds_its_kernel_until_cleared_or_timed_out();
    xids_are_reported_in_order_and_the_oldest_dropped();
    device_wide_faults();
    hostile_requests_harm_only_their_target();
    return 0;
}
