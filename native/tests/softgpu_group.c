/* Tests of MPS groups in the device server: admission and limits, failures, and invalid requests of an MPS server. */
#include "softgpu_server.h"

#include "softgpu/abi/cuda.h"

enum { SMS = 40 }; /* of a T4 */

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, path);
    EXPECT(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static struct sg_reply call(int fd, uint32_t kind, uint64_t a, uint64_t b, uint64_t c)
{
    struct sg_request request = {kind, 0, a, b, c};
    struct sg_reply reply;
    EXPECT(send(fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recv(fd, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    return reply;
}

struct client {
    int fd;
    struct sg_ring *ring;
    struct sg_hello hello;
};

static struct client join(const char *path, uint64_t group)
{
    struct client client = {.fd = connect_to(path)};
    struct sg_request request = {.kind = SG_HELLO, .a = SG_WIRE_VERSION, .b = group};
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec words = {&client.hello, sizeof client.hello};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int descriptors[2];
    EXPECT(send(client.fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recvmsg(client.fd, &message, 0) == (ssize_t)sizeof client.hello);
    if (client.hello.result != CT_DEVICE_OK)
        return client;
    memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptors);
    client.ring = mmap(NULL, sizeof *client.ring, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[0], 0);
    EXPECT(client.ring != MAP_FAILED);
    close(descriptors[0]);
    close(descriptors[1]);
    return client;
}

static void leave(struct client *client)
{
    if (client->ring)
        munmap(client->ring, sizeof *client->ring);
    close(client->fd);
}

/* The server notices a closed connection with a delay. */
static void wait_for_clients(int owner, uint64_t count)
{
    while (call(owner, SG_GROUP_STATE, 0, 0, 0).a != count)
        ;
}

static void clients_join_only_when_admitted_and_within_limits(const char *path)
{
    int owner = connect_to(path);
    struct sg_reply opened = call(owner, SG_GROUP_OPEN, 0, 0, 0);
    EXPECT_EQ(opened.result, CT_DEVICE_OK);
    EXPECT_EQ(opened.b, SMS);
    struct client outsider = join(path, opened.a); /* not admitted */
    EXPECT_EQ(outsider.hello.result, SG_REFUSED);
    EXPECT_EQ(outsider.hello.refused, CUDA_ERROR_MPS_CONNECTION_FAILED);
    leave(&outsider);
    EXPECT_EQ(call(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 4096, 12).result, CT_DEVICE_OK);
    struct client client = join(path, opened.a);
    EXPECT_EQ(client.hello.result, CT_DEVICE_OK);
    EXPECT_EQ(client.hello.sm_cap, 12);
    struct client again = join(path, opened.a); /* an admission is valid once */
    EXPECT_EQ(again.hello.refused, CUDA_ERROR_MPS_CONNECTION_FAILED);
    leave(&again);
    struct sg_reply context = call(client.fd, SG_CONTEXT_CREATE, 20, 0, 0);
    EXPECT_EQ(context.result, CT_DEVICE_OK);
    EXPECT_EQ(context.batch[0], 12);
    EXPECT_EQ(call(client.fd, SG_CONTEXT_CREATE, 5, 0, 0).batch[0], 5);
    EXPECT_EQ(call(client.fd, SG_CONTEXT_CREATE, UINT64_MAX, 0, 0).result, CT_DEVICE_INVALID);
    EXPECT_EQ(call(client.fd, SG_MEMORY_TAKE, context.a, 4096, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(call(client.fd, SG_MEMORY_TAKE, context.a, 1, 0).result, CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(call(client.fd, SG_MEMORY_TAKE, context.a, UINT64_MAX, 0).result, CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(call(client.fd, SG_MEMORY_GIVE, context.a, 4096, 0).result, CT_DEVICE_OK);
    struct sg_reply state = call(owner, SG_GROUP_STATE, 0, 0, 0);
    EXPECT_EQ(state.a, 1);
    EXPECT_EQ(state.b, 0);
    EXPECT_EQ(state.batch[0], (uint32_t)getpid());
    EXPECT_EQ(call(owner, SG_GROUP_STATE, UINT64_MAX, 0, 0).a, 1);
    EXPECT_EQ(call(owner, SG_GROUP_FAIL, 1, CUDA_ERROR_MPS_CLIENT_TERMINATED, 0).a, 0);
    EXPECT_EQ(call(owner, SG_GROUP_FAIL, (uint64_t)getpid(), CUDA_ERROR_MPS_CLIENT_TERMINATED, 0).a, 1);
    EXPECT_EQ(atomic_load(&client.ring->fault), CUDA_ERROR_MPS_CLIENT_TERMINATED);
    EXPECT_EQ(call(owner, SG_GROUP_STATE, 0, 0, 0).b, 0); /* this does not make the group refuse clients */
    leave(&client);
    wait_for_clients(owner, 0);
    close(owner);
}

static void fault_and_end_of_a_group_reach_its_clients(const char *path)
{
    int owner = connect_to(path);
    uint64_t group = call(owner, SG_GROUP_OPEN, 0, 0, 0).a;
    struct client clients[2];
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(call(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 0, 0).result, CT_DEVICE_OK);
        clients[i] = join(path, group);
    }
    EXPECT_EQ(call(clients[0].fd, SG_CONTEXT_CREATE, 0, 0, 0).result, CT_DEVICE_OK);
    /* Only the client with a context is affected by its fault, and its MPS server is notified. */
    EXPECT_EQ(call(clients[0].fd, SG_FAULT, SG_FAULT_ILLEGAL_ADDRESS, SG_FAULT_SELF, 0).a, 1);
    struct sg_reply notice;
    EXPECT(recv(owner, &notice, sizeof notice, 0) == (ssize_t)sizeof notice);
    EXPECT_EQ(notice.retry, SG_GROUP_FAULT_NOTICE);
    EXPECT_EQ(notice.a, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(call(owner, SG_GROUP_STATE, 0, 0, 0).b, 1);
    EXPECT_EQ(call(clients[1].fd, SG_CONTEXT_CREATE, 0, 0, 0).a, CUDA_ERROR_MPS_SERVER_NOT_READY);
    EXPECT_EQ(call(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 0, 0).result, CT_DEVICE_OK);
    struct client late = join(path, group);
    EXPECT_EQ(late.hello.refused, CUDA_ERROR_MPS_SERVER_NOT_READY);
    leave(&late);
    leave(&clients[0]);
    wait_for_clients(owner, 1);
    EXPECT_EQ(call(owner, SG_GROUP_STATE, 0, 0, 0).b, 0);
    EXPECT_EQ(call(clients[1].fd, SG_CONTEXT_CREATE, 0, 0, 0).result, CT_DEVICE_OK);
    close(owner);
    while (!atomic_load(&clients[1].ring->fault))
        ;
    EXPECT_EQ(atomic_load(&clients[1].ring->fault), CUDA_ERROR_MPS_RPC_FAILURE);
    leave(&clients[1]);
}

static void compute_modes_restrict_contexts(const char *path)
{
    int requester = connect_to(path), owner = connect_to(path);
    EXPECT_EQ(call(requester, SG_COMPUTE_MODE, 1, 1, 0).result, CT_DEVICE_INVALID);
    EXPECT_EQ(call(requester, SG_COMPUTE_MODE, 1, SG_MODE_EXCLUSIVE_PROCESS, 0).a, SG_MODE_EXCLUSIVE_PROCESS);
    uint64_t group = call(owner, SG_GROUP_OPEN, 0, 0, 0).a;
    int second = connect_to(path);
    EXPECT_EQ(call(second, SG_GROUP_OPEN, 0, 0, 0).result, SG_REFUSED);
    EXPECT_EQ(call(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 0, 0).result, CT_DEVICE_OK);
    struct client member = join(path, group), outsider = join(path, 0);
    EXPECT_EQ(call(member.fd, SG_CONTEXT_CREATE, 0, 0, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(call(outsider.fd, SG_CONTEXT_CREATE, 0, 0, 0).a, CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(call(requester, SG_COMPUTE_MODE, 1, SG_MODE_PROHIBITED, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(call(member.fd, SG_CONTEXT_CREATE, 0, 0, 0).a, CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(call(requester, SG_COMPUTE_MODE, 1, SG_MODE_DEFAULT, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(call(outsider.fd, SG_CONTEXT_CREATE, 0, 0, 0).result, CT_DEVICE_OK);
    leave(&member);
    leave(&outsider);
    close(owner);
    close(second);
    close(requester);
}

/* A client that outlives the owner of a share becomes its owner, even beyond its limit, because the memory is on the
 * device already. */
static void share_passes_to_a_holder_when_its_owner_leaves(const char *path)
{
    enum { LIMIT = 4096, BYTES = 4 * LIMIT };
    int owner = connect_to(path);
    uint64_t group = call(owner, SG_GROUP_OPEN, 0, 0, 0).a;
    EXPECT_EQ(call(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), LIMIT, 0).result, CT_DEVICE_OK);
    struct client holder = join(path, group), maker = join(path, 0);
    uint64_t free_bytes = call(holder.fd, SG_MEMORY_INFO, 0, 0, 0).a;
    EXPECT_EQ(call(maker.fd, SG_CLIENT_TAKE, BYTES, 0, 0).result, CT_DEVICE_OK);
    struct sg_reply share = call(maker.fd, SG_SHARE_MAKE, BYTES, BYTES, SG_SHARE_PHYSICAL);
    EXPECT_EQ(share.result, CT_DEVICE_OK);
    EXPECT_EQ(call(holder.fd, SG_SHARE_OPEN, share.a, share.b, SG_SHARE_PHYSICAL).result, CT_DEVICE_OK);
    leave(&maker);
    while (!call(holder.fd, SG_SHARE_OPEN, share.a, 0, SG_SHARE_PHYSICAL).c) /* until the holder owns it */
        ;
    EXPECT_EQ(call(holder.fd, SG_MEMORY_INFO, 0, 0, 0).a, free_bytes - BYTES);
    EXPECT_EQ(call(holder.fd, SG_CLIENT_TAKE, 1, 0, 0).result, CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(call(holder.fd, SG_CLIENT_GIVE, 1, 0, 0).result, CT_DEVICE_INVALID); /* the bytes belong to the share */
    EXPECT_EQ(call(holder.fd, SG_SHARE_CLOSE, share.a, 0, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(call(holder.fd, SG_MEMORY_INFO, 0, 0, 0).a, free_bytes);
    EXPECT_EQ(call(holder.fd, SG_CLIENT_TAKE, LIMIT, 0, 0).result, CT_DEVICE_OK);
    leave(&holder);
    wait_for_clients(owner, 0);
    close(owner);
}

/* A client without a context is not affected by the end of its group but cannot create a context afterwards. */
static void client_without_context_survives_the_end_of_its_group(const char *path)
{
    int owner = connect_to(path), next = connect_to(path);
    uint64_t group = call(owner, SG_GROUP_OPEN, 0, 0, 0).a;
    EXPECT_EQ(call(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 0, 0).result, CT_DEVICE_OK);
    struct client idle = join(path, group);
    EXPECT_EQ(call(next, SG_COMPUTE_MODE, 1, SG_MODE_EXCLUSIVE_PROCESS, 0).result, CT_DEVICE_OK);
    close(owner);
    while (call(next, SG_GROUP_OPEN, 0, 0, 0).result != CT_DEVICE_OK) /* until the previous group has ended */
        ;
    EXPECT_EQ(call(next, SG_COMPUTE_MODE, 1, SG_MODE_DEFAULT, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(call(idle.fd, SG_CONTEXT_CREATE, 0, 0, 0).a, CUDA_ERROR_MPS_RPC_FAILURE);
    leave(&idle);
    close(next);
}

static uint64_t last_xid(int fd)
{
    struct sg_reply reply = {0};
    uint64_t last;
    do {
        last = reply.b;
        reply = call(fd, SG_XID_NEXT, last, 0, 0);
    } while (reply.result == CT_DEVICE_OK);
    return last;
}

/* A hung kernel ends with its context, so it cannot time out, and a client without a context cannot fault. Return 0 if
 * the kernel timed out before the context ended, in which case the test is inconclusive. */
static int hang_ends_with_context(const char *path, int in_group, uint64_t timeout_ns)
{
    int owner = connect_to(path);
    uint64_t group = call(owner, SG_GROUP_OPEN, 0, 0, 0).a;
    EXPECT_EQ(call(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 0, 0).result, CT_DEVICE_OK);
    struct client client = join(path, in_group ? group : 0);
    uint64_t before = last_xid(client.fd);
    struct sg_reply context = call(client.fd, SG_CONTEXT_CREATE, 0, 0, 0);
    EXPECT_EQ(call(client.fd, SG_FAULT, SG_FAULT_HANG, SG_FAULT_SELF | UINT64_C(1) << 32, timeout_ns).a, 1);
    uint64_t begun_ns = sg_now_ns();
    client.ring->slots[0] = (struct sg_slot){.at_ns = sg_now_ns(), .kind = SG_SLOT_KERNEL,
                                             .stream = (uint32_t)context.b,
                                             .kernel = {.blocks = 1, .block_ns = 1, .threads_per_block = 32}};
    atomic_store(&client.ring->tail, 1);
    struct sg_reply destroyed = call(client.fd, SG_CONTEXT_DESTROY, context.a, 0, 0);
    if (sg_now_ns() - begun_ns >= timeout_ns) {
        leave(&client);
        close(owner);
        return 0;
    }
    EXPECT_EQ(destroyed.result, CT_DEVICE_OK);
    uint64_t due_ns = sg_now_ns() + 2 * timeout_ns;
    while (sg_now_ns() < due_ns || call(client.fd, SG_MEMORY_INFO, 0, 0, 0).result != CT_DEVICE_OK)
        ;
    EXPECT_EQ(call(client.fd, SG_MEMORY_INFO, 0, 0, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(atomic_load(&client.ring->fault), 0);
    if (in_group)
        EXPECT_EQ(call(client.fd, SG_FAULT, SG_FAULT_ILLEGAL_ADDRESS, SG_FAULT_SELF, 0).a, 0);
    EXPECT_EQ(last_xid(client.fd), before);
    leave(&client);
    close(owner);
    return 1;
}

static void check_hang(const char *path, int in_group)
{
    uint64_t timeout_ns = 1000000;
    while (!hang_ends_with_context(path, in_group, timeout_ns))
        timeout_ns *= 2;
}

/* Arbitrary requests of an MPS server are answered or end its connection; the next MPS server works normally. */
static void random_requests_end_at_most_their_connection(const char *path)
{
    static const uint64_t numbers[] = {0, 1, 2, 40, 41, UINT32_MAX, UINT64_C(1) << 32, INT64_MAX, UINT64_MAX};
    uint64_t random = 88172645463325252;
    int owner = -1;
    for (int i = 0; i < 5000; i++) {
        struct sg_request request = {.kind = SG_GROUP_OPEN};
        uint64_t *words[] = {&request.a, &request.b, &request.c};
        struct sg_reply reply;
        if (owner < 0)
            owner = connect_to(path);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if (random % 7)
            request.kind = SG_GROUP_OPEN + (uint32_t)(random >> 8) % 7;
        for (int word = 0; word < 3; word++)
            *words[word] =
                (random >> (16 + 4 * word)) % 3 ? numbers[(random >> (28 + 8 * word)) % 9] : (uint64_t)getpid();
        if (request.kind == SG_COMPUTE_MODE || request.kind == SG_CLOCK)
            continue;
        if (send(owner, &request, sizeof request, MSG_NOSIGNAL) < 0 || recv(owner, &reply, sizeof reply, 0) <= 0) {
            close(owner);
            owner = -1;
        }
    }
    if (owner >= 0)
        close(owner);
}

int main(void)
{
    struct test_server server;
    test_server_start(&server, "t4");
    clients_join_only_when_admitted_and_within_limits(server.path);
    fault_and_end_of_a_group_reach_its_clients(server.path);
    compute_modes_restrict_contexts(server.path);
    share_passes_to_a_holder_when_its_owner_leaves(server.path);
    client_without_context_survives_the_end_of_its_group(server.path);
    check_hang(server.path, 0);
    check_hang(server.path, 1);
    random_requests_end_at_most_their_connection(server.path);
    clients_join_only_when_admitted_and_within_limits(server.path);
    test_server_stop(&server);
    return 0;
}
