/* Objects that outlive their creator: memory without a context, shares and shared events. */
#define _GNU_SOURCE
#include "softgpu/server/server.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

enum { UNIT = 2 << 20, DESCRIPTORS = SG_SHARES + 4 * SG_CONNECTIONS };

/* Raise the limit of open files, because each share keeps a descriptor open. */
void sg_share_start(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= DESCRIPTORS)
        return;
    limit.rlim_cur = limit.rlim_max < DESCRIPTORS ? limit.rlim_max : DESCRIPTORS;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Charge memory that is on the device already and only changes its owner. No limit applies. */
static int client_adopt(struct sg_server *server, int index, uint64_t bytes)
{
    struct sg_client *client = server->clients[index];
    int result = ct_device_client_take(server->device, client->model, bytes);
    if (result == CT_DEVICE_OK)
        client->own_bytes += bytes;
    return result;
}

static int client_take(struct sg_server *server, int index, uint64_t bytes)
{
    return sg_group_within_limit(server, index, bytes) ? client_adopt(server, index, bytes) : CT_DEVICE_NO_MEMORY;
}

/* Memory in shares is released only through them. */
static int client_give(struct sg_server *server, int index, uint64_t bytes)
{
    struct sg_client *client = server->clients[index];
    if (bytes > client->own_bytes - client->shared_bytes)
        return CT_DEVICE_INVALID;
    client->own_bytes -= bytes;
    return ct_device_client_give(server->device, client->model, bytes);
}

static struct sg_share *share_of(struct sg_server *server, uint64_t id)
{
    struct sg_share *share = &server->shares[id % SG_SHARES];
    return id && share->id == id ? share : NULL;
}

static struct sg_share *find_free(struct sg_server *server, int index)
{
    struct sg_share *entry = NULL;
    int own = 0, used = 0;
    for (int i = 0; i < SG_SHARES; i++) {
        if (!server->shares[i].id) {
            entry = entry ? entry : &server->shares[i];
            continue;
        }
        used++;
        own += server->shares[i].owner == index;
    }
    /* As with handles, a part is reserved for other clients. */
    int reserved = SG_SHARES / SG_RESERVED_PART;
    return own < reserved / SG_CLIENTS || used < SG_SHARES - reserved ? entry : NULL;
}

/* The file's name contains the share's token, so that only processes that received the descriptor can open the
 * share. */
static int make_file(struct sg_server *server, const struct sg_share *share)
{
    char name[128], *end = name + snprintf(name, sizeof name, "softgpu:");
    for (int i = 0; i < 16; i++)
        end += sprintf(end, "%02x", server->uuid[i]);
    sprintf(end, ":%" PRIx64 ":%" PRIx64, share->id, share->token);
    int descriptor = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor >= 0 && ftruncate(descriptor, (off_t)share->file_bytes) == 0 &&
        fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return descriptor;
    if (descriptor >= 0)
        close(descriptor);
    return -1;
}

/* Take the bytes from the client's own memory or from one of its contexts. */
static int take_over(struct sg_server *server, int index, uint32_t context, uint64_t bytes)
{
    struct sg_client *client = server->clients[index];
    if (!context)
        return bytes <= client->own_bytes - client->shared_bytes ? CT_DEVICE_OK : CT_DEVICE_INVALID;
    if (!sg_owns(server->contexts, context, index))
        return CT_DEVICE_STALE;
    int result = ct_device_memory_give(server->device, context, bytes);
    return result == CT_DEVICE_OK ? client_adopt(server, index, bytes) : result;
}

static int share_make(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply,
                      int *descriptor)
{
    struct sg_client *client = server->clients[index];
    uint64_t max_bytes = ct_device_config(server->device)->memory_bytes + UNIT;
    uint32_t kind = (uint32_t)request->c, context = (uint32_t)(request->c >> 32);
    struct sg_share *share = find_free(server, index);
    if (!request->b || request->b > max_bytes || request->a > max_bytes || kind < SG_SHARE_ALLOCATION ||
        kind > SG_SHARE_HOST_POOL)
        return CT_DEVICE_INVALID;
    if (!share)
        return CT_DEVICE_FULL;
    uint64_t id = ++server->share_serial * SG_SHARES + (uint64_t)(share - server->shares);
    struct sg_share made = {.id = id, .bytes = request->a, .file_bytes = request->b, .kind = (int)kind,
                            .owner = index, .account = client->account};
    made.holds[index] = 1;
    if (getrandom(&made.token, sizeof made.token, 0) != sizeof made.token)
        return CT_DEVICE_FULL;
    made.token |= 1;
    made.descriptor = make_file(server, &made);
    if (made.descriptor < 0)
        return CT_DEVICE_FULL;
    int result = take_over(server, index, context, made.bytes);
    if (result != CT_DEVICE_OK) {
        close(made.descriptor);
        return result;
    }
    client->shared_bytes += made.bytes;
    sg_account_share(server, made.account, made.bytes);
    *share = made;
    reply->a = made.id;
    reply->b = made.token;
    *descriptor = made.descriptor;
    return CT_DEVICE_OK;
}

