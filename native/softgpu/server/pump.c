/* From the rings into the model: in the order of time across clients, each slot believed only after a check. */
#include "softgpu/server/server.h"

#include <string.h>

/* A stamp this far ahead of the clock is nonsense; a smaller lead is a slot written while this pump began. */
enum { LEAD_NS = 1000000000 };

/* Once per pump, or a client that never stops submitting would keep the server with itself. */
static void look(struct sg_server *server)
{
    for (int i = 0; i < SG_CONNECTIONS; i++) {
        struct sg_client *client = server->clients[i];
        if (!client || !client->ring)
            continue;
        client->tail = atomic_load_explicit(&client->ring->tail, memory_order_acquire);
        if (client->tail - client->head > SG_RING_SLOTS)
            client->tail = client->head; /* an impossible tail is the client's own loss: nothing of it is taken */
    }
}

/* The client whose next slot is the oldest; -1 when no ring holds one that can be taken. */
static int oldest(struct sg_server *server, const uint8_t *blocked, uint64_t *at_ns)
{
    int best = -1;
    for (int i = 0; i < SG_CONNECTIONS; i++) {
        struct sg_client *client = server->clients[i];
        if (!client || !client->ring || blocked[i] || sg_is_asleep(client))
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

/* By induction no more than SG_WINDOW ops of a client are unfinished: each waits for the one SG_WINDOW before it. */
static uint64_t *place(struct sg_client *client)
{
    return &client->window[client->submitted % SG_WINDOW];
}

uint64_t sg_pump_room(struct sg_server *server, struct sg_client *client)
{
    uint64_t room_ns = CT_DEVICE_DONE;
    /* A host function needs two places: its marker and itself. */
    for (uint64_t ahead = 0; ahead < 2; ahead++) {
        uint64_t op = client->window[(client->submitted + ahead) % SG_WINDOW];
        if (!op || ct_device_op_query(server->device, op) != CT_DEVICE_NOT_READY)
            continue;
        uint64_t free_ns;
        ct_device_project_within(server->device, op, SG_FORESIGHT, &free_ns);
        room_ns = free_ns > room_ns ? free_ns : room_ns;
    }
    return room_ns;
}

int sg_pump_busy(const struct sg_server *server, const struct sg_client *client)
{
    for (int i = 0; i < SG_WINDOW; i++)
        if (client->window[i] && ct_device_op_query(server->device, client->window[i]) == CT_DEVICE_NOT_READY)
            return 1;
    return 0;
}

static int has_room(struct sg_server *server, struct sg_client *client)
{
    for (uint64_t ahead = 0; ahead < 2; ahead++) {
        uint64_t op = client->window[(client->submitted + ahead) % SG_WINDOW];
        if (op && ct_device_op_query(server->device, op) == CT_DEVICE_NOT_READY)
            return 0;
    }
    return 1;
}

static int host(struct sg_server *server, struct sg_client *client, const struct sg_slot *slot, uint64_t tag,
                uint64_t now_ns)
{
    struct sg_host *free_host = NULL;
    for (int i = 0; i < SG_HOSTS && !free_host; i++)
        if (!client->hosts[i].number)
            free_host = &client->hosts[i];
    if (!free_host)
        return CT_DEVICE_FULL;
    struct sg_host made = {.number = slot->value};
    if (!made.number)
        return CT_DEVICE_INVALID;
    int result = ct_device_marker(server->device, now_ns, slot->stream, 0, &made.before);
    if (result != CT_DEVICE_OK)
        return result;
    *place(client) = made.before;
    client->submitted++;
    result = ct_device_host(server->device, now_ns, slot->stream, tag, &made.op);
    if (result != CT_DEVICE_OK)
        return CT_DEVICE_INVALID; /* the marker is in: not to be tried again */
    *free_host = made;
    *place(client) = made.op;
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
        return host(server, client, slot, tag, now_ns);
    default:
        break;
    }
    if (result == CT_DEVICE_OK && op) {
        *place(client) = op;
        client->submitted++;
        if (slot->kind == SG_SLOT_RECORD)
            sg_outcomes_record(client, op);
    }
    return result;
}

/* One slot of this client. 0: it stays where it is until the model has room, or its time has come. */
static int take(struct sg_server *server, int index, uint64_t now_ns)
{
    struct sg_client *client = server->clients[index];
    struct sg_slot slot;
    uint64_t before = client->submitted;
    if (client->trouble.code) { /* what a dead client launched is lost */
        client->head = client->tail;
        atomic_store_explicit(&client->ring->head, client->head, memory_order_release);
        return 1;
    }
    if (!has_room(server, client))
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
    /* What names something that has ended meanwhile is no nonsense: a context ends with slots in the ring. */
    client->nonsense += result != CT_DEVICE_OK && result != CT_DEVICE_STALE;
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
    look(server);
    for (;;) {
        uint64_t at_ns = 0;
        int index = oldest(server, blocked, &at_ns);
        if (index >= 0) {
            if (!take(server, index, now_ns))
                any_blocked = blocked[index] = 1;
            continue;
        }
        /* Room may come about between then and now: step through the changes while somebody waits for it. */
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
