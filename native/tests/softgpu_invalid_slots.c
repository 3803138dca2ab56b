/* Test that a client which only writes invalid slots is dropped and that other clients are not affected. */
#include "softgpu_server.h"

/* Sends a request and receives the reply; returns 0 if the server closed the connection. */
static int call(struct test_client *client, uint32_t kind)
{
    struct sg_request request = {.kind = kind};
    struct sg_reply reply;
    return send(client->socket, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request &&
           recv(client->socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply;
}

static void close_client(struct test_client *client)
{
    close(client->socket);
    munmap(client->ring, sizeof *client->ring);
}

int main(void)
{
    struct test_server server;
    test_server_start(&server, "t4");
    struct test_client bad = test_client_open(server.path), good = test_client_open(server.path);
    uint64_t slots = 0;
    for (int i = 0; i < SG_RING_SLOTS; i++)
        bad.ring->slots[i].at_ns = UINT64_MAX; /* an instant that is never reached */
    while (slots < 2 * SG_INVALID_SLOT_LIMIT && call(&bad, SG_MEMORY_INFO)) {
        slots += SG_RING_SLOTS;
        atomic_store(&bad.ring->tail, slots);
    }
    EXPECT(slots > SG_INVALID_SLOT_LIMIT && slots < 2 * SG_INVALID_SLOT_LIMIT);
    EXPECT(call(&good, SG_MEMORY_INFO));
    close_client(&bad);
    close_client(&good);
    test_server_stop(&server);
    return 0;
}
