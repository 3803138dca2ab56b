/* Accounts: membership of clients, and current and peak device memory. */
#include "softgpu/server/account.h"
#include "softgpu/abi/cuda.h"
#include "softgpu/server/server.h"

#include <string.h>

static struct sg_account *account_at(struct sg_server *server, uint32_t account)
{
    return account ? &server->accounts[account - 1] : NULL;
}

/* Accept only characters that need no quoting anywhere. */
static int is_name(const char *name)
{
    size_t length = strnlen(name, SG_ACCOUNT_BYTES);
    return length < SG_ACCOUNT_BYTES && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                                     "-_.:@/") == length;
}

/* Find the account of that name or claim an entry: a free one, or that of the account that has been idle longest. */
static struct sg_account *find_or_claim(struct sg_server *server, const char *name)
{
    struct sg_account *entry = NULL;
    for (int i = 0; i < SG_ACCOUNTS; i++) {
        struct sg_account *one = &server->accounts[i];
        if (strcmp(one->name, name) == 0)
            return one;
        if (one->clients || one->memory_bytes)
            continue;
        if (!entry || (entry->name[0] && (!one->name[0] || one->idle_since < entry->idle_since)))
            entry = one;
    }
    if (!entry)
        return NULL;
    *entry = (struct sg_account){0};
    strcpy(entry->name, name);
    return entry;
}

uint32_t sg_account_join(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    if (!is_name(client->account_name))
        return CUDA_ERROR_INVALID_VALUE;
    if (!client->account_name[0])
        return 0;
    struct sg_account *account = find_or_claim(server, client->account_name);
    if (!account)
        return CUDA_ERROR_OUT_OF_MEMORY;
    account->clients++;
    account->connected++;
    client->account = (uint32_t)(account - server->accounts) + 1;
    return 0;
}

void sg_account_share(struct sg_server *server, uint32_t account, uint64_t more_bytes)
{
    if (account)
        account_at(server, account)->memory_bytes += more_bytes;
}

void sg_account_left_share(struct sg_server *server, uint32_t account, uint64_t more_bytes)
{
    if (account)
        account_at(server, account)->left_bytes += more_bytes;
}

void sg_account_update_peak(struct sg_server *server, uint32_t account)
{
    struct sg_account *one = account_at(server, account);
    if (one && one->memory_bytes > one->memory_peak_bytes)
        one->memory_peak_bytes = one->memory_bytes;
    if (one && one->memory_bytes - one->left_bytes > one->kept_peak_bytes)
        one->kept_peak_bytes = one->memory_bytes - one->left_bytes;
}

/* A client whose memory is off the device has no shares, so the difference is exact. */
static void charge(struct sg_server *server, struct sg_client *client, uint64_t bytes)
{
    sg_account_share(server, client->account, bytes - client->accounted_bytes);
    client->accounted_bytes = bytes;
    sg_account_update_peak(server, client->account);
}

void sg_account_update(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    if (client->account)
        charge(server, client, ct_device_client_memory(server->device, client->model) - client->shared_bytes);
}

void sg_account_leave(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    if (!client->account)
        return;
    charge(server, client, 0);
    account_at(server, client->account)->clients--;
    account_at(server, client->account)->idle_since = server->disconnected;
    client->account = 0;
}
