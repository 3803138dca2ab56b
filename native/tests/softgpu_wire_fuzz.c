/* Fuzz test of the protocol: a client that writes invalid data to its ring and its socket only affects itself. */
#include "softgpu_server.h"

static uint64_t state;

static uint64_t rng(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

struct client {
    int socket;
    struct sg_ring *ring;
    uint64_t contexts[4], streams[4], events[4];
};

/* Shared by all clients: what one shares, another may open. */
static uint64_t shares[4], tokens[4];

/* An MPS server. Half of the clients belong to it and have a memory limit. */
static int owner;
static uint64_t group;

static struct sg_reply call_owner(uint32_t kind, uint64_t a, uint64_t b)
{
    struct sg_request request = {kind, 0, a, b, 0};
    struct sg_reply reply;
    EXPECT(send(owner, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    do
        EXPECT(recv(owner, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    while (reply.retry == SG_GROUP_FAULT_NOTICE);
    EXPECT_EQ(reply.result, CT_DEVICE_OK);
    return reply;
}

static int admin_request(uint32_t kind, uint64_t a, uint64_t b)
{
    struct sg_request request = {kind, 0, a, b, 0};
    struct sg_reply reply;
    EXPECT(send(owner, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    do
        EXPECT(recv(owner, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    while (reply.retry == SG_GROUP_FAULT_NOTICE);
    return reply.result;
}

/* Suspend the first client with random actions and resume it, if necessary by a fault, because a suspended client would
 * wait indefinitely. */
static void suspend_and_resume_first_client(void)
{
    uint64_t self = (uint64_t)getpid();
    for (uint64_t steps = rng(6); steps; steps--)
        admin_request(SG_CHECKPOINT, rng(20) ? self : rng(4), rng(9));
    if (admin_request(SG_CHECKPOINT, self, SG_CHECKPOINT_LOAD) == CT_DEVICE_NO_MEMORY)
        admin_request(SG_FAULT, SG_FAULT_LAUNCH_FAILED, self);
    admin_request(SG_CHECKPOINT, self, SG_CHECKPOINT_RELEASE);
}

static void open_group(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    owner = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, path);
    EXPECT(connect(owner, (struct sockaddr *)&address, sizeof address) == 0);
    group = call_owner(SG_GROUP_OPEN, 0, 0).a;
}

static void reconnect(struct client *client, const char *path)
{
    uint64_t group_to_join = rng(2) ? group : 0;
    if (group_to_join)
        call_owner(SG_GROUP_ADMIT, (uint64_t)getpid(), 8192);
    struct test_client opened = test_client_open_in(path, group_to_join);
    if (!opened.ring) {
        close(opened.socket);
        opened = test_client_open(path);
    }
    *client = (struct client){.socket = opened.socket, .ring = opened.ring};
}

static void close_client(struct client *client)
{
    close(client->socket);
    munmap(client->ring, sizeof *client->ring);
    client->socket = -1;
}

static uint64_t random_number(const struct client *client)
{
    static const uint64_t edges[] = {0, 1, 2, 80, 1000, 65535, UINT32_MAX, UINT64_C(1) << 40, INT64_MAX, UINT64_MAX};
    switch (rng(7)) {
    case 0:
        return client->contexts[rng(4)];
    case 1:
        return client->streams[rng(4)];
    case 2:
        return client->events[rng(4)];
    case 3:
        return edges[rng(10)];
    case 4:
        return shares[rng(4)];
    case 5:
        return tokens[rng(4)];
    default:
        return rng(UINT64_C(1) << rng(63));
    }
}

static void write_random_slots(struct client *client)
{
    uint64_t tail = atomic_load(&client->ring->tail);
    for (uint64_t count = rng(20); count; count--) {
        struct sg_slot *slot = &client->ring->slots[tail++ % SG_RING_SLOTS];
        slot->at_ns = rng(4) ? sg_now_ns() : random_number(client);
        slot->kind = (uint32_t)rng(7);
        slot->stream = (uint32_t)(rng(8) ? client->streams[rng(4)] : random_number(client));
        slot->kernel = (struct ct_kernel){random_number(client), random_number(client), random_number(client),
                                          (uint32_t)random_number(client), (uint32_t)random_number(client),
                                          (uint32_t)random_number(client), (uint32_t)random_number(client),
                                          (uint32_t)random_number(client), 0};
        if (rng(2)) /* a plausible kernel */
            slot->kernel =
                (struct ct_kernel){1 + rng(200), 1 + rng(5000), rng(9000), 1 + (uint32_t)rng(1024), 32, 0, 0, rng(2) ? (uint32_t)rng(90) : 0, 0};
    }
    if (rng(40) == 0)
        tail = random_number(client);
    atomic_store(&client->ring->tail, tail);
}

/* Send one request. 0: the server closed the connection. */
static int send_random_request(struct client *client)
{
    static char answer[sizeof(struct sg_reply) + sizeof(struct sg_hello)];
    uint32_t kind = rng(2) ? (uint32_t)rng(28) : SG_CLIENT_TAKE + (uint32_t)rng(8);
    struct sg_request request = {kind, 0, random_number(client), random_number(client), random_number(client)};
    struct sg_reply reply;
    if (kind == SG_SHARE_MAKE && rng(2)) /* a plausible request */
        request = (struct sg_request){kind, 0, rng(2) * 4096, 4096, 1 + rng(3)};
    if (kind == SG_CLIENT_TAKE && rng(2))
        request.a = 4096 * (1 + rng(4));
    if (kind == SG_SHARE_OPEN && rng(2)) {
        size_t index = rng(4);
        request = (struct sg_request){kind, 0, shares[index], tokens[index], 1 + rng(3)};
    }
    size_t bytes = rng(60) ? sizeof request : rng(sizeof request);
    if (request.kind == SG_SHUTDOWN || request.kind == SG_HELLO)
        request.kind = SG_PROJECT;
    if (request.kind == SG_COMPUTE_MODE)
        request.b &= ~UINT64_C(3); /* exclusive modes would block all clients */
    if (request.kind == SG_FAULT && rng(4)) {
        request.a = rng(SG_FAULT_MPS_DEATHS + 2);
        request.b = rng(3) ? SG_FAULT_SELF | rng(3) << 32 : (uint64_t)getpid();
    }
    if (request.kind == SG_FAULT && request.a == SG_FAULT_DEVICE_LOST)
        request.a = SG_FAULT_HANG; /* a lost device would block all clients */
    if (send(client->socket, &request, bytes, MSG_NOSIGNAL) < 0)
        return 0;
    ssize_t received = recv(client->socket, answer, sizeof answer, 0);
    if (received <= 0)
        return 0;
    if (received == (ssize_t)sizeof reply) {
        memcpy(&reply, answer, sizeof reply);
        if (request.kind == SG_CONTEXT_CREATE && reply.result == CT_DEVICE_OK) {
            client->contexts[rng(4)] = reply.a;
            client->streams[rng(4)] = reply.b;
        }
        if (request.kind == SG_STREAM_CREATE && reply.result == CT_DEVICE_OK)
            client->streams[rng(4)] = reply.a;
        if (request.kind == SG_EVENTS_CREATE && reply.result == CT_DEVICE_OK)
            client->events[rng(4)] = reply.batch[0];
        if (request.kind == SG_SHARE_MAKE && reply.result == CT_DEVICE_OK) {
            size_t index = rng(4);
            shares[index] = reply.a;
            tokens[index] = reply.b;
        }
    }
    return 1;
}

int main(int argc, char **argv)
{
    struct test_server server;
    struct client clients[3];
    int rounds = argc > 1 ? atoi(argv[1]) : 20000;
    state = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    test_server_start(&server, "t4");
    open_group(server.path);
    for (int i = 0; i < 3; i++)
        reconnect(&clients[i], server.path);
    for (int i = 0; i < rounds; i++) {
        struct client *client = &clients[rng(3)];
        write_random_slots(client);
        if (rng(8) == 0)
            suspend_and_resume_first_client();
        if (!send_random_request(client) || rng(atomic_load(&client->ring->fault) ? 10 : 500) == 0) {
            close_client(client);
            reconnect(client, server.path);
        }
    }
    for (int i = 0; i < 3; i++)
        close_client(&clients[i]);
    /* A new client finds all memory free. */
    struct sg_request request = {.kind = SG_MEMORY_INFO};
    struct sg_reply reply;
    reconnect(&clients[0], server.path);
    for (int tries = 0; tries < 1000; tries++) { /* the server notices the last disconnect with a delay */
        EXPECT(send(clients[0].socket, &request, sizeof request, 0) == (ssize_t)sizeof request);
        EXPECT(recv(clients[0].socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
        if (reply.a == reply.b)
            break;
    }
    EXPECT_EQ(reply.a, reply.b);
    close_client(&clients[0]);
    close(owner);
    test_server_stop(&server);
    return 0;
}
