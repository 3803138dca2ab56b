/* Suspension of a process: no new work is taken, running work ends, and its memory leaves the device. */
#include "softgpu/abi/cuda.h"
#include "softgpu/server/server.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* While a client is suspended, its requests stay in the socket and its slots in the ring. This also stops calls that
 * began before the ring's `held` word was set. */
static void set_listening(struct sg_server *server, struct sg_client *client, int is_on)
{
    struct epoll_event event = {.events = (is_on ? EPOLLIN : 0) | EPOLLRDHUP, .data.u64 = client->token};
    epoll_ctl(server->epoll, EPOLL_CTL_MOD, client->socket, &event);
}

static void hold(struct sg_client *client, uint32_t is_held)
{
    atomic_store(&client->ring->held, is_held);
    if (!is_held)
        syscall(SYS_futex, &client->ring->held, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void resume_client(struct sg_server *server, struct sg_client *client, uint32_t state)
{
    client->state = state;
    client->locker = 0;
    set_listening(server, client, 1);
    hold(client, 0);
}

int sg_is_suspended(const struct sg_client *client)
{
    return client->state == CU_PROCESS_STATE_LOCKED || client->state == CU_PROCESS_STATE_CHECKPOINTED;
}

void sg_checkpoint_fail(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    if (!sg_is_suspended(client))
        return;
    ct_device_client_unpark(server->device, client->model); /* if it does not fit, the client continues without it */
    resume_client(server, client, CU_PROCESS_STATE_FAILED);
    sg_account_update(server, index);
}

void sg_checkpoint_release(struct sg_server *server, int index)
{
    for (int i = 0; i < SG_CONNECTIONS; i++)
        if (server->clients[i] && server->clients[i]->locker == index + 1)
            resume_client(server, server->clients[i], CU_PROCESS_STATE_RUNNING);
}

static int refuse(struct sg_reply *reply, uint32_t code)
{
    reply->a = code;
    return SG_REFUSED;
}

/* Begin or complete a lock. An incomplete lock belongs to the connection that began it and ends with it. */
static int lock(struct sg_server *server, struct sg_client *client, int requester, int is_whole, struct sg_reply *reply)
{
    if (client->state != CU_PROCESS_STATE_RUNNING || (client->locker && client->locker != requester + 1))
        return refuse(reply, CUDA_ERROR_ILLEGAL_STATE);
    client->locker = requester + 1;
    hold(client, 1);
    if (atomic_load(&client->ring->tail) != client->head || sg_pump_busy(server, client))
        return CT_DEVICE_NOT_READY;
    if (!is_whole)
        return CT_DEVICE_OK;
    client->state = CU_PROCESS_STATE_LOCKED;
    client->locker = 0;
    set_listening(server, client, 0);
    return CT_DEVICE_OK;
}

static int release(struct sg_server *server, struct sg_client *client, int requester, struct sg_reply *reply)
{
    if (client->state != CU_PROCESS_STATE_LOCKED && client->locker != requester + 1)
        return refuse(reply, CUDA_ERROR_ILLEGAL_STATE);
    resume_client(server, client, CU_PROCESS_STATE_RUNNING);
    return CT_DEVICE_OK;
}

static int save(struct sg_server *server, int index, int is_done, struct sg_reply *reply)
{
    struct sg_client *client = server->clients[index];
    if (client->state != CU_PROCESS_STATE_LOCKED)
        return refuse(reply, CUDA_ERROR_ILLEGAL_STATE);
    if (sg_share_holds(server, index) || atomic_load(&client->ring->managed_bytes))
        return refuse(reply, CUDA_ERROR_NOT_SUPPORTED);
    if (!is_done)
        return CT_DEVICE_OK;
    client->state = CU_PROCESS_STATE_CHECKPOINTED;
    return ct_device_client_park(server->device, client->model);
}

static int load(struct sg_server *server, int index, int is_done, struct sg_reply *reply)
{
    struct sg_client *client = server->clients[index];
    if (client->state != CU_PROCESS_STATE_CHECKPOINTED)
        return refuse(reply, CUDA_ERROR_ILLEGAL_STATE);
    if (!is_done)
        return ct_device_client_parked(server->device, client->model) <= ct_device_memory_free(server->device)
                   ? CT_DEVICE_OK
                   : CT_DEVICE_NO_MEMORY;
    int result = ct_device_client_unpark(server->device, client->model);
    if (result == CT_DEVICE_OK)
        client->state = CU_PROCESS_STATE_LOCKED;
    return result;
}

static int has_pid(const struct sg_client *client, uint64_t pid)
{
    return client && client->ring && client->pid > 0 && (uint64_t)client->pid == pid;
}

static int apply_action(struct sg_server *server, int requester, int index, uint64_t action, struct sg_reply *reply)
{
    struct sg_client *client = server->clients[index];
    switch (action) {
    case SG_CHECKPOINT_STATE:
        return CT_DEVICE_OK;
    case SG_CHECKPOINT_HOLD:
    case SG_CHECKPOINT_LOCK:
        return lock(server, client, requester, action == SG_CHECKPOINT_LOCK, reply);
    case SG_CHECKPOINT_RELEASE:
        return release(server, client, requester, reply);
    case SG_CHECKPOINT_MAY_SAVE:
    case SG_CHECKPOINT_SAVE:
        return save(server, index, action == SG_CHECKPOINT_SAVE, reply);
    case SG_CHECKPOINT_MAY_LOAD:
    case SG_CHECKPOINT_LOAD:
        return load(server, index, action == SG_CHECKPOINT_LOAD, reply);
    default:
        return CT_DEVICE_INVALID;
    }
}

/* Only the user of a process may suspend it, or root, and only from its own pid namespace: in another one, the number
 * names another process. */
static int may_suspend(const struct sg_client *requester, const struct sg_client *client)
{
    return sg_shares_namespace(requester->pid, client->pid, "pid") && (requester->uid == client->uid || !requester->uid);
}

/* If a process has several connections to the device, the first one is used. */
int sg_checkpoint_answer(struct sg_server *server, int requester, const struct sg_request *request)
{
    struct sg_reply reply = {.result = CT_DEVICE_STALE};
    int index = 0;
    sg_pump(server, sg_now_ns());
    while (index < SG_CONNECTIONS && !has_pid(server->clients[index], request->a))
        index++;
    if (index < SG_CONNECTIONS && !may_suspend(server->clients[requester], server->clients[index])) {
        reply.result = refuse(&reply, CUDA_ERROR_NOT_PERMITTED);
    } else if (index < SG_CONNECTIONS) {
        reply.result = apply_action(server, requester, index, request->b, &reply);
        sg_account_update(server, index);
    }
    if (reply.result == CT_DEVICE_OK)
        reply.a = server->clients[index]->state;
    memcpy(reply.batch, server->uuid, sizeof server->uuid);
    return sg_send_reply(server->clients[requester], &reply, sizeof reply);
}
