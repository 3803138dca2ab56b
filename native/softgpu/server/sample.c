/* Counters at regular instants. No timer is needed: every advance of the model stops at the sample boundaries. */
#include "softgpu/abi/cuda.h"
#include "softgpu/server/server.h"

#include <string.h>

static struct sg_sample *slot_of(struct sg_server *server, uint64_t number)
{
    return &server->history.ring[number % (SG_SAMPLES_KEPT + 1)];
}

/* A checkpointed process does not appear to hold the device. */
static int is_on_device(const struct sg_client *client)
{
    return client && client->state != CU_PROCESS_STATE_CHECKPOINTED;
}

static uint32_t contexts_of(struct sg_server *server, int index)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i <= SG_CONTEXTS; i++) {
        int owner = server->contexts[i].client - 1;
        count += owner >= 0 && (index < 0 || owner == index) && is_on_device(server->clients[owner]) &&
                 ct_device_context_query(server->device, server->contexts[i].handle) != CT_DEVICE_STALE;
    }
    return count;
}

static uint32_t clock_ppm(const struct sg_server *server)
{
    return (uint32_t)((uint64_t)SG_CLOCK_FULL_PPM * ct_device_speed(server->device) / CT_DEVICE_FULL_SPEED);
}

/* Read the counters and compute the board's sensor values from the previous sample. */
static void read_counters(struct sg_server *server, const struct sg_sample *before, struct sg_sample *now)
{
    const struct ct_device_config *config = ct_device_config(server->device);
    const struct ct_board *board = ct_board_of(config);
    struct ct_device_counters c;
    ct_device_count(server->device, &c);
    *now = (struct sg_sample){
        .at_ns = ct_device_now(server->device),
        .busy_ns = c.busy_ns,
        .sm_ns = c.sm_ns,
        .thread_ns = c.thread_ns,
        .traffic_bytes = c.traffic_bytes,
        .host_bytes = c.host_bytes,
        .to_host_bytes = c.to_host_bytes,
        .clock_ppm = clock_ppm(server),
        .contexts = contexts_of(server, -1),
    };
    struct ct_board_use use = {
        .passed_ns = now->at_ns - before->at_ns,
        .sm_ns = now->sm_ns - before->sm_ns,
        .traffic_bytes = now->traffic_bytes - before->traffic_bytes,
        .clock_ppm = now->clock_ppm,
    };
    double energy_uj = ct_board_energy_uj(board, config, &use);
    double power_mw = use.passed_ns ? energy_uj * 1e6 / (double)use.passed_ns : 0;
    now->energy_uj = before->energy_uj + (uint64_t)energy_uj;
    now->temperature_mc = (uint32_t)(1e3 * ct_board_temperature_c(board, before->temperature_mc / 1e3, power_mw,
                                                                  use.passed_ns));
}

static struct sg_usage usage_of(struct sg_server *server, const struct sg_client *client)
{
    struct ct_device_counters c = {0};
    ct_device_count_client(server->device, client->model, &c);
    return (struct sg_usage){c.busy_ns, c.sm_ns, c.traffic_bytes};
}

static void take_sample(struct sg_server *server)
{
    struct sg_history *history = &server->history;
    read_counters(server, slot_of(server, history->count - 1), slot_of(server, history->count));
    for (int i = 0; i < SG_CONNECTIONS; i++)
        if (server->clients[i] && server->clients[i]->is_registered)
            server->clients[i]->usages[history->count % (SG_SAMPLES_KEPT + 1)] = usage_of(server, server->clients[i]);
    history->count++;
}

void sg_sample_start(struct sg_server *server)
{
    struct sg_history *history = &server->history;
    const struct ct_board *board = ct_board_of(ct_device_config(server->device));
    history->start_ns = ct_device_now(server->device);
    history->next_ns = history->start_ns + SG_SAMPLE_NS;
    history->epoch_ns = sg_wall_ns() - sg_now_ns();
    history->ring[0] = (struct sg_sample){.at_ns = history->start_ns,
                                          .temperature_mc = (uint32_t)(1e3 * ct_board_idle_c(board)),
                                          .clock_ppm = SG_CLOCK_FULL_PPM};
    history->count = 1;
}

void sg_sample_until(struct sg_server *server, uint64_t until_ns)
{
    struct sg_history *history = &server->history;
    if (until_ns < history->next_ns)
        return;
    /* After a long idle time, only sample the boundaries that are kept and the one before them. */
    uint64_t due = (until_ns - history->next_ns) / SG_SAMPLE_NS;
    if (due > SG_SAMPLES_KEPT)
        history->next_ns += (due - SG_SAMPLES_KEPT) * SG_SAMPLE_NS;
    for (; history->next_ns <= until_ns; history->next_ns += SG_SAMPLE_NS) {
        ct_device_advance(server->device, history->next_ns);
        take_sample(server);
    }
}

void sg_sample_join(struct sg_server *server, struct sg_client *client)
{
    client->first_sample = server->history.count - 1;
    client->usages[client->first_sample % (SG_SAMPLES_KEPT + 1)] = (struct sg_usage){0, 0, 0};
}

/* Return the number of the latest kept sample at or before an instant. */
static uint64_t number_at(struct sg_server *server, uint64_t at_ns)
{
    uint64_t latest = server->history.count - 1;
    uint64_t number = latest > SG_SAMPLES_KEPT ? latest - SG_SAMPLES_KEPT : 0;
    while (number < latest && slot_of(server, number + 1)->at_ns <= at_ns)
        number++;
    return number;
}

