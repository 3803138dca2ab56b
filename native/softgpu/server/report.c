/* The report of a device as JSON: properties, counters, clients, delays between clients, and unsupported calls. */
#include "softgpu/server/server.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static const char *const symbols[SG_NAME_COUNT] = {
#define NAME(symbol, base, since, per_thread) #symbol,
#include "softgpu/abi/names.def"
#undef NAME
};

/* Indexed by CUprocessState. */
static const char *state_of(const struct sg_client *client)
{
    static const char *const states[] = {"running", "locked", "checkpointed", "failed"};
    return client->locker ? "locking" : states[client->state];
}

struct text {
    char *at;
    size_t remaining;
};

__attribute__((format(printf, 2, 3))) static void append(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int wrote = vsnprintf(text->at, text->remaining, format, arguments);
    va_end(arguments);
    if (wrote < 0 || (size_t)wrote >= text->remaining)
        /* The buffer is full: truncated JSON fails to parse, whereas a shortened value would be wrong. */
        wrote = (int)(text->remaining ? text->remaining - 1 : 0);
    text->at += wrote;
    text->remaining -= (size_t)wrote;
}

static void counters(struct text *text, const struct ct_device_counters *c)
{
    append(text,
           "{\"kernels\":%" PRIu64 ",\"blocks\":%" PRIu64 ",\"copies\":%" PRIu64 ",\"memsets\":%" PRIu64
           ",\"host_functions\":%" PRIu64 ",\"killed_ops\":%" PRIu64 ",\"busy_ns\":%" PRIu64 ",\"sm_ns\":%" PRIu64
           ",\"thread_ns\":%" PRIu64 ",\"traffic_bytes\":%" PRIu64 ",\"host_bytes\":%" PRIu64 ",\"delayed_ns\":%" PRIu64
           ",\"memory_bytes\":%" PRIu64 ",\"memory_peak_bytes\":%" PRIu64 ",\"switches\":%" PRIu64
           ",\"late_calls\":%" PRIu64 "}",
           c->kernels, c->blocks, c->copies, c->memsets, c->host_functions, c->killed_ops, c->busy_ns, c->sm_ns,
           c->thread_ns, c->traffic_bytes, c->host_bytes, c->delayed_ns, c->memory_bytes, c->memory_peak_bytes,
           c->switches, c->late_calls);
}

/* Use of the last whole sample period, which NVML calls utilization, and SM activity, which NVML does not report. */
static void usage(struct sg_server *server, struct text *text)
{
    const struct sg_sample *last = sg_sample_back(server, 0), *before = sg_sample_back(server, 1);
    uint64_t period_ns = last->at_ns - before->at_ns, sm_ns = last->sm_ns - before->sm_ns;
    double sms = (double)period_ns * ct_device_config(server->device)->sm_count;
    append(text,
           ",\"utilization\":{\"at_ns\":%" PRIu64 ",\"period_ns\":%" PRIu64 ",\"busy_ns\":%" PRIu64
           ",\"sm_ns\":%" PRIu64 ",\"traffic_bytes\":%" PRIu64 ",\"sm_activity\":%.6f,\"energy_uj\":%" PRIu64
           ",\"temperature_mc\":%" PRIu32 "}",
           last->at_ns, period_ns, last->busy_ns - before->busy_ns, sm_ns, last->traffic_bytes - before->traffic_bytes,
           period_ns ? (double)sm_ns / sms : 0, last->energy_uj, last->temperature_mc);
}

static void clients(struct sg_server *server, struct text *text)
{
    const char *comma = "";
    for (int i = 0; i < SG_CONNECTIONS; i++) {
        struct sg_client *client = server->clients[i];
        struct ct_device_counters c;
        if (!client || !client->is_registered ||
            ct_device_count_client(server->device, client->model, &c) != CT_DEVICE_OK)
            continue;
        append(text,
               "%s{\"pid\":%d,\"group\":%" PRIu32 ",\"sm_cap\":%" PRIu32 ",\"fault\":%" PRIu32 ",\"submitted\":%" PRIu64
               ",\"account\":\"%s\",\"managed_bytes\":%" PRIu64 ",\"state\":\"%s\",\"parked_bytes\":%" PRIu64
               ",\"counters\":",
               comma, (int)client->pid, client->group, client->admission.sm_cap, client->fault.code, client->submitted,
               client->account_name, client->ring ? atomic_load(&client->ring->managed_bytes) : 0, state_of(client),
               ct_device_client_parked(server->device, client->model));
        counters(text, &c);
        append(text, ",\"delayed_by\":[");
        const char *inner = "";
        for (int j = 0; j < SG_CONNECTIONS; j++) {
            struct sg_client *other = server->clients[j];
            uint64_t delay_ns =
                other && other->is_registered ? ct_device_delay(server->device, client->model, other->model) : 0;
            if (!delay_ns)
                continue;
            append(text, "%s{\"pid\":%d,\"delay_ns\":%" PRIu64 "}", inner, (int)other->pid, delay_ns);
            inner = ",";
        }
        append(text, "]}");
        comma = ",";
    }
}