/* Change the account, and the part that only others hold. */
static void account_add(struct sg_server *server, const struct sg_share *share, uint64_t more_bytes)
{
    sg_account_share(server, share->account, more_bytes);
    if (share->is_left)
        sg_account_left_share(server, share->account, more_bytes);
}

/* Called after a change of its holders. */
static void account_update(struct sg_server *server, struct sg_share *share)
{
    int is_left = 1;
    for (int i = 0; i < SG_CONNECTIONS; i++)
        if (share->holds[i] && server->clients[i] && server->clients[i]->account == share->account)
            is_left = 0;
    if (is_left == share->is_left)
        return;
    sg_account_left_share(server, share->account, is_left ? share->bytes : 0 - share->bytes);
    share->is_left = is_left;
    sg_account_update_peak(server, share->account);
}

static int share_open(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply,
                      int *descriptor)
{
    struct sg_share *share = share_of(server, request->a);
    if (!share || share->kind != (int)request->c ||
        (request->b ? request->b != share->token : share->holds[index] == 0))
        return CT_DEVICE_STALE;
    if (request->b && share->holds[index] == UINT32_MAX)
        return CT_DEVICE_FULL;
    share->holds[index] += request->b != 0;
    account_update(server, share);
    reply->a = share->bytes;
    reply->b = share->file_bytes;
    reply->c = share->owner == index;
    *descriptor = share->descriptor;
    return CT_DEVICE_OK;
}

/* Return the first client that holds it; -1: none. */
static int holder_of(const struct sg_share *share)
{
    for (int i = 0; i < SG_CONNECTIONS; i++)
        if (share->holds[i])
            return i;
    return -1;
}

/* Release the charge of its owner. */
static void release_charge(struct sg_server *server, struct sg_share *share)
{
    server->clients[share->owner]->shared_bytes -= share->bytes;
    client_give(server, share->owner, share->bytes);
}

static void end_share(struct sg_server *server, struct sg_share *share)
{
    release_charge(server, share);
    account_add(server, share, 0 - share->bytes);
    close(share->descriptor);
    memset(share, 0, sizeof *share);
}

static int share_close(struct sg_server *server, int index, uint64_t id)
{
    struct sg_share *share = share_of(server, id);
    if (!share || !share->holds[index])
        return CT_DEVICE_STALE;
    share->holds[index]--;
    if (holder_of(share) < 0)
        end_share(server, share);
    else
        account_update(server, share);
    return CT_DEVICE_OK;
}

static int share_resize(struct sg_server *server, int index, uint64_t id, uint64_t bytes)
{
    struct sg_share *share = share_of(server, id);
    if (!share || share->owner != index || !share->holds[index])
        return CT_DEVICE_STALE;
    struct sg_client *client = server->clients[index];
    int result = CT_DEVICE_OK;
    if (bytes > share->bytes)
        result = client_take(server, index, bytes - share->bytes);
    if (result != CT_DEVICE_OK)
        return result;
    uint64_t less = bytes < share->bytes ? share->bytes - bytes : 0;
    client->shared_bytes += bytes - share->bytes; /* unsigned differences */
    account_add(server, share, bytes - share->bytes);
    sg_account_update_peak(server, share->account);
    share->bytes = bytes;
    return less ? client_give(server, index, less) : CT_DEVICE_OK;
}

int sg_share_holds(const struct sg_server *server, int index)
{
    for (int i = 0; i < SG_SHARES; i++)
        if (server->shares[i].id && (server->shares[i].owner == index || server->shares[i].holds[index]))
            return 1;
    return 0;
}

/* ---- Shared events ----------------------------------------------------------------------------------------------- */

static int is_user(const struct sg_shared_event *event, int index)
{
    return (int)(event->users[index / 64] >> (index % 64) & 1);
}

static struct sg_shared_event *shared_event_of(struct sg_server *server, uint64_t handle)
{
    for (uint32_t i = 0; server->shared_event_count && i < SG_SHARED_EVENTS; i++)
        if (server->shared_events[i].handle == handle && handle)
            return &server->shared_events[i];
    return NULL;
}

int sg_uses_event(struct sg_server *server, uint64_t event, int index)
{
    if (sg_owns(server->events, event, index))
        return 1;
    const struct sg_shared_event *shared = shared_event_of(server, event);
    return shared && is_user(shared, index);
}

static int has_users(const struct sg_shared_event *event)
{
    for (int i = 0; i < SG_CONNECTIONS / 64; i++)
        if (event->users[i])
            return 1;
    return 0;
}

