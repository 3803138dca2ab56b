/* A client that only writes nonsense is dropped in the end, and one beside it is not. */
#include "softgpu_server.h"

#include <sys/mman.h>

struct line {
    int socket;
    struct sg_ring *ring;
};

static struct line join(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct sg_request request = {.kind = SG_HELLO, .a = SG_WIRE_VERSION};
    struct sg_hello hello;
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec words = {&hello, sizeof hello};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int descriptors[2];
    struct line line = {.socket = socket(AF_UNIX, SOCK_SEQPACKET, 0)};
    strcpy(address.sun_path, path);
    EXPECT(connect(line.socket, (struct sockaddr *)&address, sizeof address) == 0);
    EXPECT(send(line.socket, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recvmsg(line.socket, &message, 0) == (ssize_t)sizeof hello);
    memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptors);
    line.ring = mmap(NULL, sizeof *line.ring, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[0], 0);
    EXPECT(line.ring != MAP_FAILED);
    close(descriptors[0]);
    close(descriptors[1]);
    return line;
}

/* 0 when the server hung up. */
static int ask(struct line *line, uint32_t kind)
{
    struct sg_request request = {.kind = kind};
    struct sg_reply reply;
    return send(line->socket, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request &&
           recv(line->socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply;
}

static void leave(struct line *line)
{
    close(line->socket);
    munmap(line->ring, sizeof *line->ring);
}

int main(void)
{
    struct test_server server;
    test_server_start(&server, "t4");
    struct line bad = join(server.path), good = join(server.path);
    uint64_t slots = 0;
    for (int i = 0; i < SG_RING_SLOTS; i++)
        bad.ring->slots[i].at_ns = UINT64_MAX; /* a time that never comes */
    while (slots < 2 * SG_NONSENSE && ask(&bad, SG_MEMORY_INFO)) {
        slots += SG_RING_SLOTS;
        atomic_store(&bad.ring->tail, slots);
    }
    EXPECT(slots > SG_NONSENSE && slots < 2 * SG_NONSENSE);
    EXPECT(ask(&good, SG_MEMORY_INFO));
    leave(&bad);
    leave(&good);
    test_server_stop(&server);
    return 0;
}
