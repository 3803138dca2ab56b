/* Test that a client which shares as much as it can leaves a part for every other client. */
#include "softgpu_server.h"

static struct sg_reply call(const struct test_client *client, uint32_t kind, uint64_t a, uint64_t b, uint64_t c)
{
    struct sg_request request = {kind, 0, a, b, c};
    struct sg_reply reply;
    EXPECT(send(client->socket, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recv(client->socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    return reply;
}

/* Return how many events the client could share before it was refused, out of one batch more than the limit. */
static uint64_t share_events(const struct test_client *client)
{
    uint64_t context = call(client, SG_CONTEXT_CREATE, 0, 0, 0).a, shared = 0;
    for (int batch = 0; batch <= SG_SHARED_EVENTS / SG_EVENT_BATCH; batch++) {
        struct sg_reply events = call(client, SG_EVENTS_CREATE, context, 0, 0);
        EXPECT_EQ(events.a, SG_EVENT_BATCH);
        for (int i = 0; i < SG_EVENT_BATCH; i++) {
            if (call(client, SG_EVENT_SHARE, events.batch[i], 0, 0).result != CT_DEVICE_OK)
                return shared;
            shared++;
        }
    }
    return shared;
}

static uint64_t share_memory(const struct test_client *client)
{
    uint64_t shared = 0;
    while (call(client, SG_SHARE_MAKE, 0, 4096, SG_SHARE_PHYSICAL).result == CT_DEVICE_OK)
        shared++;
    return shared;
}

int main(void)
{
    struct test_server server;
    test_server_start(&server, "t4");
    for (int round = 0; round < 2; round++) { /* the second round reuses what the first released */
        struct test_client greedy = test_client_open(server.path), late = test_client_open(server.path);
        EXPECT_EQ(share_events(&greedy), SG_SHARED_EVENTS - SG_SHARED_EVENTS / SG_RESERVED_PART);
        EXPECT_EQ(share_events(&late), SG_SHARED_EVENTS / SG_RESERVED_PART / SG_CLIENTS);
        /* When descriptors run out first, the share is smaller and no client can make another one. */
        uint64_t share_count = share_memory(&greedy);
        if (share_count == SG_SHARES - SG_SHARES / SG_RESERVED_PART)
            EXPECT_EQ(share_memory(&late), SG_SHARES / SG_RESERVED_PART / SG_CLIENTS);
        struct test_client *clients[] = {&greedy, &late};
        for (int i = 0; i < 2; i++) {
            close(clients[i]->socket);
            munmap(clients[i]->ring, sizeof *clients[i]->ring);
        }
    }
    test_server_stop(&server);
    return 0;
}