/* Reuse entries of ended events without users. As with handles, a part is reserved for other clients. */
static struct sg_shared_event *free_event(struct sg_server *server, int index)
{
    struct sg_shared_event *entry = NULL;
    uint32_t own = 0, kept = SG_SHARED_EVENTS / SG_RESERVED_PART;
    for (int i = 0; i < SG_SHARED_EVENTS; i++) {
        struct sg_shared_event *event = &server->shared_events[i];
        if (event->handle && !has_users(event) &&
            ct_device_event_query(server->device, event->handle) == CT_DEVICE_STALE) {
            *event = (struct sg_shared_event){0};
            server->shared_event_count--;
        }
        own += (uint32_t)sg_owns(server->events, event->handle, index);
        if (!event->handle && !entry)
            entry = event;
    }
    return own < kept / SG_CLIENTS || server->shared_event_count < SG_SHARED_EVENTS - kept ? entry : NULL;
}

static int event_share(struct sg_server *server, int index, uint64_t handle, struct sg_reply *reply)
{
    if (!sg_owns(server->events, handle, index) ||
        ct_device_event_query(server->device, (uint32_t)handle) == CT_DEVICE_STALE)
        return CT_DEVICE_STALE;
    struct sg_shared_event *event = shared_event_of(server, handle);
    if (!event) {
        event = free_event(server, index);
        if (!event || getrandom(&event->token, sizeof event->token, 0) != sizeof event->token)
            return CT_DEVICE_FULL;
        event->handle = (uint32_t)handle;
        server->shared_event_count++;
    }
    reply->a = event->token;
    return CT_DEVICE_OK;
}

void sg_event_close(struct sg_server *server, uint64_t handle, int index)
{
    struct sg_shared_event *event = shared_event_of(server, handle);
    if (event)
        event->users[index / 64] &= ~(UINT64_C(1) << (index % 64));
}

static int event_open(struct sg_server *server, int index, uint64_t handle, uint64_t token, struct sg_reply *reply)
{
    struct sg_shared_event *event = shared_event_of(server, handle);
    if (!event || event->token != token || ct_device_event_query(server->device, event->handle) == CT_DEVICE_STALE)
        return CT_DEVICE_STALE;
    event->users[index / 64] |= UINT64_C(1) << (index % 64);
    reply->c = (uint64_t)sg_owns(server->events, handle, index);
    return CT_DEVICE_OK;
}

/* ---- Client exit and requests ------------------------------------------------------------------------------------ */

void sg_share_release_client(struct sg_server *server, int index)
{
    for (int i = 0; i < SG_SHARES; i++) {
        struct sg_share *share = &server->shares[i];
        if (!share->id || (share->owner != index && !share->holds[index]))
            continue;
        share->holds[index] = 0;
        int new_owner = holder_of(share);
        if (new_owner < 0) {
            end_share(server, share);
        } else if (share->owner == index) {
            release_charge(server, share);
            client_adopt(server, new_owner, share->bytes); /* it fits, because it was released just now */
            server->clients[new_owner]->shared_bytes += share->bytes;
            share->owner = new_owner;
        }
        if (new_owner >= 0)
            account_update(server, share);
    }
    for (int i = 0; i < SG_SHARED_EVENTS; i++)
        server->shared_events[i].users[index / 64] &= ~(UINT64_C(1) << (index % 64));
}

int sg_share_answer(struct sg_server *server, int index, const struct sg_request *request)
{
    struct sg_client *client = server->clients[index];
    struct sg_reply reply = {0};
    int descriptor = -1;
    sg_pump(server, sg_now_ns());
    switch (request->kind) {
    case SG_CLIENT_TAKE:
        reply.result = client_take(server, index, request->a);
        break;
    case SG_CLIENT_GIVE:
        reply.result = client_give(server, index, request->a);
        break;
    case SG_SHARE_MAKE:
        reply.result = share_make(server, index, request, &reply, &descriptor);
        break;
    case SG_SHARE_OPEN:
        reply.result = share_open(server, index, request, &reply, &descriptor);
        break;
    case SG_SHARE_CLOSE:
        reply.result = share_close(server, index, request->a);
        break;
    case SG_SHARE_RESIZE:
        reply.result = share_resize(server, index, request->a, request->b);
        break;
    case SG_EVENT_SHARE:
        reply.result = event_share(server, index, request->a, &reply);
        break;
    default:
        reply.result = event_open(server, index, request->a, request->b, &reply);
        break;
    }
    sg_account_update(server, index);
    return descriptor < 0 ? sg_send_reply(client, &reply, sizeof reply)
                          : sg_send_reply_with_fds(client, &reply, sizeof reply, &descriptor, 1);
}
