/* Completion of submitted work, written to the rings so that clients need no request. */
#include "softgpu/server/server.h"

/* The number of the slot that is being taken. */
static uint64_t next_slot(const struct sg_client *client)
{
    return client->head + 1;
}

/* The tag of an op: the client's pid and the number of the slot. Other ops have tag 0. */
uint64_t sg_outcome_tag(const struct sg_server *server, int index)
{
    const struct sg_client *client = server->clients[index];
    return (uint64_t)(uint32_t)client->pid << 32 | (uint32_t)client->head;
}

/* Another client may have reused the index; then the model's handle differs. */
static struct sg_client *client_of(const struct sg_server *server, uint32_t model)
{
    int index = server->connection_of[(model & 0xffff) % SG_CLIENTS];
    struct sg_client *client = server->clients[index];
    return client && client->ring && client->model == model ? client : NULL;
}

static void write_outcome(struct sg_client *client, uint64_t slot, uint64_t at_ns, uint64_t count)
{
    struct sg_outcome *outcome = &client->ring->outcomes[slot % SG_OUTCOMES];
    /* A reader of a partial write finds a different slot number when it reads it again. */
    atomic_store_explicit(&outcome->slot, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&outcome->at_ns, at_ns, memory_order_relaxed);
    atomic_store_explicit(&outcome->count, count, memory_order_relaxed);
    atomic_store_explicit(&outcome->slot, slot, memory_order_release);
}

static void publish(struct sg_server *server, const struct ct_device_record *done)
{
    struct sg_client *client = done->tag && done->what == CT_RECORD_DONE ? client_of(server, done->client) : NULL;
    if (client) {
        uint64_t next = next_slot(client);
        /* The tag holds the lower half of the number. */
        uint64_t slot = next - (uint32_t)((uint32_t)next - 1 - (uint32_t)done->tag);
        write_outcome(client, slot, done->end_ns, SG_CERTAIN);
    }
}

void sg_outcomes_publish(struct sg_server *server)
{
    const struct ct_device_record *done;
    uint64_t first;
    size_t count;
    while ((count = ct_device_records(server->device, server->published, &done, &first)) != 0) {
        for (size_t i = 0; i < count; i++)
            publish(server, &done[i]);
        server->published = first + count;
    }
}

void sg_outcomes_record(struct sg_client *client, uint64_t op)
{
    client->records[client->record_count++ % SG_PREDICTED_RECORDS] = (struct sg_record){next_slot(client), op};
    if (client->record_count - client->record_first > SG_PREDICTED_RECORDS)
        client->record_first++;
}

void sg_outcomes_predict(struct sg_server *server, struct sg_client *client, uint64_t count)
{
    uint64_t steps = SG_PREDICTION_STEPS;
    for (uint64_t i = client->record_first; i < client->record_count; i++) {
        const struct sg_record *record = &client->records[i % SG_PREDICTED_RECORDS];
        uint64_t at_ns;
        if (ct_device_op_query(server->device, record->op) != CT_DEVICE_NOT_READY) {
            client->record_first += i == client->record_first;
            continue;
        }
        /* The first projection pays for its steps; later records reuse them. */
        if (ct_device_project_within(server->device, record->op, steps, &at_ns) != CT_DEVICE_OK)
            steps = 0;
        else if (at_ns != CT_DEVICE_NEVER)
            write_outcome(client, record->slot, at_ns, count);
    }
}
