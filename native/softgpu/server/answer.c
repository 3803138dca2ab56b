/* Replies to the requests of clients. Every reply is immediate; none waits for the device. */
#define _GNU_SOURCE
#include "softgpu/abi/cuda.h"
#include "softgpu/server/server.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* The shortest interval before a client repeats a request whose slots were not taken or whose end is too far ahead. */
enum { RETRY_NS = 100000 };

int sg_send_reply(struct sg_client *client, const void *words, size_t bytes)
{
    /* A client that does not read its replies is dropped. */
    return send(client->socket, words, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes ? 0 : -1;
}

/* Send a reply with descriptors. */
int sg_send_reply_with_fds(struct sg_client *client, void *words, size_t bytes, const int *descriptors, size_t count)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec vector = {words, bytes};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(count * sizeof *descriptors)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof *descriptors);
    memcpy(CMSG_DATA(rights), descriptors, count * sizeof *descriptors);
    return sendmsg(client->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes ? 0 : -1;
}

static int register_client(struct sg_server *server, int index, const struct sg_request *request)
{
    struct sg_client *client = server->clients[index];
    struct sg_hello hello = {.version = SG_WIRE_VERSION, .ordinal = server->ordinal};
    int descriptors[2] = {-1, server->bulletin_fd};
    if (client->is_registered)
        return -1;
    uint64_t now_ns = sg_now_ns();
    sg_pump(server, now_ns); /* apply earlier work of other clients first */
    if (request->a != SG_WIRE_VERSION || server->faults.lost)
        hello.result = CT_DEVICE_INVALID;
    else
        hello.refused = sg_account_join(server, index);
    if (hello.result == CT_DEVICE_OK && !hello.refused && request->b)
        hello.refused = sg_group_join(server, index, request->b);
    if (hello.refused)
        hello.result = SG_REFUSED;
    else if (hello.result == CT_DEVICE_OK)
        hello.result = ct_device_client_add(server->device, now_ns, client->group ? client->group : CT_GROUP_OWN,
                                            &client->model);
    if (hello.result != CT_DEVICE_OK) {
        sg_account_leave(server, index);
        return sg_send_reply(client, &hello, sizeof hello);
    }
    ct_device_client_cap(server->device, sg_now_ns(), client->model, client->admission.sm_cap);
    client->is_registered = 1;
    server->connection_of[(client->model & 0xffff) % SG_CLIENTS] = index;
    sg_sample_join(server, client);
    server->connected++;
    client->ring = sg_map_shared(&descriptors[0], sizeof *client->ring, "softgpu-ring");
    if (!client->ring)
        return -1;
    hello.client = (uint32_t)index;
    hello.sm_cap = client->admission.sm_cap;
    hello.counts_code = (uint32_t)server->counts_code;
    hello.costs = server->costs;
    hello.config = *ct_device_config(server->device);
    hello.config.priority_least = server->priority_least;
    memcpy(hello.uuid, server->uuid, sizeof hello.uuid);
    int failed = sg_send_reply_with_fds(client, &hello, sizeof hello, descriptors, 2);
    close(descriptors[0]);
    return failed;
}

/* Register a connection that only reads counters and is not a client of the model. */
static int register_observer(struct sg_server *server, int index, const struct sg_request *request)
{
    struct sg_hello hello = {.version = SG_WIRE_VERSION, .ordinal = server->ordinal, .client = UINT32_MAX};
    hello.result = request->a == SG_WIRE_VERSION ? CT_DEVICE_OK : CT_DEVICE_INVALID;
    hello.config = *ct_device_config(server->device);
    hello.config.priority_least = server->priority_least;
    memcpy(hello.uuid, server->uuid, sizeof hello.uuid);
    return sg_send_reply_with_fds(server->clients[index], &hello, sizeof hello, &server->bulletin_fd, 1);
}

