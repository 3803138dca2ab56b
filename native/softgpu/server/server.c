/* The event loop: accepts connections, handles requests and drops dead clients. It sleeps when idle, so an idle GPU
 * costs no CPU time. */
#define _GNU_SOURCE
#include "softgpu/server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The epoll token: index, descriptor (socket or pidfd), and a serial number that distinguishes successive clients with
 * the same index. */
static uint64_t token_of(int index, int is_pid, uint32_t serial)
{
    return (uint64_t)(uint32_t)index | (uint64_t)is_pid << 16 | (uint64_t)serial << 32;
}

/* The longest sleep with connected clients. Competing clients change the model every slice, so without regular pumps a
 * request could have to process hours of slices. */
enum { LISTENER = 0xffff, IDLE_PUMP_MS = 10000 };

uint64_t sg_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t sg_wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void sg_own(struct sg_owner *table, uint32_t handle, int index)
{
    table[handle & 0xffff] = (struct sg_owner){handle, (uint16_t)(index + 1)};
}

int sg_owns(const struct sg_owner *table, uint64_t handle, int index)
{
    return handle && handle <= UINT32_MAX && table[handle & 0xffff].handle == handle &&
           table[handle & 0xffff].client == index + 1;
}

void sg_invalidate_projections(struct sg_server *server)
{
    atomic_fetch_add(&server->bulletin->submissions, 1);
    for (int i = 0; i < SG_CONNECTIONS; i++) {
        struct sg_client *client = server->clients[i];
        if (!client || !client->ring)
            continue;
        atomic_fetch_add(&client->ring->wake, 1);
        syscall(SYS_futex, &client->ring->wake, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

static void drop(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    sg_checkpoint_release(server, index);
    /* Apply all work up to now before the client ends. */
    sg_pump(server, sg_now_ns());
    sg_group_read_leave(server, index);
    if (client->is_registered)
        sg_share_release_client(server, index);
    sg_fault_death(server, index);
    sg_group_close(server, index);
    sg_account_leave(server, index);
    server->clients[index] = NULL;
    if (client->is_registered) {
        ct_device_client_kill(server->device, sg_now_ns(), client->model);
        for (int i = 0; i <= CT_DEVICE_MAX_HANDLES; i++) {
            if (server->contexts[i].client == index + 1)
                server->contexts[i].client = 0;
            if (server->streams[i].client == index + 1)
                server->streams[i].client = 0;
            if (server->events[i].client == index + 1)
                server->events[i].client = 0;
        }
        server->disconnected++;
        sg_invalidate_projections(server);
    }
    if (client->ring)
        munmap(client->ring, sizeof *client->ring);
    if (client->pidfd >= 0)
        close(client->pidfd);
    close(client->socket);
    free(client);
}

static int watch(struct sg_server *server, int descriptor, uint64_t token)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = token};
    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, descriptor, &event);
}

/* ---- who a client is ---------------------------------------------------------------------------------------------- */

enum { MAP_BYTES = 4096 };

static int namespace_of(pid_t pid, const char *kind, struct stat *status)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, kind);
    return stat(path, status) == 0;
}

/* Reads the map of user ids of a process's user namespace; returns its length, or -1. */
static ssize_t read_map(pid_t pid, char text[static MAP_BYTES])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = descriptor < 0 ? -1 : read(descriptor, text, MAP_BYTES);
    if (descriptor >= 0)
        close(descriptor);
    return got;
}

static int has_same_map(pid_t one, pid_t other)
{
    char first[MAP_BYTES], second[MAP_BYTES];
    const ssize_t got = read_map(one, first);
    return got > 0 && read_map(other, second) == got && memcmp(first, second, (size_t)got) == 0;
}

int sg_shares_namespace(pid_t one, pid_t other, const char *kind)
{
    struct stat first, second;
    if (one <= 0 || other <= 0)
        return 0;
    if (one == other)
        return 1;
    /* The links of a process with more capabilities than this one cannot be read; its map of user ids can. */
    if (!namespace_of(one, kind, &first) || !namespace_of(other, kind, &second))
        return errno == EACCES && has_same_map(one, other);
    return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

int sg_is_owner(const struct sg_client *client)
{
    return (client->uid == geteuid() || !client->uid) && sg_shares_namespace(client->pid, getpid(), "user");
}

static void accept_connection(struct sg_server *server)
{
    int socket = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0)
        return;
    int index = 0;
    while (index < SG_CONNECTIONS && server->clients[index])
        index++;
    struct sg_client *client = index < SG_CONNECTIONS ? calloc(1, sizeof *client) : NULL;
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    if (!client || getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0 ||
        watch(server, socket, token_of(index, 0, ++server->serial)) < 0) {
        close(socket);
        free(client);
        return;
    }
    client->socket = socket;
    client->serial = server->serial;
    client->token = token_of(index, 0, client->serial);
    client->pid = peer.pid;
    client->uid = peer.uid;
    /* The socket does not suffice, because a forked child may keep it open after the client's death. The pid of a
     * process in another pid namespace is 0; then only the socket is used. */
    client->pidfd = peer.pid > 0 ? (int)syscall(SYS_pidfd_open, peer.pid, 0) : -1;
    server->clients[index] = client;
    if (client->pidfd >= 0)
        watch(server, client->pidfd, token_of(index, 1, client->serial));
}

