/* A client that shares all it can leaves every other one something to share. */
#include "softgpu_server.h"

static struct sg_reply ask(const struct test_line *line, uint32_t kind, uint64_t a, uint64_t b, uint64_t c)
{
    struct sg_request request = {kind, 0, a, b, c};
    struct sg_reply reply;
    EXPECT(send(line->socket, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recv(line->socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    return reply;
}

/* How many events it could share before it was refused, out of as many as there are places and one batch more. */
static uint64_t share_events(const struct test_line *line)
{
    uint64_t context = ask(line, SG_CONTEXT_CREATE, 0, 0, 0).a, shared = 0;
    for (int batch = 0; batch <= SG_SHARED_EVENTS / SG_EVENT_BATCH; batch++) {
        struct sg_reply made = ask(line, SG_EVENTS_CREATE, context, 0, 0);
        EXPECT_EQ(made.a, SG_EVENT_BATCH);
        for (int i = 0; i < SG_EVENT_BATCH; i++) {
            if (ask(line, SG_EVENT_SHARE, made.batch[i], 0, 0).result != CT_DEVICE_OK)
                return shared;
            shared++;
        }
    }
    return shared;
}

static uint64_t share_memory(const struct test_line *line)
{
    uint64_t shared = 0;
    while (ask(line, SG_SHARE_MAKE, 0, 4096, SG_SHARE_PHYSICAL).result == CT_DEVICE_OK)
        shared++;
    return shared;
}

int main(void)
{
    struct test_server server;
    test_server_start(&server, "t4");
    for (int round = 0; round < 2; round++) { /* the second finds what the first gave back */
        struct test_line greedy = test_line_open(server.path), late = test_line_open(server.path);
        EXPECT_EQ(share_events(&greedy), SG_SHARED_EVENTS - SG_SHARED_EVENTS / SG_KEPT_PART);
        EXPECT_EQ(share_events(&late), SG_SHARED_EVENTS / SG_KEPT_PART / SG_CLIENTS);
        uint64_t taken = share_memory(&greedy); /* fewer where descriptors are scarce: then there are none for anybody */
        if (taken == SG_SHARES - SG_SHARES / SG_KEPT_PART)
            EXPECT_EQ(share_memory(&late), SG_SHARES / SG_KEPT_PART / SG_CLIENTS);
        struct test_line *lines[] = {&greedy, &late};
        for (int i = 0; i < 2; i++) {
            close(lines[i]->socket);
            munmap(lines[i]->ring, sizeof *lines[i]->ring);
        }
    }
    test_server_stop(&server);
    return 0;
}
