/* The batch driver: hosts that launch, run ahead and wait, on the device model. */
#include "device/script.h"

#include <string.h>

enum { DEFAULT_AHEAD = 1024, DRAIN_RECORDS = 64, TAG_CLIENT_SHIFT = 48 };

enum host_state { HOST_LAUNCHING, HOST_IN_SYNC, HOST_AT_LIMIT, HOST_DONE };

struct host {
    enum host_state state;
    uint64_t step_ns; /* the instant of its next step, when launching */
    uint64_t waiting_since_ns;
    size_t step;
    uint64_t repeat;
    uint64_t in_flight;
    uint64_t ahead_limit;
    uint32_t streams[CT_SCRIPT_MAX_STREAMS];
};

struct run {
    struct ct_device *device;
    const struct ct_kernel *kernels;
    struct ct_script_client *clients;
    size_t client_count;
    struct host hosts[CT_SCRIPT_MAX_CLIENTS];
    uint32_t waiting; /* hosts in sync or at their limit */
};

static uint64_t instant_after(uint64_t instant_ns, uint64_t ns)
{
    return instant_ns > CT_DEVICE_NEVER - ns ? CT_DEVICE_NEVER : instant_ns + ns;
}

static void begin_repeat(struct run *run, size_t i, uint64_t from_ns)
{
    const struct ct_script_client *client = &run->clients[i];
    struct host *host = &run->hosts[i];
    if (host->repeat == client->repeats) {
        host->state = HOST_DONE;
        return;
    }
    if (client->arrivals_ns && client->arrivals_ns[host->repeat] > from_ns)
        from_ns = client->arrivals_ns[host->repeat];
    host->state = HOST_LAUNCHING;
    host->step_ns = instant_after(from_ns, client->steps[0].host_ns);
}

static void end_step(struct run *run, size_t i, uint64_t now_ns)
{
    struct ct_script_client *client = &run->clients[i];
    struct host *host = &run->hosts[i];
    host->state = HOST_LAUNCHING;
    if (++host->step < client->step_count) {
        host->step_ns = instant_after(now_ns, client->steps[host->step].host_ns);
        return;
    }
    if (client->repeat_ends_ns && host->repeat < client->repeat_capacity)
        client->repeat_ends_ns[host->repeat] = now_ns;
    host->step = 0;
    host->repeat++;
    begin_repeat(run, i, now_ns);
    if (host->state == HOST_DONE && host->in_flight == 0)
        client->finished_ns = now_ns;
}

/* Handles a completed launch: stores its times, and resumes the host if it waited for it. */
static void on_completion(struct run *run, const struct ct_device_record *record)
{
    size_t i = (size_t)(record->tag >> TAG_CLIENT_SHIFT);
    uint64_t launch = record->tag & ((UINT64_C(1) << TAG_CLIENT_SHIFT) - 1);
    struct ct_script_client *client = &run->clients[i];
    struct host *host = &run->hosts[i];
    client->completions++;
    host->in_flight--;
    if (launch < client->launch_capacity) {
        if (client->starts_ns)
            client->starts_ns[launch] = record->start_ns;
        if (client->ends_ns)
            client->ends_ns[launch] = record->end_ns;
        if (client->delays_ns)
            client->delays_ns[launch] = record->delayed_ns;
    }
    if (host->state == HOST_AT_LIMIT) {
        run->waiting--;
        client->blocked_ns += record->end_ns - host->waiting_since_ns;
        host->state = HOST_LAUNCHING;
        host->step_ns = record->end_ns;
    } else if (host->state == HOST_IN_SYNC && host->in_flight == 0) {
        run->waiting--;
        client->blocked_ns += record->end_ns - host->waiting_since_ns;
        end_step(run, i, record->end_ns);
    } else if (host->state == HOST_DONE && host->in_flight == 0) {
        client->finished_ns = record->end_ns;
    }
}

static void collect(struct run *run)
{
    struct ct_device_record records[DRAIN_RECORDS];
    size_t count;
    do {
        count = ct_device_drain(run->device, records, DRAIN_RECORDS);
        for (size_t i = 0; i < count; i++)
            on_completion(run, &records[i]);
    } while (count == DRAIN_RECORDS);
}

static void wait_for(struct run *run, struct host *host, enum host_state state, uint64_t now_ns)
{
    host->state = state;
    host->waiting_since_ns = now_ns;
    run->waiting++;
}

/* Executes the next step of client i's host. Completions up to this instant have been collected. */
static int execute_step(struct run *run, size_t i)
{
    struct ct_script_client *client = &run->clients[i];
    struct host *host = &run->hosts[i];
    const struct ct_script_step *step = &client->steps[host->step];
    uint64_t now_ns = host->step_ns;
    if (step->kernel != CT_SCRIPT_NO_KERNEL) {
        if (host->in_flight >= host->ahead_limit) {
            wait_for(run, host, HOST_AT_LIMIT, now_ns);
            return CT_DEVICE_OK;
        }
        uint64_t tag = (uint64_t)i << TAG_CLIENT_SHIFT | client->launches;
        int result = ct_device_launch(run->device, now_ns, host->streams[step->stream], &run->kernels[step->kernel],
                                      tag, NULL);
        if (result == CT_DEVICE_FULL && host->in_flight > 0) {
            wait_for(run, host, HOST_AT_LIMIT, now_ns);
            return CT_DEVICE_OK;
        }
        if (result != CT_DEVICE_OK)
            return result;
        host->in_flight++;
        client->launches++;
    }
    if ((step->flags & CT_SCRIPT_SYNC) && host->in_flight > 0)
        wait_for(run, host, HOST_IN_SYNC, now_ns);
    else
        end_step(run, i, now_ns);
    return CT_DEVICE_OK;
}

