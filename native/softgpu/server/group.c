/* MPS groups: admission and limits of clients, and the compute mode. */
#include "softgpu/abi/cuda.h"
#include "softgpu/server/server.h"

#include <string.h>
#include <sys/socket.h>

struct sg_group *sg_group_of(struct sg_server *server, uint32_t number)
{
    for (int i = 0; number && i < SG_GROUPS; i++)
        if (server->groups[i].number == number)
            return &server->groups[i];
    return NULL;
}

static struct sg_group *group_owned_by(struct sg_server *server, int index)
{
    for (int i = 0; i < SG_GROUPS; i++)
        if (server->groups[i].number && server->groups[i].owner == index)
            return &server->groups[i];
    return NULL;
}

/* Count the contexts of a group (0: of no group), except those of one process. */
static int contexts_of(struct sg_server *server, uint32_t group, pid_t except)
{
    int count = 0;
    for (uint32_t i = 0; i <= SG_CONTEXTS; i++) {
        const struct sg_owner *owner = &server->contexts[i];
        const struct sg_client *client = owner->client ? server->clients[owner->client - 1] : NULL;
        if (client && client->group == group && client->pid != except &&
            ct_device_context_query(server->device, owner->handle) != CT_DEVICE_STALE)
            count++;
    }
    return count;
}

int sg_client_has_context(const struct sg_server *server, int index)
{
    for (uint32_t i = 0; i <= SG_CONTEXTS; i++)
        if (server->contexts[i].client == index + 1 &&
            ct_device_context_query(server->device, server->contexts[i].handle) != CT_DEVICE_STALE)
            return 1;
    return 0;
}

static int open_group(struct sg_server *server, int index, struct sg_reply *reply)
{
    const struct ct_device_config *config = ct_device_config(server->device);
    struct sg_group *group = NULL;
    int is_exclusive = server->compute_mode == SG_MODE_EXCLUSIVE_PROCESS;
    if (server->clients[index]->is_registered || group_owned_by(server, index))
        return -1;
    /* For the compute mode, an MPS server counts as a process with a context. */
    reply->a = CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (server->compute_mode == SG_MODE_PROHIBITED || (is_exclusive && contexts_of(server, 0, 0) > 0))
        return SG_REFUSED;
    for (int i = 0; i < SG_GROUPS; i++) {
        if (!server->groups[i].number && !group)
            group = &server->groups[i];
        else if (server->groups[i].number && is_exclusive)
            return SG_REFUSED;
    }
    if (!group)
        return CT_DEVICE_FULL;
    *group = (struct sg_group){.number = ++server->group_count, .owner = index};
    reply->a = group->number;
    reply->b = config->sm_count;
    memcpy(reply->batch, server->uuid, sizeof server->uuid);
    return CT_DEVICE_OK;
}

static int admit(struct sg_server *server, int index, const struct sg_request *request)
{
    struct sg_group *group = group_owned_by(server, index);
    struct sg_admission made = {.pid = (pid_t)request->a,
                                .sm_cap = (uint32_t)request->c,
                                .is_below_normal = request->c >> 32 & 1,
                                .pinned_bytes = request->b};
    struct sg_admission *entry = NULL;
    if (!group || made.pid <= 0 || made.sm_cap > ct_device_config(server->device)->sm_count)
        return -1;
    for (int i = 0; i < SG_ADMISSIONS; i++)
        if (group->admitted[i].pid == made.pid)
            entry = &group->admitted[i];
    for (int i = 0; i < SG_ADMISSIONS && !entry; i++)
        if (!group->admitted[i].pid)
            entry = &group->admitted[i];
    if (!entry)
        entry = &group->admitted[group->next++ % SG_ADMISSIONS];
    *entry = made;
    return CT_DEVICE_OK;
}

static int report_state(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply)
{
    struct sg_group *group = group_owned_by(server, index);
    if (!group)
        return -1;
    for (int i = 0; i < SG_CONNECTIONS; i++) {
        if (!server->clients[i] || server->clients[i]->group != group->number ||
            (request->b && !sg_client_has_context(server, i)))
            continue;
        uint64_t entry = reply->a++ - request->a;
        if (entry < SG_EVENT_BATCH) /* also rejects a wrapped difference */
            reply->batch[entry] = (uint32_t)server->clients[i]->pid;
    }
    reply->b = (uint64_t)sg_group_refuses(server, group->number);
    return CT_DEVICE_OK;
}

uint32_t sg_group_join(struct sg_server *server, int index, uint64_t number)
{
    struct sg_client *client = server->clients[index];
    struct sg_group *group = number <= UINT32_MAX ? sg_group_of(server, (uint32_t)number) : NULL;
    struct sg_admission *found = NULL;
    for (int i = 0; group && i < SG_ADMISSIONS; i++)
        if (group->admitted[i].pid && group->admitted[i].pid == client->pid)
            found = &group->admitted[i];
    if (!found)
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (sg_group_refuses(server, group->number))
        return CUDA_ERROR_MPS_SERVER_NOT_READY;
    client->group = group->number;
    client->admission = *found;
    *found = (struct sg_admission){0};
    return 0;
}

