/* Tests of suspension: requests and slots of a locked client wait, its memory leaves the device, and no death leaves
 * anything behind. */
#include "softgpu_server.h"

#include "softgpu/abi/cuda.h"

#include <poll.h>

enum { BYTES = 1 << 20 };

static struct test_server server;

static int connect_to_server(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, server.path);
    EXPECT(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static void send_request(int fd, uint32_t kind, uint64_t a, uint64_t b)
{
    struct sg_request request = {.kind = kind, .a = a, .b = b};
    EXPECT(send(fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
}

static struct sg_reply receive_reply(int fd)
{
    struct sg_reply reply;
    EXPECT(recv(fd, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    return reply;
}

static struct sg_reply call(int fd, uint32_t kind, uint64_t a, uint64_t b)
{
    send_request(fd, kind, a, b);
    return receive_reply(fd);
}

static int checkpoint(int fd, enum sg_checkpoint_action action)
{
    struct sg_reply reply = call(fd, SG_CHECKPOINT, (uint64_t)getpid(), action);
    return reply.result == SG_REFUSED ? -(int)reply.a : reply.result;
}

static uint64_t state(int fd)
{
    struct sg_reply reply = call(fd, SG_CHECKPOINT, (uint64_t)getpid(), SG_CHECKPOINT_STATE);
    EXPECT_EQ(reply.result, CT_DEVICE_OK);
    return reply.a;
}

static int has_answer(int fd)
{
    struct pollfd poll_entry = {.fd = fd, .events = POLLIN};
    return poll(&poll_entry, 1, 0) > 0;
}

/* Used device memory, as reported to a client that is not suspended. */
static uint64_t used_bytes(const struct test_client *client)
{
    struct sg_reply reply = call(client->socket, SG_MEMORY_INFO, 0, 0);
    return reply.b - reply.a;
}

static void launch(const struct test_client *client, uint32_t stream, uint64_t block_ns)
{
    uint64_t tail = atomic_load(&client->ring->tail);
    client->ring->slots[tail % SG_RING_SLOTS] =
        (struct sg_slot){.at_ns = sg_now_ns(), .kind = SG_SLOT_KERNEL, .stream = stream,
                         .kernel = {.blocks = 1, .block_ns = block_ns, .threads_per_block = 32}};
    atomic_store(&client->ring->tail, tail + 1);
}

static void lock(int fd)
{
    while (checkpoint(fd, SG_CHECKPOINT_HOLD) == CT_DEVICE_NOT_READY)
        ;
    EXPECT_EQ(checkpoint(fd, SG_CHECKPOINT_LOCK), CT_DEVICE_OK);
}

/* An incomplete lock belongs to the connection that began it and waits for work in flight. */
static void check_lock_belongs_to_its_connection(const struct test_client *target, uint32_t stream)
{
    int first = connect_to_server(), second = connect_to_server();
    launch(target, stream, SG_KERNEL_MAX_NS);
    EXPECT_EQ(checkpoint(first, SG_CHECKPOINT_HOLD), CT_DEVICE_NOT_READY);
    EXPECT_EQ(atomic_load(&target->ring->held), 1);
    EXPECT_EQ(checkpoint(first, SG_CHECKPOINT_LOCK), CT_DEVICE_NOT_READY);
    EXPECT_EQ(checkpoint(second, SG_CHECKPOINT_HOLD), -(int)CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_EQ(checkpoint(second, SG_CHECKPOINT_RELEASE), -(int)CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_EQ(state(second), CU_PROCESS_STATE_RUNNING);
    EXPECT(call(target->socket, SG_MEMORY_INFO, 0, 0).result == CT_DEVICE_OK);
    close(first);
    while (atomic_load(&target->ring->held)) /* until the server notices */
        ;
    EXPECT_EQ(checkpoint(second, SG_CHECKPOINT_HOLD), CT_DEVICE_NOT_READY);
    EXPECT_EQ(checkpoint(second, SG_CHECKPOINT_RELEASE), CT_DEVICE_OK);
    EXPECT_EQ(atomic_load(&target->ring->held), 0);
    EXPECT_EQ(checkpoint(second, 99), CT_DEVICE_INVALID);
    close(second);
}

/* Even if a client ignores the ring's `held` word, the server takes neither its slots nor its requests. */
static void check_locked_client_is_not_served(const struct test_client *target, uint32_t stream)
{
    int fd = connect_to_server();
    lock(fd);
    uint64_t head = atomic_load(&target->ring->head);
    launch(target, stream, 1000);
    send_request(target->socket, SG_CLIENT_TAKE, BYTES, 0);
    EXPECT_EQ(state(fd), CU_PROCESS_STATE_LOCKED);
    EXPECT_EQ(state(fd), CU_PROCESS_STATE_LOCKED); /* the server has processed both by now if it takes them */
    EXPECT(!has_answer(target->socket));
    EXPECT_EQ(atomic_load(&target->ring->head), head);
    EXPECT_EQ(checkpoint(fd, SG_CHECKPOINT_RELEASE), CT_DEVICE_OK);
    EXPECT_EQ(receive_reply(target->socket).result, CT_DEVICE_OK);
    EXPECT_EQ(atomic_load(&target->ring->head), head + 1);
    EXPECT_EQ(call(target->socket, SG_CLIENT_GIVE, BYTES, 0).result, CT_DEVICE_OK);
    close(fd);
}

static void check_memory_leaves_the_device(struct test_client *target, const struct test_client *other,
                                           uint64_t context)
{
    int fd = connect_to_server();
    EXPECT_EQ(call(target->socket, SG_MEMORY_TAKE, context, BYTES).result, CT_DEVICE_OK);
    EXPECT_EQ(call(target->socket, SG_CLIENT_TAKE, 2 * BYTES, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(checkpoint(fd, SG_CHECKPOINT_SAVE), -(int)CUDA_ERROR_ILLEGAL_STATE);
    lock(fd);
    EXPECT_EQ(checkpoint(fd, SG_CHECKPOINT_MAY_SAVE), CT_DEVICE_OK);
    EXPECT_EQ(used_bytes(other), 3 * BYTES);
    EXPECT_EQ(checkpoint(fd, SG_CHECKPOINT_SAVE), CT_DEVICE_OK);
    EXPECT_EQ(used_bytes(other), 0);
    EXPECT_EQ(checkpoint(fd, SG_CHECKPOINT_RELEASE), -(int)CUDA_ERROR_ILLEGAL_STATE);
    struct sg_reply info = call(other->socket, SG_MEMORY_INFO, 0, 0);
    EXPECT_EQ(call(other->socket, SG_CLIENT_TAKE, info.a - 3 * BYTES + 1, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(checkpoint(fd, SG_CHECKPOINT_MAY_LOAD), CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(checkpoint(fd, SG_CHECKPOINT_LOAD), CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(state(fd), CU_PROCESS_STATE_CHECKPOINTED);
    EXPECT_EQ(call(other->socket, SG_CLIENT_GIVE, 1, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(checkpoint(fd, SG_CHECKPOINT_LOAD), CT_DEVICE_OK);
    EXPECT_EQ(call(other->socket, SG_MEMORY_INFO, 0, 0).a, 0);
    EXPECT_EQ(call(other->socket, SG_CLIENT_GIVE, info.a - 3 * BYTES, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(used_bytes(other), 3 * BYTES);
    /* If the client dies while its memory is off the device, the memory does not return. */
    EXPECT_EQ(checkpoint(fd, SG_CHECKPOINT_SAVE), CT_DEVICE_OK);
    close(target->socket);
    munmap(target->ring, sizeof *target->ring);
    while (call(fd, SG_CHECKPOINT, (uint64_t)getpid(), SG_CHECKPOINT_STATE).result != CT_DEVICE_STALE)
        ;
    EXPECT_EQ(used_bytes(other), 0);
    close(fd);
}

/* A client with another pid, so that requests for this pid refer only to the target. */
static struct test_client start_other_client(pid_t *child)
{
    int pair[2];
    EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    *child = fork();
    if (*child == 0) {
        char words[sizeof(struct sg_reply)];
        struct test_client client = test_client_open(server.path);
        close(pair[0]);
        for (ssize_t got; (got = recv(pair[1], words, sizeof words, 0)) > 0;) {
            EXPECT(send(client.socket, words, (size_t)got, 0) == got);
            got = recv(client.socket, words, sizeof words, 0);
            EXPECT(send(pair[1], words, (size_t)got, 0) == got);
        }
        _exit(0);
    }
    close(pair[1]);
    return (struct test_client){.socket = pair[0]};
}

int main(void)
{
    int status;
    pid_t child;
    test_server_start(&server, "t4");
    struct test_client other = start_other_client(&child);
    struct test_client target = test_client_open(server.path);
    struct sg_reply context = call(target.socket, SG_CONTEXT_CREATE, 0, 0);
    EXPECT_EQ(context.result, CT_DEVICE_OK);
    EXPECT_EQ(used_bytes(&other), 0);
    check_lock_belongs_to_its_connection(&target, (uint32_t)context.b);
    /* The endless kernel ends with its context. */
    EXPECT_EQ(call(target.socket, SG_CONTEXT_DESTROY, context.a, 0).result, CT_DEVICE_OK);
    context = call(target.socket, SG_CONTEXT_CREATE, 0, 0);
    check_locked_client_is_not_served(&target, (uint32_t)context.b);
    check_memory_leaves_the_device(&target, &other, context.a);
    close(other.socket);
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    test_server_stop(&server);
    return 0;
}