/* Return the number of the newest sample that NVML shows. */
static uint64_t shown_sample(const struct sg_server *server)
{
    uint64_t latest = server->history.count - 1, back = server->costs.nvml_delay_ns / SG_SAMPLE_NS;
    back = back < SG_SAMPLES_KEPT / 2 ? back : SG_SAMPLES_KEPT / 2;
    return back < latest ? latest - back : 0;
}

static uint64_t averaged_samples(const struct sg_server *server)
{
    uint64_t samples = server->costs.nvml_window_ns / SG_SAMPLE_NS;
    return samples < 1 ? 1 : samples < SG_SAMPLES_KEPT / 2 ? samples : SG_SAMPLES_KEPT / 2;
}

static struct sg_process_usage usage_since(struct sg_server *server, int index, uint64_t since)
{
    const struct sg_client *client = server->clients[index];
    uint64_t latest = shown_sample(server), from = client->first_sample > since ? client->first_sample : since;
    latest = latest < from ? from : latest; /* a client that joined after the shown sample */
    const struct sg_usage *first = &client->usages[from % (SG_SAMPLES_KEPT + 1)];
    const struct sg_usage *last = &client->usages[latest % (SG_SAMPLES_KEPT + 1)];
    struct ct_device_counters c = {0};
    ct_device_count_client(server->device, client->model, &c);
    return (struct sg_process_usage){
        .pid = client->pid,
        .contexts = contexts_of(server, index),
        .is_group_member = client->group != 0,
        .memory_bytes = c.memory_bytes,
        .window_ns = slot_of(server, latest)->at_ns - slot_of(server, from)->at_ns,
        .busy_ns = last->busy_ns - first->busy_ns,
        .sm_ns = last->sm_ns - first->sm_ns,
        .traffic_bytes = last->traffic_bytes - first->traffic_bytes,
    };
}

/* NVML reports by process: the connections of a process that has loaded the driver more than once are added up. */
static void observe_client(struct sg_server *server, int index, uint64_t since, struct sg_observation *observation)
{
    const struct sg_process_usage usage = usage_since(server, index, since);
    for (uint32_t i = 0; i < observation->client_count; i++) {
        struct sg_process_usage *process = &observation->clients[i];
        if (process->pid != usage.pid)
            continue;
        process->contexts += usage.contexts;
        process->is_group_member |= usage.is_group_member;
        process->memory_bytes += usage.memory_bytes;
        process->window_ns = usage.window_ns > process->window_ns ? usage.window_ns : process->window_ns;
        process->busy_ns += usage.busy_ns;
        process->sm_ns += usage.sm_ns;
        process->traffic_bytes += usage.traffic_bytes;
        return;
    }
    if (observation->client_count < CT_DEVICE_MAX_CLIENTS)
        observation->clients[observation->client_count++] = usage;
}

/* An MPS server holds the device when one of its clients has a context. Memory and use are reported for the clients. */
static void observe_groups(struct sg_server *server, struct sg_observation *observation)
{
    for (int i = 0; i < SG_GROUPS; i++) {
        const struct sg_group *group = &server->groups[i];
        int holds = 0;
        for (int k = 0; group->number && !holds && k < SG_CONNECTIONS; k++)
            holds = server->clients[k] && server->clients[k]->group == group->number && contexts_of(server, k);
        if (holds && observation->client_count < CT_DEVICE_MAX_CLIENTS)
            observation->clients[observation->client_count++] =
                (struct sg_process_usage){.pid = server->clients[group->owner]->pid, .contexts = 1};
    }
}

void sg_observe(struct sg_server *server, uint64_t since_ns, struct sg_observation *observation)
{
    struct sg_history *history = &server->history;
    uint64_t latest = shown_sample(server), window = averaged_samples(server);
    uint64_t since = number_at(server, since_ns);
    since = since > latest ? latest : since;
    if (since_ns == SG_LATEST_PERIOD)
        since = window < latest ? latest - window : 0;
    observation->result = CT_DEVICE_OK;
    observation->compute_mode = server->compute_mode;
    observation->is_lost = server->faults.lost;
    observation->ecc_errors = server->faults.ecc_errors;
    observation->ecc_errors_since_reset = server->faults.ecc_errors - server->faults.ecc_errors_at_reset;
    observation->rows = server->faults.rows;
    observation->rows_since_reset = server->faults.rows - server->faults.rows_at_reset;
    observation->xids = server->faults.xid_count;
    observation->epoch_ns = history->epoch_ns;
    observation->start_ns = history->start_ns;
    observation->memory_bytes = ct_device_config(server->device)->memory_bytes;
    observation->memory_free_bytes = ct_device_memory_free(server->device);
    read_counters(server, slot_of(server, history->count - 1), &observation->now);
    if (since_ns == SG_LATEST_PERIOD) { /* both ends of the period over which values are averaged */
        observation->samples[0] = *slot_of(server, since);
        observation->samples[1] = *slot_of(server, latest);
        observation->sample_count = latest > since;
    } else {
        for (uint64_t i = since; i <= latest; i++)
            observation->samples[i - since] = *slot_of(server, i);
        observation->sample_count = (uint32_t)(latest - since);
    }
    for (int i = 0; i < SG_CONNECTIONS; i++)
        if (server->clients[i] && server->clients[i]->is_registered)
            observe_client(server, i, since, observation);
    observe_groups(server, observation);
}

const struct sg_sample *sg_sample_back(struct sg_server *server, uint64_t back)
{
    uint64_t latest = server->history.count - 1;
    return slot_of(server, latest - (back < latest ? back : latest));
}
