/* A client that only writes nonsense is dropped in the end, and one beside it is not. */
#include "softgpu_server.h"

/* 0 when the server hung up. */
static int ask(struct test_line *line, uint32_t kind)
{
    struct sg_request request = {.kind = kind};
    struct sg_reply reply;
    return send(line->socket, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request &&
           recv(line->socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply;
}

static void leave(struct test_line *line)
{
    close(line->socket);
    munmap(line->ring, sizeof *line->ring);
}

int main(void)
{
    struct test_server server;
    test_server_start(&server, "t4");
    struct test_line bad = test_line_open(server.path), good = test_line_open(server.path);
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
