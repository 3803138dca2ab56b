/* When is what a client submitted complete? Written where the client can read it, so that it need not ask. */
#include "softgpu/server/server.h"

enum { BATCH = 64, INDEX_SHIFT = 48 };
_Static_assert(SG_CONNECTIONS < 1 << (64 - INDEX_SHIFT), "a connection's number fits beside a slot's");

/* The slot that is being taken. */
static uint64_t next_slot(const struct sg_client *client)
{
    return client->head + 1;
}

uint64_t sg_outcome_tag(const struct sg_server *server, int index)
{
    uint64_t slot = next_slot(server->clients[index]) & ((UINT64_C(1) << INDEX_SHIFT) - 1);
    return (uint64_t)index << INDEX_SHIFT | slot;
}

static void write_outcome(struct sg_client *client, uint64_t slot, uint64_t at_ns, uint64_t count)
{
    struct sg_outcome *outcome = &client->ring->outcomes[slot % SG_OUTCOMES];
    /* A reader that sees a part of this sees, when it looks again, that the number has changed. */
    atomic_store_explicit(&outcome->slot, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&outcome->at_ns, at_ns, memory_order_relaxed);
    atomic_store_explicit(&outcome->count, count, memory_order_relaxed);
    atomic_store_explicit(&outcome->slot, slot, memory_order_release);
}

void sg_outcomes_publish(struct sg_server *server)
{
    struct ct_device_record done[BATCH];
    size_t count;
    do {
        count = ct_device_drain(server->device, done, BATCH);
        for (size_t i = 0; i < count; i++) {
            uint64_t slot = done[i].tag & ((UINT64_C(1) << INDEX_SHIFT) - 1);
            struct sg_client *client = server->clients[done[i].tag >> INDEX_SHIFT];
            /* A marker has no slot; and the place of a client that died may be another's by now. */
            if (slot && done[i].what == CT_RECORD_DONE && client && client->ring && client->model == done[i].client)
                write_outcome(client, slot, done[i].end_ns, SG_CERTAIN);
        }
    } while (count == BATCH);
}

void sg_outcomes_record(struct sg_client *client, uint64_t op)
{
    client->records[client->record_count++ % SG_FORETOLD] = (struct sg_record){next_slot(client), op};
    if (client->record_count - client->record_first > SG_FORETOLD)
        client->record_first++;
}

void sg_outcomes_foretell(struct sg_server *server, struct sg_client *client, uint64_t count)
{
    uint64_t steps = SG_FORETELL_STEPS;
    for (uint64_t i = client->record_first; i < client->record_count; i++) {
        const struct sg_record *record = &client->records[i % SG_FORETOLD];
        uint64_t at_ns;
        if (ct_device_op_query(server->device, record->op) != CT_DEVICE_NOT_READY) {
            client->record_first += i == client->record_first;
            continue;
        }
        /* What one record's turn has cost to foresee is there for the next ones too: only the first pays. */
        if (ct_device_project_within(server->device, record->op, steps, &at_ns) != CT_DEVICE_OK)
            steps = 0;
        else if (at_ns != CT_DEVICE_NEVER)
            write_outcome(client, record->slot, at_ns, count);
    }
}
