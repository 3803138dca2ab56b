/* Suspension on the wire: what a locked client says and submits waits, its memory leaves, and no death leaves a trace. */
#include "softgpu_server.h"

#include "softgpu/abi.h"

#include <poll.h>

enum { BYTES = 1 << 20 };

static struct test_server server;

static int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int line = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, server.path);
    EXPECT(connect(line, (struct sockaddr *)&address, sizeof address) == 0);
    return line;
}

static void say(int line, uint32_t kind, uint64_t a, uint64_t b)
{
    struct sg_request request = {.kind = kind, .a = a, .b = b};
    EXPECT(send(line, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
}

static struct sg_reply hear(int line)
{
    struct sg_reply reply;
    EXPECT(recv(line, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    return reply;
}

static struct sg_reply ask(int line, uint32_t kind, uint64_t a, uint64_t b)
{
    say(line, kind, a, b);
    return hear(line);
}

static int act(int line, enum sg_checkpoint_act what)
{
    struct sg_reply reply = ask(line, SG_CHECKPOINT, (uint64_t)getpid(), what);
    return reply.result == SG_REFUSED ? -(int)reply.a : reply.result;
}

static uint64_t state(int line)
{
    struct sg_reply reply = ask(line, SG_CHECKPOINT, (uint64_t)getpid(), SG_CHECKPOINT_STATE);
    EXPECT_EQ(reply.result, CT_DEVICE_OK);
    return reply.a;
}

static int has_answer(int line)
{
    struct pollfd one = {.fd = line, .events = POLLIN};
    return poll(&one, 1, 0) > 0;
}

/* Memory that is taken, as somebody sees who is not asleep. */
static uint64_t taken(const struct test_line *line)
{
    struct sg_reply reply = ask(line->socket, SG_MEMORY_INFO, 0, 0);
    return reply.b - reply.a;
}

static void launch(const struct test_line *line, uint32_t stream, uint64_t block_ns)
{
    uint64_t tail = atomic_load(&line->ring->tail);
    line->ring->slots[tail % SG_RING_SLOTS] =
        (struct sg_slot){.at_ns = sg_now_ns(), .kind = SG_SLOT_KERNEL, .stream = stream,
                         .kernel = {.blocks = 1, .block_ns = block_ns, .threads_per_block = 32}};
    atomic_store(&line->ring->tail, tail + 1);
}

static void lock(int line)
{
    while (act(line, SG_CHECKPOINT_HOLD) == CT_DEVICE_NOT_READY)
        ;
    EXPECT_EQ(act(line, SG_CHECKPOINT_LOCK), CT_DEVICE_OK);
}

/* A lock that is not complete belongs to whoever began it; work comes before it. */
static void check_lock(const struct test_line *target, uint32_t stream)
{
    int one = dial(), other = dial();
    launch(target, stream, SG_KERNEL_MAX_NS);
    EXPECT_EQ(act(one, SG_CHECKPOINT_HOLD), CT_DEVICE_NOT_READY);
    EXPECT_EQ(atomic_load(&target->ring->held), 1);
    EXPECT_EQ(act(one, SG_CHECKPOINT_LOCK), CT_DEVICE_NOT_READY);
    EXPECT_EQ(act(other, SG_CHECKPOINT_HOLD), -(int)CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_EQ(act(other, SG_CHECKPOINT_RELEASE), -(int)CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_EQ(state(other), CU_PROCESS_STATE_RUNNING);
    EXPECT(ask(target->socket, SG_MEMORY_INFO, 0, 0).result == CT_DEVICE_OK);
    close(one);
    while (atomic_load(&target->ring->held)) /* the server hears of it */
        ;
    EXPECT_EQ(act(other, SG_CHECKPOINT_HOLD), CT_DEVICE_NOT_READY);
    EXPECT_EQ(act(other, SG_CHECKPOINT_RELEASE), CT_DEVICE_OK);
    EXPECT_EQ(atomic_load(&target->ring->held), 0);
    EXPECT_EQ(act(other, 99), CT_DEVICE_INVALID);
    close(other);
}

/* Whatever the face does in spite of the word in the ring: the server takes neither slot nor question. */
static void check_sleep(const struct test_line *target, uint32_t stream)
{
    int line = dial();
    lock(line);
    uint64_t head = atomic_load(&target->ring->head);
    launch(target, stream, 1000);
    say(target->socket, SG_CLIENT_TAKE, BYTES, 0);
    EXPECT_EQ(state(line), CU_PROCESS_STATE_LOCKED);
    EXPECT_EQ(state(line), CU_PROCESS_STATE_LOCKED); /* by now the server has seen both, if it looks */
    EXPECT(!has_answer(target->socket));
    EXPECT_EQ(atomic_load(&target->ring->head), head);
    EXPECT_EQ(act(line, SG_CHECKPOINT_RELEASE), CT_DEVICE_OK);
    EXPECT_EQ(hear(target->socket).result, CT_DEVICE_OK);
    EXPECT_EQ(atomic_load(&target->ring->head), head + 1);
    EXPECT_EQ(ask(target->socket, SG_CLIENT_GIVE, BYTES, 0).result, CT_DEVICE_OK);
    close(line);
}

static void check_memory(struct test_line *target, const struct test_line *other, uint64_t context)
{
    int line = dial();
    EXPECT_EQ(ask(target->socket, SG_MEMORY_TAKE, context, BYTES).result, CT_DEVICE_OK);
    EXPECT_EQ(ask(target->socket, SG_CLIENT_TAKE, 2 * BYTES, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(act(line, SG_CHECKPOINT_SAVE), -(int)CUDA_ERROR_ILLEGAL_STATE);
    lock(line);
    EXPECT_EQ(act(line, SG_CHECKPOINT_MAY_SAVE), CT_DEVICE_OK);
    EXPECT_EQ(taken(other), 3 * BYTES);
    EXPECT_EQ(act(line, SG_CHECKPOINT_SAVE), CT_DEVICE_OK);
    EXPECT_EQ(taken(other), 0);
    EXPECT_EQ(act(line, SG_CHECKPOINT_RELEASE), -(int)CUDA_ERROR_ILLEGAL_STATE);
    struct sg_reply room = ask(other->socket, SG_MEMORY_INFO, 0, 0);
    EXPECT_EQ(ask(other->socket, SG_CLIENT_TAKE, room.a - 3 * BYTES + 1, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(act(line, SG_CHECKPOINT_MAY_LOAD), CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(act(line, SG_CHECKPOINT_LOAD), CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(state(line), CU_PROCESS_STATE_CHECKPOINTED);
    EXPECT_EQ(ask(other->socket, SG_CLIENT_GIVE, 1, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(act(line, SG_CHECKPOINT_LOAD), CT_DEVICE_OK);
    EXPECT_EQ(ask(other->socket, SG_MEMORY_INFO, 0, 0).a, 0);
    EXPECT_EQ(ask(other->socket, SG_CLIENT_GIVE, room.a - 3 * BYTES, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(taken(other), 3 * BYTES);
    /* It dies while its memory is away: none of it comes back. */
    EXPECT_EQ(act(line, SG_CHECKPOINT_SAVE), CT_DEVICE_OK);
    close(target->socket);
    munmap(target->ring, sizeof *target->ring);
    while (ask(line, SG_CHECKPOINT, (uint64_t)getpid(), SG_CHECKPOINT_STATE).result != CT_DEVICE_STALE)
        ;
    EXPECT_EQ(taken(other), 0);
    close(line);
}

/* A client of another pid, so that only the target is meant by ours. */
static struct test_line stranger(pid_t *child)
{
    int pair[2];
    EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    *child = fork();
    if (*child == 0) {
        char words[sizeof(struct sg_reply)];
        struct test_line line = test_line_open(server.path);
        close(pair[0]);
        for (ssize_t got; (got = recv(pair[1], words, sizeof words, 0)) > 0;) {
            EXPECT(send(line.socket, words, (size_t)got, 0) == got);
            got = recv(line.socket, words, sizeof words, 0);
            EXPECT(send(pair[1], words, (size_t)got, 0) == got);
        }
        _exit(0);
    }
    close(pair[1]);
    return (struct test_line){.socket = pair[0]};
}

int main(void)
{
    int status;
    pid_t child;
    test_server_start(&server, "t4");
    struct test_line other = stranger(&child);
    struct test_line target = test_line_open(server.path);
    struct sg_reply made = ask(target.socket, SG_CONTEXT_CREATE, 0, 0);
    EXPECT_EQ(made.result, CT_DEVICE_OK);
    EXPECT_EQ(taken(&other), 0);
    check_lock(&target, (uint32_t)made.b);
    /* What would not end is gone with its context. */
    EXPECT_EQ(ask(target.socket, SG_CONTEXT_DESTROY, made.a, 0).result, CT_DEVICE_OK);
    made = ask(target.socket, SG_CONTEXT_CREATE, 0, 0);
    check_sleep(&target, (uint32_t)made.b);
    check_memory(&target, &other, made.a);
    close(other.socket);
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    test_server_stop(&server);
    return 0;
}
