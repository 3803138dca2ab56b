/* Transfer of slots from the rings to the model, ordered by time across clients. Every slot is validated. */
#include "softgpu/server/server.h"

#include <string.h>

/* A time stamp this far ahead of the clock is invalid; a smaller lead occurs when a slot is written during this
 * pump. */
enum { LEAD_NS = 1000000000 };

/* Read each tail once per pump, so that a client that submits continuously cannot occupy the server. */
static void read_tails(struct sg_server *server)
{
    for (int i = 0; i < SG_CONNECTIONS; i++) {
        struct sg_client *client = server->clients[i];
        if (!client || !client->ring)
            continue;
        client->tail = atomic_load_explicit(&client->ring->tail, memory_order_acquire);
        if (client->tail - client->head > SG_RING_SLOTS)
            client->tail = client->head; /* ignore an invalid tail */
    }
}

/* Return the client with the oldest slot that can be taken; -1: none. */
static int oldest(struct sg_server *server, const uint8_t *blocked, uint64_t *at_ns)
{
    int best = -1;
    for (int i = 0; i < SG_CONNECTIONS; i++) {
        struct sg_client *client = server->clients[i];
        if (!client || !client->ring || blocked[i] || sg_is_suspended(client))
            continue;
        if (client->tail == client->head)
            continue;
        uint64_t when_ns = client->ring->slots[client->head % SG_RING_SLOTS].at_ns;
        if (best < 0 || when_ns < *at_ns) {
            best = i;
            *at_ns = when_ns;
        }
    }
    return best;
}

/* At most SG_WINDOW ops of a client are incomplete, because each one waits for the op SG_WINDOW before it. */
static uint64_t *window_entry(struct sg_client *client)
{
    return &client->window[client->submitted % SG_WINDOW];
}

uint64_t sg_pump_space_ns(struct sg_server *server, struct sg_client *client)
{
    uint64_t space_ns = CT_DEVICE_DONE;
    /* A host function needs two entries: its marker and itself. */
    for (uint64_t ahead = 0; ahead < 2; ahead++) {
        uint64_t op = client->window[(client->submitted + ahead) % SG_WINDOW];
        if (!op || ct_device_op_query(server->device, op) != CT_DEVICE_NOT_READY)
            continue;
        uint64_t free_ns;
        ct_device_project_within(server->device, op, SG_PROJECTION_STEPS, &free_ns);
        space_ns = free_ns > space_ns ? free_ns : space_ns;
    }
    return space_ns;
}

int sg_pump_busy(const struct sg_server *server, const struct sg_client *client)
{
    for (int i = 0; i < SG_WINDOW; i++)
        if (client->window[i] && ct_device_op_query(server->device, client->window[i]) == CT_DEVICE_NOT_READY)
            return 1;
    return 0;
}

static int has_space(struct sg_server *server, struct sg_client *client)
{
    for (uint64_t ahead = 0; ahead < 2; ahead++) {
        uint64_t op = client->window[(client->submitted + ahead) % SG_WINDOW];
        if (op && ct_device_op_query(server->device, op) == CT_DEVICE_NOT_READY)
            return 0;
    }
    return 1;
}

static int submit_host(struct sg_server *server, struct sg_client *client, const struct sg_slot *slot, uint64_t tag,
                       uint64_t now_ns)
{
    struct sg_host_function *free_host = NULL;
    for (int i = 0; i < SG_HOST_FUNCTIONS && !free_host; i++)
        if (!client->hosts[i].number)
            free_host = &client->hosts[i];
    if (!free_host)
        return CT_DEVICE_FULL;
    struct sg_host_function made = {.number = slot->value};
    if (!made.number)
        return CT_DEVICE_INVALID;
    int result = ct_device_marker(server->device, now_ns, slot->stream, 0, &made.before);
    if (result != CT_DEVICE_OK)
        return result;
    *window_entry(client) = made.before;
    client->submitted++;
    result = ct_device_host(server->device, now_ns, slot->stream, tag, &made.op);
    if (result != CT_DEVICE_OK)
        return CT_DEVICE_INVALID; /* the marker was added, so it must not be retried */
    *free_host = made;
    *window_entry(client) = made.op;
    client->submitted++;
    return CT_DEVICE_OK;
}

