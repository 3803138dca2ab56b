/* Which account a process belongs to, and how much device memory each has now and had at most. */
#include "softgpu/server/account.h"
#include "softgpu/abi.h"
#include "softgpu/server/server.h"

#include <string.h>

static struct sg_account *account_at(struct sg_server *server, uint32_t account)
{
    return account ? &server->accounts[account - 1] : NULL;
}

/* What needs no quotes anywhere. */
static int is_name(const char *name)
{
    size_t length = strnlen(name, SG_ACCOUNT_BYTES);
    return length < SG_ACCOUNT_BYTES && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                                     "-_.:@/") == length;
}

/* The account of that name, or a place for it: a free one, or that of the account which has been idle for longest. */
static struct sg_account *place_for(struct sg_server *server, const char *name)
{
    struct sg_account *place = NULL;
    for (int i = 0; i < SG_ACCOUNTS; i++) {
        struct sg_account *one = &server->accounts[i];
        if (strcmp(one->name, name) == 0)
            return one;
        if (one->clients || one->memory_bytes)
            continue;
        if (!place || (place->name[0] && (!one->name[0] || one->left < place->left)))
            place = one;
    }
    if (!place)
        return NULL;
    *place = (struct sg_account){0};
    strcpy(place->name, name);
    return place;
}

uint32_t sg_account_join(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    if (!is_name(client->account_name))
        return CUDA_ERROR_INVALID_VALUE;
    if (!client->account_name[0])
        return 0;
    struct sg_account *account = place_for(server, client->account_name);
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

void sg_account_mark(struct sg_server *server, uint32_t account)
{
    struct sg_account *one = account_at(server, account);
    if (one && one->memory_bytes > one->memory_peak_bytes)
        one->memory_peak_bytes = one->memory_bytes;
}

/* While a client's memory is off the device, what it has in shares is too; such a client has none. */
static void book(struct sg_server *server, struct sg_client *client, uint64_t bytes)
{
    sg_account_share(server, client->account, bytes - client->accounted_bytes);
    client->accounted_bytes = bytes;
    sg_account_mark(server, client->account);
}

void sg_account_settle(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    if (client->account)
        book(server, client, ct_device_client_memory(server->device, client->model) - client->shared_bytes);
}

void sg_account_leave(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    if (!client->account)
        return;
    book(server, client, 0);
    account_at(server, client->account)->clients--;
    account_at(server, client->account)->left = server->died;
    client->account = 0;
}