/* MPS servers, which hold the device on behalf of their clients. */
static void groups(struct sg_server *server, struct text *text)
{
    const char *comma = "";
    for (int i = 0; i < SG_GROUPS; i++) {
        const struct sg_group *group = &server->groups[i];
        if (!group->number)
            continue;
        append(text, "%s{\"group\":%" PRIu32 ",\"pid\":%d}", comma, group->number,
               (int)server->clients[group->owner]->pid);
        comma = ",";
    }
}

static void accounts(const struct sg_server *server, struct text *text)
{
    const char *comma = "";
    for (int i = 0; i < SG_ACCOUNTS; i++) {
        const struct sg_account *account = &server->accounts[i];
        if (!account->name[0])
            continue;
        append(text,
               "%s{\"account\":\"%s\",\"clients\":%" PRIu32 ",\"connected\":%" PRIu64 ",\"memory_bytes\":%" PRIu64
               ",\"memory_peak_bytes\":%" PRIu64 ",\"left_bytes\":%" PRIu64 ",\"kept_peak_bytes\":%" PRIu64 "}",
               comma, account->name, account->clients, account->connected, account->memory_bytes,
               account->memory_peak_bytes, account->left_bytes, account->kept_peak_bytes);
        comma = ",";
    }
}

static void xids(const struct sg_server *server, struct text *text)
{
    uint64_t last = server->faults.xid_count, kept = last < SG_XIDS ? last : SG_XIDS;
    append(text, ",\"xids\":[");
    for (uint64_t i = last - kept + 1; i <= last; i++) {
        const struct sg_xid *entry = &server->faults.xids[i % SG_XIDS];
        append(text,
               "%s{\"sequence\":%" PRIu64 ",\"xid\":%" PRIu32 ",\"pid\":%d,\"at_ns\":%" PRIu64 ",\"text\":\"%s\"}",
               i > last - kept + 1 ? "," : "", entry->sequence, entry->xid, (int)entry->pid, entry->at_ns, entry->text);
    }
    append(text, "]");
}

size_t sg_report(struct sg_server *server, char *buffer, size_t bytes)
{
    struct text text = {buffer, bytes};
    const struct ct_device_config *config = ct_device_config(server->device);
    struct ct_device_counters whole;
    ct_device_count(server->device, &whole);
    append(&text,
           "{\"ordinal\":%" PRIu32 ",\"name\":\"%s\",\"preset\":\"%s\",\"pid\":%d,\"memory_bytes\":%" PRIu64
           ",\"memory_free_bytes\":%" PRIu64 ",\"sm_count\":%" PRIu32 ",\"now_ns\":%" PRIu64 ",\"uuid\":\"",
           server->ordinal, config->name, config->key, (int)getpid(), config->memory_bytes,
           ct_device_memory_free(server->device), config->sm_count, ct_device_now(server->device));
    for (int i = 0; i < 16; i++)
        append(&text, "%02x", server->uuid[i]);
    append(&text, "\",\"connected\":%" PRIu64 ",\"left\":%" PRIu64 ",\"refused_slots\":%" PRIu64 ",\"counters\":",
           server->connected, server->disconnected, server->refused_slots);
    counters(&text, &whole);
    usage(server, &text);
    append(&text, ",\"lost\":%s,\"speed\":%.6f,\"mps_death_harms\":%s", server->faults.lost ? "true" : "false",
           (double)ct_device_speed(server->device) / CT_DEVICE_FULL_SPEED,
           server->faults.is_death_isolated ? "false" : "true");
    xids(server, &text);
    append(&text, ",\"clients\":[");
    clients(server, &text);
    append(&text, "],\"compute_mode\":%" PRIu32 ",\"groups\":[", server->compute_mode);
    groups(server, &text);
    append(&text, "],\"context_bytes\":%" PRIu64 ",\"counts_code\":%s,\"accounts\":[", config->context_bytes,
           server->counts_code ? "true" : "false");
    accounts(server, &text);
    append(&text, "],\"code\":{\"executable_kernels\":%" PRIu64 ",\"refused_kernels\":%" PRIu64 "},\"unsupported\":{",
           server->executable_kernels, server->refused_kernels);
    const char *comma = "";
    for (int i = 0; i < SG_NAME_COUNT; i++) {
        if (!server->unsupported[i])
            continue;
        append(&text, "%s\"%s\":%" PRIu64, comma, symbols[i], server->unsupported[i]);
        comma = ",";
    }
    append(&text, "}}");
    return (size_t)(text.at - buffer);
}