static int send_samples(struct sg_server *server, int index, const struct sg_request *request)
{
    struct sg_observation observation = {0};
    sg_pump(server, sg_now_ns());
    sg_observe(server, request->a, &observation);
    return sg_send_reply(server->clients[index], &observation, sizeof observation);
}

/* Send the report in a memory file, because with many clients it exceeds the size of a message. */
static int send_report(struct sg_server *server, int index)
{
    struct sg_reply reply = {0};
    sg_pump(server, sg_now_ns());
    reply.a = sg_report(server, server->report, sizeof server->report);
    int file = memfd_create("softgpu-report", MFD_CLOEXEC);
    int failed = file < 0 || write(file, server->report, reply.a) != (ssize_t)reply.a ||
                 sg_send_reply_with_fds(server->clients[index], &reply, sizeof reply, &file, 1) < 0;
    if (file >= 0)
        close(file);
    return failed ? -1 : 0;
}

/* Whether a client may create another handle of a kind. The handles are counted each time, because they end in many
 * ways and creation is rare. */
static int may_have(struct sg_server *server, const struct sg_owner *table, uint32_t limit,
                    int (*query)(const struct ct_device *, uint32_t), int index)
{
    uint32_t used = 0, own = 0, kept = limit / SG_RESERVED_PART;
    for (uint32_t i = 0; i <= limit; i++) {
        if (!table[i].client || query(server->device, table[i].handle) == CT_DEVICE_STALE)
            continue;
        used++;
        own += table[i].client == index + 1;
    }
    return own < kept / SG_CLIENTS || used < limit - kept;
}

static int context_create(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply,
                          uint64_t now_ns)
{
    struct sg_client *client = server->clients[index];
    uint32_t context, legacy, cap = sg_group_cap(server, index, request->a);
    uint32_t refused = sg_context_refused(server, index);
    if (!refused)
        refused = sg_group_context_refusal(server, index);
    if (refused) {
        reply->a = refused;
        return SG_REFUSED;
    }
    if (!may_have(server, server->contexts, SG_CONTEXTS, ct_device_context_query, index))
        return CT_DEVICE_FULL;
    int result = ct_device_context_create(server->device, now_ns, client->model, cap, &context);
    if (result != CT_DEVICE_OK)
        return result;
    result = ct_device_stream_create(server->device, now_ns, context, CT_STREAM_LEGACY,
                                     sg_group_priority(server, index, 0), &legacy);
    if (result != CT_DEVICE_OK) {
        ct_device_context_destroy(server->device, now_ns, context);
        return result;
    }
    sg_own(server->contexts, context, index);
    sg_own(server->streams, legacy, index);
    reply->a = context;
    reply->b = legacy;
    reply->batch[0] = cap;
    return result;
}

static int stream_create(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply,
                         uint64_t now_ns)
{
    uint32_t stream;
    if (!sg_owns(server->contexts, request->a, index))
        return CT_DEVICE_STALE;
    if (request->b != CT_STREAM_BLOCKING && request->b != CT_STREAM_NONBLOCKING)
        return CT_DEVICE_INVALID;
    if (!may_have(server, server->streams, SG_STREAMS, ct_device_stream_query, index))
        return CT_DEVICE_FULL;
    int result = ct_device_stream_create(server->device, now_ns, (uint32_t)request->a, (int)request->b,
                                         sg_group_priority(server, index, (int64_t)request->c), &stream);
    if (result == CT_DEVICE_OK) {
        sg_own(server->streams, stream, index);
        reply->a = stream;
    }
    return result;
}

static int events_create(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply)
{
    int result = CT_DEVICE_STALE;
    if (!sg_owns(server->contexts, request->a, index))
        return result;
    if (!may_have(server, server->events, SG_EVENTS, ct_device_event_query, index))
        return CT_DEVICE_FULL;
    for (reply->a = 0; reply->a < SG_EVENT_BATCH; reply->a++) {
        uint32_t *event = &reply->batch[reply->a];
        result = ct_device_event_create(server->device, (uint32_t)request->a, event);
        if (result != CT_DEVICE_OK)
            break;
        sg_own(server->events, *event, index);
    }
    return reply->a ? CT_DEVICE_OK : result;
}