/* Handle one message at a time, so that no client delays the others. */
static void receive_request(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    struct sg_hello_request message;
    ssize_t got = recv(client->socket, &message, sizeof message, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int is_hello = got == (ssize_t)sizeof message && message.request.kind == SG_HELLO && !client->is_registered;
    if (is_hello)
        memcpy(client->account_name, message.account, sizeof client->account_name);
    if ((got != (ssize_t)sizeof message.request && !is_hello) || sg_answer(server, index, &message.request) < 0)
        drop(server, index);
}

/* Timeouts of faults are the only timers of the server. */
static int poll_timeout_ms(const struct sg_server *server)
{
    uint64_t now_ns = sg_now_ns(), due_ns = sg_fault_due_ns(server);
    uint64_t remaining_ms = due_ns > now_ns ? (due_ns - now_ns + 999999) / 1000000 : 0;
    if (due_ns != CT_DEVICE_NEVER && remaining_ms < IDLE_PUMP_MS)
        return (int)remaining_ms;
    return server->connected > server->disconnected || due_ns != CT_DEVICE_NEVER ? IDLE_PUMP_MS : -1;
}

static void run_once(struct sg_server *server)
{
    struct epoll_event events[16];
    int count = epoll_wait(server->epoll, events, 16, poll_timeout_ms(server));
    if (count == 0)
        sg_pump(server, sg_now_ns());
    sg_fault_tick(server, sg_now_ns());
    for (int i = 0; i < count; i++) {
        uint64_t token = events[i].data.u64;
        int index = (int)(token & 0xffff), is_death = (int)(token >> 16 & 1);
        if (index == LISTENER)
            accept_connection(server);
        else if (!server->clients[index] || server->clients[index]->serial != (uint32_t)(token >> 32))
            continue;
        else if (is_death)
            drop(server, index);
        else if (sg_is_suspended(server->clients[index]) && events[i].events == EPOLLIN)
            continue; /* it was locked just before, so its request must wait */
        else
            receive_request(server, index);
    }
    for (int i = 0; i < SG_CONNECTIONS; i++)
        if (server->clients[i] && server->clients[i]->invalid_slots > SG_INVALID_SLOT_LIMIT)
            drop(server, i);
}


void *sg_map_shared(int *descriptor, size_t bytes, const char *name)
{
    *descriptor = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*descriptor < 0)
        return NULL;
    /* Seal the size: a client that truncated the file would crash every process that maps it. */
    void *memory = MAP_FAILED;
    if (ftruncate(*descriptor, (off_t)bytes) == 0 &&
        fcntl(*descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *descriptor, 0);
    if (memory != MAP_FAILED)
        return memory;
    close(*descriptor);
    *descriptor = -1;
    return NULL;
}

static int start(struct sg_server *server, const struct ct_device_config *config)
{
    const struct ct_device_limits limits = {
        .clients = SG_CLIENTS,
        .contexts = SG_CONTEXTS,
        .streams = SG_STREAMS,
        .events = SG_EVENTS,
        .ops = SG_CLIENTS * SG_WINDOW,
        .records = SG_TRACE_RECORDS,
    };
    if (config->slice_ns < SG_MIN_SLICE_NS)
        return EINVAL;
    sg_share_start();
    size_t bytes = ct_device_bytes(&limits);
    void *memory = bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                         : MAP_FAILED;
    if (memory == MAP_FAILED)
        return ENOMEM;
    struct ct_device_config wide = *config;
    server->priority_least = config->priority_least;
    wide.priority_least += config->priority_least - config->priority_greatest + 1;
    if (ct_device_init(memory, bytes, &wide, &limits, sg_now_ns(), &server->device) != CT_DEVICE_OK)
        return EINVAL;
    sg_trace_start(server);
    sg_sample_start(server);
    server->bulletin = sg_map_shared(&server->bulletin_fd, sizeof *server->bulletin, "softgpu-bulletin");
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!server->bulletin || server->epoll < 0 || watch(server, server->listener, LISTENER) < 0)
        return errno ? errno : EINVAL;
    return 0;
}

int sg_serve(int listener, const struct ct_device_config *config, const struct sg_costs *costs, uint32_t ordinal,
             const uint8_t *uuid, int counts_code)
{
    struct sg_server *server = mmap(NULL, sizeof *server, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (server == MAP_FAILED)
        return errno;
    server->listener = listener;
    server->ordinal = ordinal;
    server->counts_code = counts_code;
    server->costs = *costs;
    memcpy(server->uuid, uuid, sizeof server->uuid);
    int failed = start(server, config);
    while (!failed && !server->stop)
        run_once(server);
    for (int i = 0; i < SG_CONNECTIONS; i++)
        if (server->clients[i])
            drop(server, i);
    if (server->epoll > 0)
        close(server->epoll);
    if (server->bulletin) {
        munmap(server->bulletin, sizeof *server->bulletin);
        close(server->bulletin_fd);
    }
    munmap(server, sizeof *server);
    return failed;
}