static int fail_clients(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply)
{
    struct sg_group *group = group_owned_by(server, index);
    if (!group || !request->b || request->b > INT32_MAX)
        return -1;
    if (!request->a)
        reply->a = sg_fault_group(server, group->number, (uint32_t)request->b, 0);
    for (int i = 0; request->a && i < SG_CONNECTIONS; i++) {
        const struct sg_client *client = server->clients[i];
        if (client && client->group == group->number && (uint64_t)client->pid == request->a)
            reply->a += sg_fault_alone(server, i, (uint32_t)request->b);
    }
    return CT_DEVICE_OK;
}

/* Notify the MPS server, so that it can fail the group on its other devices. The message is dropped if it does not
 * read. */
void sg_group_notify(struct sg_server *server, uint32_t number, uint32_t code)
{
    struct sg_group *group = sg_group_of(server, number);
    struct sg_reply notice = {.retry = SG_GROUP_FAULT_NOTICE, .a = code};
    if (group)
        send(server->clients[group->owner]->socket, &notice, sizeof notice, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The death of a client may be noticed before its last message is read. Reading is shut down, so that a client that is
 * dropped while alive cannot continue to send. */
void sg_group_read_leave(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    struct sg_request request;
    if (client->group)
        shutdown(client->socket, SHUT_RD);
    while (client->group && !client->is_leaving &&
           recv(client->socket, &request, sizeof request, MSG_DONTWAIT) == (ssize_t)sizeof request)
        client->is_leaving = request.kind == SG_GROUP_LEAVE;
}

void sg_group_close(struct sg_server *server, int index)
{
    struct sg_group *group = group_owned_by(server, index);
    if (!group)
        return;
    sg_fault_group(server, group->number, CUDA_ERROR_MPS_RPC_FAILURE, 0);
    *group = (struct sg_group){0};
}

uint32_t sg_group_context_refusal(struct sg_server *server, int index)
{
    const struct sg_client *client = server->clients[index];
    if (server->compute_mode == SG_MODE_PROHIBITED)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (server->compute_mode == SG_MODE_EXCLUSIVE_PROCESS) {
        if (contexts_of(server, 0, client->group ? 0 : client->pid) > 0)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        for (int i = 0; i < SG_GROUPS; i++)
            if (server->groups[i].number && server->groups[i].number != client->group)
                return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    if (client->group && !sg_group_of(server, client->group)) /* it had no context when its MPS server died */
        return CUDA_ERROR_MPS_RPC_FAILURE;
    if (client->group && contexts_of(server, client->group, 0) >= SG_GROUP_CONTEXTS)
        return CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
    return 0;
}

static int compute_mode(struct sg_server *server, const struct sg_request *request, struct sg_reply *reply)
{
    if (request->a == 1) {
        /* Mode 1, exclusive thread, no longer exists in drivers. */
        if (request->b != SG_MODE_DEFAULT && request->b != SG_MODE_PROHIBITED &&
            request->b != SG_MODE_EXCLUSIVE_PROCESS)
            return CT_DEVICE_INVALID;
        server->compute_mode = (uint32_t)request->b;
    }
    reply->a = server->compute_mode;
    return CT_DEVICE_OK;
}

uint32_t sg_group_cap(const struct sg_server *server, int index, uint64_t asked)
{
    uint32_t cap = server->clients[index]->admission.sm_cap;
    if (!asked || asked > UINT32_MAX)
        return asked ? UINT32_MAX : cap; /* too many SMs: the model rejects it */
    return cap && cap < asked ? cap : (uint32_t)asked;
}

int sg_group_within_limit(struct sg_server *server, int index, uint64_t bytes)
{
    const struct sg_client *client = server->clients[index];
    struct ct_device_counters counters;
    uint64_t limit = client->admission.pinned_bytes;
    if (!limit || ct_device_count_client(server->device, client->model, &counters) != CT_DEVICE_OK)
        return 1;
    return counters.memory_bytes <= limit && bytes <= limit - counters.memory_bytes;
}

int32_t sg_group_priority(const struct sg_server *server, int index, int64_t asked)
{
    const struct ct_device_config *config = ct_device_config(server->device);
    int32_t least = server->priority_least, greatest = config->priority_greatest;
    int32_t priority = asked > least ? least : asked < greatest ? greatest : (int32_t)asked;
    return server->clients[index]->admission.is_below_normal ? priority + (least - greatest) + 1 : priority;
}

int sg_group_answer(struct sg_server *server, int index, const struct sg_request *request)
{
    struct sg_reply reply = {0};
    switch (request->kind) {
    case SG_GROUP_OPEN:
        reply.result = open_group(server, index, &reply);
        break;
    case SG_GROUP_ADMIT:
        reply.result = admit(server, index, request);
        break;
    case SG_GROUP_STATE:
        reply.result = report_state(server, index, request, &reply);
        break;
    case SG_GROUP_FAIL:
        reply.result = fail_clients(server, index, request, &reply);
        break;
    default:
        reply.result = compute_mode(server, request, &reply);
    }
    return reply.result < 0 ? -1 : sg_send_reply(server->clients[index], &reply, sizeof reply);
}