static struct sg_host_function *host_of(struct sg_client *client, uint64_t number)
{
    for (int i = 0; number && i < SG_HOST_FUNCTIONS; i++)
        if (client->hosts[i].number == number)
            return &client->hosts[i];
    return NULL;
}

/* Remove host functions that ended with their context, because the client will not report them as done. */
static int context_destroy(struct sg_server *server, int index, uint32_t context, uint64_t now_ns)
{
    struct sg_client *client = server->clients[index];
    sg_invalidate_projections(server);
    int result = ct_device_context_destroy(server->device, now_ns, context);
    for (int i = 0; i < SG_HOST_FUNCTIONS; i++)
        if (client->hosts[i].number && ct_device_op_query(server->device, client->hosts[i].op) == CT_DEVICE_OK)
            client->hosts[i] = (struct sg_host_function){0};
    sg_fault_reset_client(server, index);
    return result;
}

static int project(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply)
{
    struct sg_client *client = server->clients[index];
    struct sg_host_function *host = NULL;
    if (client->head < request->c) {
        uint64_t now_ns = ct_device_now(server->device), space_ns = sg_pump_space_ns(server, client);
        reply->retry = 1;
        reply->a = space_ns > now_ns ? space_ns : now_ns + RETRY_NS;
        return CT_DEVICE_OK;
    }
    switch (request->a) {
    case SG_TARGET_STREAM:
        if (!sg_owns(server->streams, request->b, index))
            return CT_DEVICE_STALE;
        reply->b = ct_device_stream_last(server->device, (uint32_t)request->b);
        break;
    case SG_TARGET_EVENT:
        if (!sg_uses_event(server, request->b, index))
            return CT_DEVICE_STALE;
        reply->b = ct_device_event_op(server->device, (uint32_t)request->b);
        break;
    case SG_TARGET_OP:
        reply->b = request->b;
        break;
    case SG_TARGET_HOST:
        host = host_of(client, request->b);
        if (!host)
            return CT_DEVICE_STALE;
        reply->b = host->before;
        break;
    /* A slot that was overwritten is complete, because more ops than the window holds followed it. */
    case SG_TARGET_SLOT:
        if (!request->b || request->b > client->head)
            return CT_DEVICE_INVALID;
        if (client->head - request->b < SG_RING_SLOTS)
            reply->b = client->slot_ops[request->b % SG_RING_SLOTS];
        break;
    case SG_TARGET_SPACE:
        break;
    default:
        return CT_DEVICE_INVALID;
    }
    reply->a = CT_DEVICE_DONE;
    if (reply->b &&
        ct_device_project_within(server->device, reply->b, SG_PROJECTION_STEPS, &reply->a) != CT_DEVICE_OK) {
        uint64_t soon_ns = ct_device_now(server->device) + RETRY_NS;
        reply->retry = 1;
        reply->a = reply->a > soon_ns ? reply->a : soon_ns;
    }
    return CT_DEVICE_OK;
}

/* A slot that was not taken yet waits. One that was overwritten has ended, because more ops than the window holds
 * followed it. */
static int spin(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply,
                uint64_t now_ns)
{
    const struct sg_client *client = server->clients[index];
    reply->a = SG_SPIN_WAITING;
    if (client->head < request->a)
        return CT_DEVICE_OK;
    uint64_t op = client->head - request->a < SG_RING_SLOTS ? client->slot_ops[request->a % SG_RING_SLOTS] : 0;
    reply->a = SG_SPIN_ENDED;
    if (!op || ct_device_op_query(server->device, op) != CT_DEVICE_NOT_READY)
        return CT_DEVICE_OK;
    reply->a = (uint64_t)ct_device_op_begun(server->device, op);
    if (!request->b || reply->a != SG_SPIN_RUNNING)
        return CT_DEVICE_OK;
    int result = ct_device_op_cut(server->device, now_ns, op);
    sg_invalidate_projections(server);
    return result;
}