static int is_valid_script(const struct ct_script_client *client, size_t kernel_count)
{
    if (client->step_count == 0 || client->stream_count == 0 || client->stream_count > CT_SCRIPT_MAX_STREAMS)
        return 0;
    for (size_t s = 0; s < client->step_count; s++) {
        const struct ct_script_step *step = &client->steps[s];
        if (step->kernel != CT_SCRIPT_NO_KERNEL &&
            (step->kernel >= kernel_count || step->stream >= client->stream_count))
            return 0;
    }
    return 1;
}

static int add_client(struct run *run, size_t i)
{
    struct ct_script_client *client = &run->clients[i];
    struct host *host = &run->hosts[i];
    uint64_t now_ns = ct_device_now(run->device);
    uint32_t context;
    int result = ct_device_client_add(run->device, now_ns, client->group_label, &client->client);
    if (result == CT_DEVICE_OK)
        result = ct_device_context_create(run->device, now_ns, client->client, client->sm_cap, &context);
    for (uint32_t s = 0; result == CT_DEVICE_OK && s < client->stream_count; s++)
        result = ct_device_stream_create(run->device, now_ns, context, client->streams[s].kind,
                                         client->streams[s].priority, &host->streams[s]);
    if (result != CT_DEVICE_OK)
        return result;
    for (size_t k = 0; k < client->launch_capacity; k++) {
        if (client->starts_ns)
            client->starts_ns[k] = CT_DEVICE_NEVER;
        if (client->ends_ns)
            client->ends_ns[k] = CT_DEVICE_NEVER;
        if (client->delays_ns)
            client->delays_ns[k] = 0;
    }
    for (size_t k = 0; client->repeat_ends_ns && k < client->repeat_capacity; k++)
        client->repeat_ends_ns[k] = CT_DEVICE_NEVER;
    client->launches = client->completions = client->blocked_ns = 0;
    client->finished_ns = client->repeats == 0 ? now_ns : CT_DEVICE_NEVER;
    host->ahead_limit = client->ahead_limit ? client->ahead_limit : DEFAULT_AHEAD;
    begin_repeat(run, i, client->start_ns > now_ns ? client->start_ns : now_ns);
    return CT_DEVICE_OK;
}

/* Advances the device from change to change while a host waits; otherwise the next launch advances it. */
static int run_until(struct run *run, uint64_t until_ns)
{
    for (;;) {
        size_t next = run->client_count;
        uint64_t step_ns = CT_DEVICE_NEVER;
        for (size_t i = 0; i < run->client_count; i++) {
            if (run->hosts[i].state == HOST_LAUNCHING && run->hosts[i].step_ns < step_ns) {
                step_ns = run->hosts[i].step_ns;
                next = i;
            }
        }
        if (run->waiting > 0 || next == run->client_count) {
            uint64_t change_ns = ct_device_next_change(run->device);
            if (change_ns <= step_ns && change_ns != CT_DEVICE_NEVER) {
                if (change_ns > until_ns)
                    return CT_DEVICE_OK;
                ct_device_advance(run->device, change_ns);
                collect(run);
                continue;
            }
        }
        if (next == run->client_count || step_ns > until_ns)
            return CT_DEVICE_OK;
        ct_device_advance(run->device, step_ns);
        collect(run);
        int result = execute_step(run, next);
        if (result != CT_DEVICE_OK)
            return result;
    }
}

int ct_script_run(struct ct_device *device, const struct ct_kernel *kernels, size_t kernel_count,
                  struct ct_script_client *clients, size_t client_count, uint64_t until_ns)
{
    struct run run = {.device = device, .kernels = kernels, .clients = clients, .client_count = client_count};
    struct ct_device_record dropped[DRAIN_RECORDS];
    if (client_count > CT_SCRIPT_MAX_CLIENTS)
        return CT_DEVICE_INVALID;
    for (size_t i = 0; i < client_count; i++)
        if (!is_valid_script(&clients[i], kernel_count))
            return CT_DEVICE_INVALID;
    while (ct_device_drain(device, dropped, DRAIN_RECORDS) > 0)
        continue;
    ct_device_record_kinds(device, 1u << CT_OP_KERNEL);
    for (size_t i = 0; i < client_count; i++) {
        int result = add_client(&run, i);
        if (result != CT_DEVICE_OK)
            return result;
    }
    int result = run_until(&run, until_ns);
    ct_device_advance(device, ct_device_next_change(device) == CT_DEVICE_NEVER ? ct_device_now(device) : until_ns);
    collect(&run);
    return result;
}
