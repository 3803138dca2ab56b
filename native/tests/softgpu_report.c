/* Test that the report is complete with the maximum number of clients, delays and accounts. */
#include "expect.h"
#include "softgpu/server/server.h"

#include <string.h>

static struct sg_server server;
static struct sg_client clients[SG_CLIENTS];

static void open_device(void)
{
    const struct ct_device_limits limits = {
        .clients = SG_CLIENTS, .contexts = SG_CLIENTS, .streams = SG_CLIENTS, .events = 1, .ops = 256, .records = 1};
    size_t bytes = (ct_device_bytes(&limits) + 63) / 64 * 64;
    EXPECT_EQ(ct_device_init(aligned_alloc(64, bytes), bytes, ct_device_preset("v100"), &limits, 0, &server.device),
              CT_DEVICE_OK);
}

/* A kernel that runs for many time slices, so that every client delays every other. */
static void add_client(int index)
{
    const struct ct_kernel kernel = {.blocks = 80, .block_ns = 1000000000, .threads_per_block = 256};
    uint32_t context, stream;
    uint64_t op;
    struct sg_client *client = &clients[index];
    client->is_registered = 1;
    client->pid = 4194304 - index;
    memset(client->account_name, 'x', SG_ACCOUNT_BYTES - 1);
    EXPECT_EQ(ct_device_client_add(server.device, 0, CT_GROUP_OWN, &client->model), CT_DEVICE_OK);
    EXPECT_EQ(ct_device_context_create(server.device, 0, client->model, 0, &context), CT_DEVICE_OK);
    EXPECT_EQ(ct_device_stream_create(server.device, 0, context, CT_STREAM_BLOCKING, 0, &stream), CT_DEVICE_OK);
    EXPECT_EQ(ct_device_launch(server.device, 0, stream, &kernel, 0, &op), CT_DEVICE_OK);
    server.clients[index] = client;
}

static int count_occurrences(const char *text, const char *word)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)); at++)
        count++;
    return count;
}

int main(void)
{
    open_device();
    for (int i = 0; i < SG_CLIENTS; i++)
        add_client(i);
    for (int i = 0; i < SG_NAME_COUNT; i++)
        server.unsupported[i] = UINT64_MAX;
    for (int i = 0; i < SG_ACCOUNTS; i++) {
        server.accounts[i] = (struct sg_account){
            .clients = UINT32_MAX, .connected = UINT64_MAX, .memory_bytes = UINT64_MAX,
            .memory_peak_bytes = UINT64_MAX};
        memset(server.accounts[i].name, 'x', SG_ACCOUNT_BYTES - 1);
    }
    ct_device_advance(server.device, UINT64_C(10000000000));
    size_t bytes = sg_report(&server, server.report, sizeof server.report);
    EXPECT(bytes < sizeof server.report - 1);
    EXPECT(strcmp(server.report + bytes - 2, "}}") == 0);
    EXPECT_EQ(count_occurrences(server.report, "\"delay_ns\":"), SG_CLIENTS * (SG_CLIENTS - 1));
    EXPECT_EQ(count_occurrences(server.report, "\"connected\":"), SG_ACCOUNTS + 1);
    free(server.device);
    return 0;
}
