/* Fuzz of the wire: a client that writes nonsense into its ring and its socket harms nobody but itself. */
#include "softgpu_server.h"

static uint64_t state;

static uint64_t dice(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

struct line {
    int socket;
    struct sg_ring *ring;
    uint64_t contexts[4], streams[4], events[4];
};

/* Known to all lines: what one shares, another may open. */
static uint64_t shares[4], tokens[4];

/* An MPS server: half of the lines are its clients, with less memory than they want. */
static int owner;
static uint64_t group;

static struct sg_reply ask_owner(uint32_t kind, uint64_t a, uint64_t b)
{
    struct sg_request request = {kind, 0, a, b, 0};
    struct sg_reply reply;
    EXPECT(send(owner, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    do
        EXPECT(recv(owner, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    while (reply.behind == SG_NEWS);
    EXPECT_EQ(reply.result, CT_DEVICE_OK);
    return reply;
}

static int act(uint32_t kind, uint64_t a, uint64_t b)
{
    struct sg_request request = {kind, 0, a, b, 0};
    struct sg_reply reply;
    EXPECT(send(owner, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    do
        EXPECT(recv(owner, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    while (reply.behind == SG_NEWS);
    return reply.result;
}

/* Somebody suspends the first of the lines, in any order of steps; whoever sleeps afterwards is woken, if need be by a
 * fault: a line that asks would wait for good. */
static void suspend(void)
{
    uint64_t self = (uint64_t)getpid();
    for (uint64_t steps = dice(6); steps; steps--)
        act(SG_CHECKPOINT, dice(20) ? self : dice(4), dice(9));
    if (act(SG_CHECKPOINT, self, SG_CHECKPOINT_LOAD) == CT_DEVICE_NO_MEMORY)
        act(SG_FAULT, SG_FAULT_LAUNCH_FAILED, self);
    act(SG_CHECKPOINT, self, SG_CHECKPOINT_RELEASE);
}

static void open_group(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    owner = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, path);
    EXPECT(connect(owner, (struct sockaddr *)&address, sizeof address) == 0);
    group = ask_owner(SG_GROUP_OPEN, 0, 0).a;
}

static void connect_anew(struct line *line, const char *path)
{
    uint64_t joins = dice(2) ? group : 0;
    if (joins)
        ask_owner(SG_GROUP_ADMIT, (uint64_t)getpid(), 8192);
    struct test_line opened = test_line_open_in(path, joins);
    if (!opened.ring) {
        close(opened.socket);
        opened = test_line_open(path);
    }
    *line = (struct line){.socket = opened.socket, .ring = opened.ring};
}

static void leave(struct line *line)
{
    close(line->socket);
    munmap(line->ring, sizeof *line->ring);
    line->socket = -1;
}

static uint64_t number(const struct line *line)
{
    static const uint64_t edges[] = {0, 1, 2, 80, 1000, 65535, UINT32_MAX, UINT64_C(1) << 40, INT64_MAX, UINT64_MAX};
    switch (dice(7)) {
    case 0:
        return line->contexts[dice(4)];
    case 1:
        return line->streams[dice(4)];
    case 2:
        return line->events[dice(4)];
    case 3:
        return edges[dice(10)];
    case 4:
        return shares[dice(4)];
    case 5:
        return tokens[dice(4)];
    default:
        return dice(UINT64_C(1) << dice(63));
    }
}

static void scribble(struct line *line)
{
    uint64_t tail = atomic_load(&line->ring->tail);
    for (uint64_t more = dice(20); more; more--) {
        struct sg_slot *slot = &line->ring->slots[tail++ % SG_RING_SLOTS];
        slot->at_ns = dice(4) ? sg_now_ns() : number(line);
        slot->kind = (uint32_t)dice(7);
        slot->stream = (uint32_t)(dice(8) ? line->streams[dice(4)] : number(line));
        slot->kernel = (struct ct_kernel){number(line), number(line), number(line), (uint32_t)number(line),
                                          (uint32_t)number(line), (uint32_t)number(line), (uint32_t)number(line)};
        if (dice(2)) /* one that could be right */
            slot->kernel =
                (struct ct_kernel){1 + dice(200), 1 + dice(5000), dice(9000), 1 + (uint32_t)dice(1024), 32, 0, 0};
    }
    if (dice(40) == 0)
        tail = number(line);
    atomic_store(&line->ring->tail, tail);
}

/* One question; 0 when the server hung up. */
static int ask(struct line *line)
{
    static char answer[sizeof(struct sg_reply) + sizeof(struct sg_hello)];
    uint32_t kind = dice(2) ? (uint32_t)dice(28) : SG_CLIENT_TAKE + (uint32_t)dice(8);
    struct sg_request request = {kind, 0, number(line), number(line), number(line)};
    struct sg_reply reply;
    if (kind == SG_SHARE_MAKE && dice(2)) /* one that could be right */
        request = (struct sg_request){kind, 0, dice(2) * 4096, 4096, 1 + dice(3)};
    if (kind == SG_CLIENT_TAKE && dice(2))
        request.a = 4096 * (1 + dice(4));
    if (kind == SG_SHARE_OPEN && dice(2)) {
        size_t known = dice(4);
        request = (struct sg_request){kind, 0, shares[known], tokens[known], 1 + dice(3)};
    }
    size_t bytes = dice(60) ? sizeof request : dice(sizeof request);
    if (request.kind == SG_SHUTDOWN || request.kind == SG_HELLO)
        request.kind = SG_PROJECT;
    if (request.kind == SG_COMPUTE_MODE)
        request.b &= ~UINT64_C(3); /* nobody could do anything */
    if (request.kind == SG_FAULT && dice(4)) {
        request.a = dice(SG_FAULT_MPS_DEATHS + 2);
        request.b = dice(3) ? SG_FAULT_SELF | dice(3) << 32 : (uint64_t)getpid();
    }
    if (request.kind == SG_FAULT && request.a == SG_FAULT_DEVICE_LOST)
        request.a = SG_FAULT_HANG; /* nobody could come back */
    if (send(line->socket, &request, bytes, MSG_NOSIGNAL) < 0)
        return 0;
    ssize_t got = recv(line->socket, answer, sizeof answer, 0);
    if (got <= 0)
        return 0;
    if (got == (ssize_t)sizeof reply) {
        memcpy(&reply, answer, sizeof reply);
        if (request.kind == SG_CONTEXT_CREATE && reply.result == CT_DEVICE_OK) {
            line->contexts[dice(4)] = reply.a;
            line->streams[dice(4)] = reply.b;
        }
        if (request.kind == SG_STREAM_CREATE && reply.result == CT_DEVICE_OK)
            line->streams[dice(4)] = reply.a;
        if (request.kind == SG_EVENTS_CREATE && reply.result == CT_DEVICE_OK)
            line->events[dice(4)] = reply.batch[0];
        if (request.kind == SG_SHARE_MAKE && reply.result == CT_DEVICE_OK) {
            size_t place = dice(4);
            shares[place] = reply.a;
            tokens[place] = reply.b;
        }
    }
    return 1;
}

int main(int argc, char **argv)
{
    struct test_server server;
    struct line lines[3];
    int rounds = argc > 1 ? atoi(argv[1]) : 20000;
    state = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    test_server_start(&server, "t4");
    open_group(server.path);
    for (int i = 0; i < 3; i++)
        connect_anew(&lines[i], server.path);
    for (int i = 0; i < rounds; i++) {
        struct line *line = &lines[dice(3)];
        scribble(line);
        if (dice(8) == 0)
            suspend();
        if (!ask(line) || dice(atomic_load(&line->ring->fault) ? 10 : 500) == 0) {
            leave(line);
            connect_anew(line, server.path);
        }
    }
    for (int i = 0; i < 3; i++)
        leave(&lines[i]);
    /* A newcomer finds all memory free. */
    struct sg_request request = {.kind = SG_MEMORY_INFO};
    struct sg_reply reply;
    connect_anew(&lines[0], server.path);
    for (int tries = 0; tries < 1000; tries++) { /* the server may hear of the last death a moment later */
        EXPECT(send(lines[0].socket, &request, sizeof request, 0) == (ssize_t)sizeof request);
        EXPECT(recv(lines[0].socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
        if (reply.a == reply.b)
            break;
    }
    EXPECT_EQ(reply.a, reply.b);
    leave(&lines[0]);
    close(owner);
    test_server_stop(&server);
    return 0;
}