static int submit(struct sg_server *server, int index, const struct sg_slot *slot, uint64_t now_ns)
{
    struct sg_client *client = server->clients[index];
    struct ct_device *device = server->device;
    uint64_t op = 0, tag = sg_outcome_tag(server, index);
    int result = CT_DEVICE_INVALID;
    if (!sg_owns(server->streams, slot->stream, index))
        return CT_DEVICE_STALE;
    switch (slot->kind) {
    case SG_SLOT_KERNEL: {
        struct ct_kernel kernel = slot->kernel;
        if (kernel.block_ns > SG_KERNEL_MAX_NS)
            break;
        if (sg_fault_at_launch(server, index, &kernel, now_ns))
            return CT_DEVICE_OK;
        result = ct_device_launch(device, now_ns, slot->stream, &kernel, tag, &op);
        sg_fault_launched(server, index, &kernel, op);
        break;
    }
    case SG_SLOT_COPY:
        if (slot->how >= CT_OP_COPY_HTOD && slot->how <= CT_OP_MEMSET)
            result = ct_device_copy(device, now_ns, slot->stream, (int)slot->how, slot->value, tag, &op);
        break;
    case SG_SLOT_RECORD:
        result = CT_DEVICE_STALE;
        if (sg_uses_event(server, slot->value, index))
            result = ct_device_event_record(device, now_ns, slot->stream, (uint32_t)slot->value, tag, &op);
        break;
    case SG_SLOT_WAIT:
        result = CT_DEVICE_STALE;
        if (sg_uses_event(server, slot->value, index))
            result = ct_device_event_wait(device, now_ns, slot->stream, (uint32_t)slot->value, tag, &op);
        break;
    case SG_SLOT_HOST:
        return submit_host(server, client, slot, tag, now_ns);
    default:
        break;
    }
    if (result == CT_DEVICE_OK && op) {
        *window_entry(client) = op;
        client->submitted++;
        if (slot->kind == SG_SLOT_RECORD)
            sg_outcomes_record(client, op);
    }
    return result;
}

/* Take one slot. 0: it stays until the model has space or its time stamp is reached. */
static int take(struct sg_server *server, int index, uint64_t now_ns)
{
    struct sg_client *client = server->clients[index];
    struct sg_slot slot;
    uint64_t before = client->submitted;
    if (client->fault.code) { /* work of a failed client is discarded */
        client->head = client->tail;
        atomic_store_explicit(&client->ring->head, client->head, memory_order_release);
        return 1;
    }
    if (!has_space(server, client))
        return 0;
    memcpy(&slot, &client->ring->slots[client->head % SG_RING_SLOTS], sizeof slot);
    int result = CT_DEVICE_INVALID;
    if (slot.at_ns <= now_ns) {
        sg_sample_until(server, slot.at_ns);
        result = submit(server, index, &slot, slot.at_ns);
    } else if (slot.at_ns - now_ns < LEAD_NS)
        return 0;
    if (result == CT_DEVICE_FULL)
        return 0;
    if (result != CT_DEVICE_OK)
        server->refused_slots++;
    /* A slot that refers to an ended object is valid: a context may end while its slots are in the ring. */
    client->invalid_slots += result != CT_DEVICE_OK && result != CT_DEVICE_STALE;
    client->head++;
    client->slot_ops[client->head % SG_RING_SLOTS] =
        client->submitted > before ? client->window[(client->submitted - 1) % SG_WINDOW] : 0;
    atomic_store_explicit(&client->ring->head, client->head, memory_order_release);
    return 1;
}

void sg_pump(struct sg_server *server, uint64_t now_ns)
{
    uint8_t blocked[SG_CONNECTIONS] = {0};
    int any_blocked = 0;
    read_tails(server);
    for (;;) {
        uint64_t at_ns = 0;
        int index = oldest(server, blocked, &at_ns);
        if (index >= 0) {
            if (!take(server, index, now_ns))
                any_blocked = blocked[index] = 1;
            continue;
        }
        /* Space may become available between the slots and now, so step through the changes of the model while a client
         * waits. */
        uint64_t next_ns = any_blocked ? ct_device_next_change(server->device) : CT_DEVICE_NEVER;
        if (next_ns > now_ns)
            break;
        sg_sample_until(server, next_ns);
        ct_device_advance(server->device, next_ns);
        memset(blocked, 0, sizeof blocked);
        any_blocked = 0;
    }
    sg_sample_until(server, now_ns);
    ct_device_advance(server->device, now_ns);
    sg_outcomes_publish(server);
}
