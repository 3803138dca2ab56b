/* Device memory that belongs to a client rather than to one of its contexts: pools, physical memory, what is shared. */
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

static void give(struct ct_device *d, struct ct_client *client, uint64_t bytes)
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
    give(d, &ct_clients(d)[slot], bytes);
    return CT_DEVICE_OK;
}

void ct_memory_leave(struct ct_device *d, struct ct_client *client)
{
    give(d, client, client->loose_bytes);
}