static int event_times(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply)
{
    struct sg_request about_end = {.a = SG_TARGET_EVENT, .b = request->b, .c = request->c};
    int result = CT_DEVICE_NOT_READY;
    if (!sg_owns(server->events, request->a, index) || !sg_owns(server->events, request->b, index))
        return CT_DEVICE_STALE;
    if (server->clients[index]->head >= request->c) /* otherwise the model has only earlier records */
        result = ct_device_event_time(server->device, (uint32_t)request->a, &reply->a);
    if (result == CT_DEVICE_OK)
        result = ct_device_event_time(server->device, (uint32_t)request->b, &reply->b);
    if (result == CT_DEVICE_NOT_READY)
        project(server, index, &about_end, reply);
    return result;
}

static int host_done(struct sg_server *server, int index, uint64_t number, uint64_t now_ns)
{
    struct sg_host_function *host = host_of(server->clients[index], number);
    if (!host)
        return CT_DEVICE_STALE;
    int result = ct_device_host_done(server->device, now_ns, host->op);
    if (result == CT_DEVICE_NOT_READY)
        return result;
    *host = (struct sg_host_function){0};
    /* Another process may sleep until a shared event behind this function, for which it has no predicted instant. */
    if (server->shared_event_count)
        sg_invalidate_projections(server);
    else
        atomic_fetch_add(&server->bulletin->submissions, 1);
    return result;
}

static int handle(struct sg_server *server, int index, const struct sg_request *request, struct sg_reply *reply)
{
    struct ct_device *device = server->device;
    uint64_t now_ns = sg_now_ns();
    /* Read the count before the rings, so that every later submission changes it. */
    reply->c = atomic_load(&server->bulletin->submissions);
    sg_pump(server, now_ns);
    switch (request->kind) {
    case SG_CONTEXT_CREATE:
        return context_create(server, index, request, reply, now_ns);
    case SG_CONTEXT_DESTROY:
        return sg_owns(server->contexts, request->a, index)
                   ? context_destroy(server, index, (uint32_t)request->a, now_ns)
                   : CT_DEVICE_STALE;
    case SG_STREAM_CREATE:
        return stream_create(server, index, request, reply, now_ns);
    case SG_STREAM_DESTROY:
        return sg_owns(server->streams, request->a, index)
                   ? ct_device_stream_destroy(device, now_ns, (uint32_t)request->a)
                   : CT_DEVICE_STALE;
    case SG_EVENTS_CREATE:
        return events_create(server, index, request, reply);
    case SG_EVENT_DESTROY:
        if (sg_owns(server->events, request->a, index))
            return ct_device_event_destroy(device, (uint32_t)request->a);
        sg_event_close(server, request->a, index);
        return CT_DEVICE_OK;
    case SG_EVENT_TIMES:
        return event_times(server, index, request, reply);
    case SG_MEMORY_TAKE:
        if (!sg_owns(server->contexts, request->a, index))
            return CT_DEVICE_STALE;
        return sg_group_within_limit(server, index, request->b)
                   ? ct_device_memory_take(device, (uint32_t)request->a, request->b)
                   : CT_DEVICE_NO_MEMORY;
    case SG_MEMORY_GIVE:
        return sg_owns(server->contexts, request->a, index)
                   ? ct_device_memory_give(device, (uint32_t)request->a, request->b)
                   : CT_DEVICE_STALE;
    case SG_MEMORY_INFO:
        reply->a = ct_device_memory_free(device);
        reply->b = ct_device_config(device)->memory_bytes;
        return CT_DEVICE_OK;
    case SG_PROJECT:
        return project(server, index, request, reply);
    case SG_SPIN:
        return spin(server, index, request, reply, now_ns);
    case SG_HOST_DONE:
        return host_done(server, index, request->a, now_ns);
    case SG_GROUP_LEAVE:
        server->clients[index]->is_leaving = 1;
        return CT_DEVICE_OK;
    default:
        return -1;
    }
}

