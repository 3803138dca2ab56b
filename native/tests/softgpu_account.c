/* Tests of accounts: refused names, eviction of idle accounts, and sums of memory. */
#include "expect.h"
#include "softgpu/abi/cuda.h"
#include "softgpu/server/server.h"

#include <string.h>

static struct sg_server server;
static struct sg_client clients[4];

static void open_device(void)
{
    const struct ct_device_limits limits = {
        .clients = 4, .contexts = 4, .streams = 4, .events = 1, .ops = 16, .records = 1};
    size_t bytes = (ct_device_bytes(&limits) + 63) / 64 * 64;
    EXPECT_EQ(ct_device_init(aligned_alloc(64, bytes), bytes, ct_device_preset("v100"), &limits, 0, &server.device),
              CT_DEVICE_OK);
}

static uint32_t add_client(int index, const char *name)
{
    struct sg_client *client = &clients[index];
    memset(client, 0, sizeof *client);
    memcpy(client->account_name, name, strnlen(name, SG_ACCOUNT_BYTES));
    server.clients[index] = client;
    uint32_t error = sg_account_join(&server, index);
    if (!error)
        EXPECT_EQ(ct_device_client_add(server.device, 0, CT_GROUP_OWN, &client->model), CT_DEVICE_OK);
    return error;
}

static void remove_client(int index)
{
    ct_device_client_kill(server.device, ct_device_now(server.device), clients[index].model);
    sg_account_leave(&server, index);
    server.disconnected++;
}

static void take_memory(int index, uint64_t bytes)
{
    EXPECT_EQ(ct_device_client_take(server.device, clients[index].model, bytes), CT_DEVICE_OK);
    sg_account_update(&server, index);
}

static const struct sg_account *find_account(const char *name)
{
    for (int i = 0; i < SG_ACCOUNTS; i++)
        if (strcmp(server.accounts[i].name, name) == 0)
            return &server.accounts[i];
    return NULL;
}

static void check_names(void)
{
    char longest[SG_ACCOUNT_BYTES + 1];
    memset(longest, 'x', SG_ACCOUNT_BYTES);
    longest[SG_ACCOUNT_BYTES] = 0;
    EXPECT_EQ(add_client(0, longest), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add_client(0, "with space"), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add_client(0, "\"quoted\""), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add_client(0, "\xc3\xa4"), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add_client(0, ""), 0);
    EXPECT_EQ(clients[0].account, 0);
    remove_client(0);
    longest[SG_ACCOUNT_BYTES - 1] = 0;
    EXPECT_EQ(add_client(0, longest), 0);
    EXPECT(find_account(longest) != NULL);
    remove_client(0);
}

/* Creating a share does not change the sum even temporarily, because the peak would show it. */
static void check_sums(void)
{
    EXPECT_EQ(add_client(0, "a"), 0);
    EXPECT_EQ(add_client(1, "a"), 0);
    take_memory(0, 1000);
    take_memory(1, 500);
    EXPECT_EQ(find_account("a")->memory_bytes, 1500);
    clients[0].shared_bytes = 400;
    sg_account_share(&server, clients[0].account, 400);
    sg_account_update(&server, 0);
    EXPECT_EQ(find_account("a")->memory_bytes, 1500);
    EXPECT_EQ(find_account("a")->memory_peak_bytes, 1500);
    EXPECT_EQ(ct_device_client_park(server.device, clients[1].model), CT_DEVICE_OK);
    sg_account_update(&server, 1);
    EXPECT_EQ(find_account("a")->memory_bytes, 1000);
    EXPECT_EQ(ct_device_client_unpark(server.device, clients[1].model), CT_DEVICE_OK);
    sg_account_update(&server, 1);
    remove_client(0);
    EXPECT_EQ(find_account("a")->memory_bytes, 900);
    remove_client(1);
    EXPECT_EQ(find_account("a")->memory_bytes, 400);
    EXPECT_EQ(find_account("a")->clients, 0);
    sg_account_share(&server, (uint32_t)(find_account("a") - server.accounts) + 1, 0 - UINT64_C(400));
    EXPECT_EQ(find_account("a")->memory_bytes, 0);
    EXPECT_EQ(find_account("a")->memory_peak_bytes, 1500);
    EXPECT_EQ(ct_device_memory_free(server.device), ct_device_config(server.device)->memory_bytes);
}

/* The account that has been idle longest is evicted first; accounts with clients or memory stay. */
static void check_eviction(void)
{
    char name[SG_ACCOUNT_BYTES];
    EXPECT_EQ(add_client(3, "stays"), 0);
    EXPECT_EQ(add_client(2, "holds"), 0);
    uint32_t holds = clients[2].account;
    sg_account_share(&server, holds, 1);
    remove_client(2);
    for (int i = 0; i < 2 * SG_ACCOUNTS; i++) {
        snprintf(name, sizeof name, "n%d", i);
        EXPECT_EQ(add_client(0, name), 0);
        remove_client(0);
    }
    EXPECT(find_account("stays") && find_account("holds") && find_account(name));
    EXPECT(!find_account("a") && !find_account("n0"));
    int first = 2 * SG_ACCOUNTS - (SG_ACCOUNTS - 2);
    snprintf(name, sizeof name, "n%d", first);
    EXPECT(find_account(name) != NULL);
    snprintf(name, sizeof name, "n%d", first - 1);
    EXPECT(find_account(name) == NULL);
    for (int i = 0; i < SG_ACCOUNTS; i++)
        server.accounts[i].memory_bytes += server.accounts[i].memory_bytes == 0;
    EXPECT_EQ(add_client(0, "late"), CUDA_ERROR_OUT_OF_MEMORY);
}

int main(void)
{
    open_device();
    check_names();
    check_sums();
    check_eviction();
    free(server.device);
    return 0;
}
