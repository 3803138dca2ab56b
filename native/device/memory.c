/* The device memory of a client: what belongs to none of its contexts (pools, physical memory, shares), and the
 * total. */
#include "device/state.h"

int ct_device_client_take(struct ct_device *d, uint32_t client, uint64_t bytes)
{
    uint32_t slot = ct_slot_client(d, client);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    if (bytes > ct_device_memory_free(d))
        return CT_DEVICE_NO_MEMORY;
    struct ct_client *c = &ct_clients(d)[slot];
    c->loose_bytes += bytes;
    c->counters.memory_bytes += bytes;
    c->counters.memory_peak_bytes = ct_max(c->counters.memory_peak_bytes, c->counters.memory_bytes);
    d->counters.memory_bytes += bytes;
    d->counters.memory_peak_bytes = ct_max(d->counters.memory_peak_bytes, d->counters.memory_bytes);
    return CT_DEVICE_OK;
}

static void release_bytes(struct ct_device *d, struct ct_client *client, uint64_t bytes)
{
    client->loose_bytes -= bytes;
    client->counters.memory_bytes -= bytes;
    d->counters.memory_bytes -= bytes;
}

int ct_device_client_give(struct ct_device *d, uint32_t client, uint64_t bytes)
{
    uint32_t slot = ct_slot_client(d, client);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    if (bytes > ct_clients(d)[slot].loose_bytes)
        return CT_DEVICE_INVALID;
    release_bytes(d, &ct_clients(d)[slot], bytes);
    return CT_DEVICE_OK;
}

uint64_t ct_device_client_memory(const struct ct_device *d, uint32_t client)
{
    uint32_t slot = ct_slot_client(d, client);
    return slot == CT_NONE ? 0 : ct_clients(d)[slot].counters.memory_bytes;
}

uint64_t ct_device_client_parked(const struct ct_device *d, uint32_t client)
{
    uint32_t slot = ct_slot_client(d, client);
    if (slot == CT_NONE)
        return 0;
    uint64_t bytes = ct_clients(d)[slot].parked_bytes;
    for (uint32_t c = ct_clients(d)[slot].first_context; c != CT_NONE; c = ct_contexts(d)[c].next)
        bytes += ct_contexts(d)[c].parked_bytes;
    return bytes;
}

int ct_device_client_park(struct ct_device *d, uint32_t client)
{
    uint32_t slot = ct_slot_client(d, client);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    struct ct_client *owner = &ct_clients(d)[slot];
    owner->parked_bytes += owner->loose_bytes;
    release_bytes(d, owner, owner->loose_bytes);
    for (uint32_t c = owner->first_context; c != CT_NONE; c = ct_contexts(d)[c].next) {
        struct ct_context *context = &ct_contexts(d)[c];
        context->parked_bytes += context->counters.memory_bytes;
        ct_device_memory_give(d, (uint32_t)context->generation << 16 | c, context->counters.memory_bytes);
    }
    return CT_DEVICE_OK;
}

int ct_device_client_unpark(struct ct_device *d, uint32_t client)
{
    uint32_t slot = ct_slot_client(d, client);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    if (ct_device_client_parked(d, client) > ct_device_memory_free(d))
        return CT_DEVICE_NO_MEMORY;
    struct ct_client *owner = &ct_clients(d)[slot];
    ct_device_client_take(d, client, owner->parked_bytes);
    owner->parked_bytes = 0;
    for (uint32_t c = owner->first_context; c != CT_NONE; c = ct_contexts(d)[c].next) {
        struct ct_context *context = &ct_contexts(d)[c];
        ct_device_memory_take(d, (uint32_t)context->generation << 16 | c, context->parked_bytes);
        context->parked_bytes = 0;
    }
    return CT_DEVICE_OK;
}

void ct_memory_free_client(struct ct_device *d, struct ct_client *client)
{
    release_bytes(d, client, client->loose_bytes);
    client->parked_bytes = 0;
}