static uint64_t time_slice(struct sg_server *server, uint64_t slice_ns, uint64_t *in_effect_ns)
{
    *in_effect_ns = ct_device_slice_ns(server->device);
    if (!slice_ns)
        return CT_DEVICE_OK;
    if (slice_ns < SG_MIN_SLICE_NS || slice_ns > SG_KERNEL_MAX_NS)
        return CT_DEVICE_INVALID;
    const uint64_t now_ns = sg_now_ns();
    sg_pump(server, now_ns); /* apply earlier submissions first */
    const int result = ct_device_set_slice(server->device, now_ns, slice_ns);
    sg_invalidate_projections(server);
    *in_effect_ns = ct_device_slice_ns(server->device);
    return (uint64_t)result;
}

static int refuse_stranger(struct sg_client *client)
{
    const struct sg_reply reply = {.result = SG_REFUSED, .a = CUDA_ERROR_NOT_PERMITTED};
    return sg_send_reply(client, &reply, sizeof reply);
}

int sg_answer(struct sg_server *server, int index, const struct sg_request *request)
{
    struct sg_client *client = server->clients[index];
    struct sg_reply reply = {0};
    switch (request->kind) {
    case SG_HELLO:
        return register_client(server, index, request);
    case SG_REPORT:
        return send_report(server, index);
    case SG_TRACE:
        return sg_trace_send(server, index, request->a);
    case SG_OBSERVE:
        return register_observer(server, index, request);
    case SG_SAMPLES:
        return send_samples(server, index, request);
    case SG_SHUTDOWN:
        if (!sg_is_owner(client))
            return refuse_stranger(client);
        server->stop = 1;
        return sg_send_reply(client, &reply, sizeof reply);
    case SG_FAULT:
    case SG_CLOCK:
        if (!sg_is_owner(client) && !(request->kind == SG_FAULT && (uint32_t)request->b == SG_FAULT_SELF))
            return refuse_stranger(client);
        /* fallthrough */
    case SG_XID_NEXT:
        reply.result = sg_fault_answer(server, index, request, &reply);
        return sg_send_reply(client, &reply, sizeof reply);
    case SG_TIME_SLICE:
        if (request->a && !sg_is_owner(client))
            return refuse_stranger(client);
        reply.result = time_slice(server, request->a, &reply.a);
        return sg_send_reply(client, &reply, sizeof reply);
    case SG_CHECKPOINT:
        return sg_checkpoint_answer(server, index, request);
    case SG_CODE_COUNT:
        server->executable_kernels += request->a <= UINT32_MAX ? request->a : 0;
        server->refused_kernels += request->b <= UINT32_MAX ? request->b : 0;
        return sg_send_reply(client, &reply, sizeof reply);
    case SG_UNSUPPORTED:
        if (request->a < SG_NAME_COUNT)
            server->unsupported[request->a]++;
        return sg_send_reply(client, &reply, sizeof reply);
    case SG_GROUP_OPEN:
    case SG_GROUP_ADMIT:
    case SG_GROUP_STATE:
    case SG_GROUP_FAIL:
    case SG_COMPUTE_MODE:
        if (request->kind == SG_COMPUTE_MODE && request->a && !sg_is_owner(client))
            return refuse_stranger(client);
        return sg_group_answer(server, index, request);
    default:
        break;
    }
    if (!client->is_registered)
        return -1;
    if (request->kind >= SG_CLIENT_TAKE && request->kind <= SG_EVENT_OPEN)
        return sg_share_answer(server, index, request);
    reply.result = handle(server, index, request, &reply);
    sg_account_update(server, index);
    if (request->kind == SG_PROJECT || request->kind == SG_EVENT_TIMES)
        sg_outcomes_predict(server, client, reply.c);
    return reply.result < 0 ? -1 : sg_send_reply(client, &reply, sizeof reply);
}
