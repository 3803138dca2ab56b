/* MPS groups in the device server: who may join with which limits, what ends whom, and nonsense from an MPS server. */
#include "softgpu_server.h"

#include "softgpu/abi.h"

enum { SMS = 40 }; /* of a T4 */

static int line_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int line = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, path);
    EXPECT(connect(line, (struct sockaddr *)&address, sizeof address) == 0);
    return line;
}

static struct sg_reply ask(int line, uint32_t kind, uint64_t a, uint64_t b, uint64_t c)
{
    struct sg_request request = {kind, 0, a, b, c};
    struct sg_reply reply;
    EXPECT(send(line, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recv(line, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    return reply;
}

struct member {
    int line;
    struct sg_ring *ring;
    struct sg_hello hello;
};

static struct member join(const char *path, uint64_t group)
{
    struct member made = {.line = line_to(path)};
    struct sg_request request = {.kind = SG_HELLO, .a = SG_WIRE_VERSION, .b = group};
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec words = {&made.hello, sizeof made.hello};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int descriptors[2];
    EXPECT(send(made.line, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recvmsg(made.line, &message, 0) == (ssize_t)sizeof made.hello);
    if (made.hello.result != CT_DEVICE_OK)
        return made;
    memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptors);
    made.ring = mmap(NULL, sizeof *made.ring, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[0], 0);
    EXPECT(made.ring != MAP_FAILED);
    close(descriptors[0]);
    close(descriptors[1]);
    return made;
}

static void leave(struct member *member)
{
    if (member->ring)
        munmap(member->ring, sizeof *member->ring);
    close(member->line);
}

/* The server hears of a closed line a moment later. */
static void until_members(int owner, uint64_t count)
{
    while (ask(owner, SG_GROUP_STATE, 0, 0, 0).a != count)
        ;
}

static void joining(const char *path)
{
    int owner = line_to(path);
    struct sg_reply opened = ask(owner, SG_GROUP_OPEN, 0, 0, 0);
    EXPECT_EQ(opened.result, CT_DEVICE_OK);
    EXPECT_EQ(opened.b, SMS);
    struct member stranger = join(path, opened.a); /* not admitted */
    EXPECT_EQ(stranger.hello.result, SG_REFUSED);
    EXPECT_EQ(stranger.hello.refused, CUDA_ERROR_MPS_CONNECTION_FAILED);
    leave(&stranger);
    EXPECT_EQ(ask(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 4096, 12).result, CT_DEVICE_OK);
    struct member member = join(path, opened.a);
    EXPECT_EQ(member.hello.result, CT_DEVICE_OK);
    EXPECT_EQ(member.hello.sm_cap, 12);
    struct member again = join(path, opened.a); /* an admission is for once */
    EXPECT_EQ(again.hello.refused, CUDA_ERROR_MPS_CONNECTION_FAILED);
    leave(&again);
    struct sg_reply context = ask(member.line, SG_CONTEXT_CREATE, 20, 0, 0);
    EXPECT_EQ(context.result, CT_DEVICE_OK);
    EXPECT_EQ(context.batch[0], 12);
    EXPECT_EQ(ask(member.line, SG_CONTEXT_CREATE, 5, 0, 0).batch[0], 5);
    EXPECT_EQ(ask(member.line, SG_CONTEXT_CREATE, UINT64_MAX, 0, 0).result, CT_DEVICE_INVALID);
    EXPECT_EQ(ask(member.line, SG_MEMORY_TAKE, context.a, 4096, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(ask(member.line, SG_MEMORY_TAKE, context.a, 1, 0).result, CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(ask(member.line, SG_MEMORY_TAKE, context.a, UINT64_MAX, 0).result, CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(ask(member.line, SG_MEMORY_GIVE, context.a, 4096, 0).result, CT_DEVICE_OK);
    struct sg_reply state = ask(owner, SG_GROUP_STATE, 0, 0, 0);
    EXPECT_EQ(state.a, 1);
    EXPECT_EQ(state.b, 0);
    EXPECT_EQ(state.batch[0], (uint32_t)getpid());
    EXPECT_EQ(ask(owner, SG_GROUP_STATE, UINT64_MAX, 0, 0).a, 1);
    EXPECT_EQ(ask(owner, SG_GROUP_STRIKE, 1, CUDA_ERROR_MPS_CLIENT_TERMINATED, 0).a, 0);
    EXPECT_EQ(ask(owner, SG_GROUP_STRIKE, (uint64_t)getpid(), CUDA_ERROR_MPS_CLIENT_TERMINATED, 0).a, 1);
    EXPECT_EQ(atomic_load(&member.ring->fault), CUDA_ERROR_MPS_CLIENT_TERMINATED);
    EXPECT_EQ(ask(owner, SG_GROUP_STATE, 0, 0, 0).b, 0); /* that refuses nobody */
    leave(&member);
    until_members(owner, 0);
    close(owner);
}

static void ending(const char *path)
{
    int owner = line_to(path);
    uint64_t group = ask(owner, SG_GROUP_OPEN, 0, 0, 0).a;
    struct member members[2];
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(ask(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 0, 0).result, CT_DEVICE_OK);
        members[i] = join(path, group);
    }
    EXPECT_EQ(ask(members[0].line, SG_CONTEXT_CREATE, 0, 0, 0).result, CT_DEVICE_OK);
    /* A fault of one: it alone has a context, so it alone is struck; its MPS server hears of it unasked. */
    EXPECT_EQ(ask(members[0].line, SG_FAULT, SG_FAULT_ILLEGAL_ADDRESS, SG_FAULT_SELF, 0).a, 1);
    struct sg_reply news;
    EXPECT(recv(owner, &news, sizeof news, 0) == (ssize_t)sizeof news);
    EXPECT_EQ(news.behind, SG_NEWS);
    EXPECT_EQ(news.a, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(ask(owner, SG_GROUP_STATE, 0, 0, 0).b, 1);
    EXPECT_EQ(ask(members[1].line, SG_CONTEXT_CREATE, 0, 0, 0).a, CUDA_ERROR_MPS_SERVER_NOT_READY);
    EXPECT_EQ(ask(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 0, 0).result, CT_DEVICE_OK);
    struct member late = join(path, group);
    EXPECT_EQ(late.hello.refused, CUDA_ERROR_MPS_SERVER_NOT_READY);
    leave(&late);
    leave(&members[0]);
    until_members(owner, 1);
    EXPECT_EQ(ask(owner, SG_GROUP_STATE, 0, 0, 0).b, 0);
    EXPECT_EQ(ask(members[1].line, SG_CONTEXT_CREATE, 0, 0, 0).result, CT_DEVICE_OK);
    close(owner);
    while (!atomic_load(&members[1].ring->fault))
        ;
    EXPECT_EQ(atomic_load(&members[1].ring->fault), CUDA_ERROR_MPS_RPC_FAILURE);
    leave(&members[1]);
}

static void modes(const char *path)
{
    int asker = line_to(path), owner = line_to(path);
    EXPECT_EQ(ask(asker, SG_COMPUTE_MODE, 1, 1, 0).result, CT_DEVICE_INVALID);
    EXPECT_EQ(ask(asker, SG_COMPUTE_MODE, 1, SG_MODE_EXCLUSIVE_PROCESS, 0).a, SG_MODE_EXCLUSIVE_PROCESS);
    uint64_t group = ask(owner, SG_GROUP_OPEN, 0, 0, 0).a;
    int second = line_to(path);
    EXPECT_EQ(ask(second, SG_GROUP_OPEN, 0, 0, 0).result, SG_REFUSED);
    EXPECT_EQ(ask(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 0, 0).result, CT_DEVICE_OK);
    struct member inside = join(path, group), outside = join(path, 0);
    EXPECT_EQ(ask(inside.line, SG_CONTEXT_CREATE, 0, 0, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(ask(outside.line, SG_CONTEXT_CREATE, 0, 0, 0).a, CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(ask(asker, SG_COMPUTE_MODE, 1, SG_MODE_PROHIBITED, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(ask(inside.line, SG_CONTEXT_CREATE, 0, 0, 0).a, CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(ask(asker, SG_COMPUTE_MODE, 1, SG_MODE_DEFAULT, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(ask(outside.line, SG_CONTEXT_CREATE, 0, 0, 0).result, CT_DEVICE_OK);
    leave(&inside);
    leave(&outside);
    close(owner);
    close(second);
    close(asker);
}

/* Whoever outlives the owner of what it holds gets it into its books, beyond its limit: it is on the device anyway. */
static void heirs(const char *path)
{
    enum { LIMIT = 4096, BYTES = 4 * LIMIT };
    int owner = line_to(path);
    uint64_t group = ask(owner, SG_GROUP_OPEN, 0, 0, 0).a;
    EXPECT_EQ(ask(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), LIMIT, 0).result, CT_DEVICE_OK);
    struct member heir = join(path, group), maker = join(path, 0);
    uint64_t free_bytes = ask(heir.line, SG_MEMORY_INFO, 0, 0, 0).a;
    EXPECT_EQ(ask(maker.line, SG_CLIENT_TAKE, BYTES, 0, 0).result, CT_DEVICE_OK);
    struct sg_reply share = ask(maker.line, SG_SHARE_MAKE, BYTES, BYTES, SG_SHARE_PHYSICAL);
    EXPECT_EQ(share.result, CT_DEVICE_OK);
    EXPECT_EQ(ask(heir.line, SG_SHARE_OPEN, share.a, share.b, SG_SHARE_PHYSICAL).result, CT_DEVICE_OK);
    leave(&maker);
    while (!ask(heir.line, SG_SHARE_OPEN, share.a, 0, SG_SHARE_PHYSICAL).c) /* until it is the heir's own */
        ;
    EXPECT_EQ(ask(heir.line, SG_MEMORY_INFO, 0, 0, 0).a, free_bytes - BYTES);
    EXPECT_EQ(ask(heir.line, SG_CLIENT_TAKE, 1, 0, 0).result, CT_DEVICE_NO_MEMORY);
    EXPECT_EQ(ask(heir.line, SG_CLIENT_GIVE, 1, 0, 0).result, CT_DEVICE_INVALID); /* the share has it */
    EXPECT_EQ(ask(heir.line, SG_SHARE_CLOSE, share.a, 0, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(ask(heir.line, SG_MEMORY_INFO, 0, 0, 0).a, free_bytes);
    EXPECT_EQ(ask(heir.line, SG_CLIENT_TAKE, LIMIT, 0, 0).result, CT_DEVICE_OK);
    leave(&heir);
    until_members(owner, 0);
    close(owner);
}

/* A client without a context is nobody's victim, but its group is no more. */
static void survivors(const char *path)
{
    int owner = line_to(path), next = line_to(path);
    uint64_t group = ask(owner, SG_GROUP_OPEN, 0, 0, 0).a;
    EXPECT_EQ(ask(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 0, 0).result, CT_DEVICE_OK);
    struct member idle = join(path, group);
    EXPECT_EQ(ask(next, SG_COMPUTE_MODE, 1, SG_MODE_EXCLUSIVE_PROCESS, 0).result, CT_DEVICE_OK);
    close(owner);
    while (ask(next, SG_GROUP_OPEN, 0, 0, 0).result != CT_DEVICE_OK) /* until the old group has ended */
        ;
    EXPECT_EQ(ask(next, SG_COMPUTE_MODE, 1, SG_MODE_DEFAULT, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(ask(idle.line, SG_CONTEXT_CREATE, 0, 0, 0).a, CUDA_ERROR_MPS_RPC_FAILURE);
    leave(&idle);
    close(next);
}

static uint64_t last_xid(int line)
{
    struct sg_reply told = {0};
    uint64_t last;
    do {
        last = told.b;
        told = ask(line, SG_XID_NEXT, last, 0, 0);
    } while (told.result == CT_DEVICE_OK);
    return last;
}

/* A kernel that hangs goes with its context: nothing is left that could time out. Nobody without a context faults.
 * Gives whether the context went before the kernel timed out: else this shows nothing. */
static int is_over(const char *path, int in_group, uint64_t patience_ns)
{
    int owner = line_to(path);
    uint64_t group = ask(owner, SG_GROUP_OPEN, 0, 0, 0).a;
    EXPECT_EQ(ask(owner, SG_GROUP_ADMIT, (uint64_t)getpid(), 0, 0).result, CT_DEVICE_OK);
    struct member member = join(path, in_group ? group : 0);
    uint64_t before = last_xid(member.line);
    struct sg_reply context = ask(member.line, SG_CONTEXT_CREATE, 0, 0, 0);
    EXPECT_EQ(ask(member.line, SG_FAULT, SG_FAULT_HANG, SG_FAULT_SELF | UINT64_C(1) << 32, patience_ns).a, 1);
    uint64_t begun_ns = sg_now_ns();
    member.ring->slots[0] = (struct sg_slot){.at_ns = sg_now_ns(), .kind = SG_SLOT_KERNEL, .stream = (uint32_t)context.b,
                                             .kernel = {.blocks = 1, .block_ns = 1, .threads_per_block = 32}};
    atomic_store(&member.ring->tail, 1);
    struct sg_reply destroyed = ask(member.line, SG_CONTEXT_DESTROY, context.a, 0, 0);
    if (sg_now_ns() - begun_ns >= patience_ns) {
        leave(&member);
        close(owner);
        return 0;
    }
    EXPECT_EQ(destroyed.result, CT_DEVICE_OK);
    uint64_t due_ns = sg_now_ns() + 2 * patience_ns;
    while (sg_now_ns() < due_ns || ask(member.line, SG_MEMORY_INFO, 0, 0, 0).result != CT_DEVICE_OK)
        ;
    EXPECT_EQ(ask(member.line, SG_MEMORY_INFO, 0, 0, 0).result, CT_DEVICE_OK);
    EXPECT_EQ(atomic_load(&member.ring->fault), 0);
    if (in_group)
        EXPECT_EQ(ask(member.line, SG_FAULT, SG_FAULT_ILLEGAL_ADDRESS, SG_FAULT_SELF, 0).a, 0);
    EXPECT_EQ(last_xid(member.line), before);
    leave(&member);
    close(owner);
    return 1;
}

static void over(const char *path, int in_group)
{
    uint64_t patience_ns = 1000000;
    while (!is_over(path, in_group, patience_ns))
        patience_ns *= 2;
}

/* An MPS server that says anything at all: it is answered or dropped, and the next one finds everything in order. */
static void nonsense(const char *path)
{
    static const uint64_t numbers[] = {0, 1, 2, 40, 41, UINT32_MAX, UINT64_C(1) << 32, INT64_MAX, UINT64_MAX};
    uint64_t dice = 88172645463325252;
    int owner = -1;
    for (int i = 0; i < 5000; i++) {
        struct sg_request request = {.kind = SG_GROUP_OPEN};
        uint64_t *words[] = {&request.a, &request.b, &request.c};
        struct sg_reply reply;
        if (owner < 0)
            owner = line_to(path);
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        if (dice % 7)
            request.kind = SG_GROUP_OPEN + (uint32_t)(dice >> 8) % 7;
        for (int word = 0; word < 3; word++)
            *words[word] = (dice >> (16 + 4 * word)) % 3 ? numbers[(dice >> (28 + 8 * word)) % 9] : (uint64_t)getpid();
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
    joining(server.path);
    ending(server.path);
    modes(server.path);
    heirs(server.path);
    survivors(server.path);
    over(server.path, 0);
    over(server.path, 1);
    nonsense(server.path);
    joining(server.path);
    test_server_stop(&server);
    return 0;
}
