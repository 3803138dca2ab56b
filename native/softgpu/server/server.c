/* The server's loop: who comes, who asks, who died. It sleeps unless somebody asks, so an idle GPU costs nothing. */
#define _GNU_SOURCE
#include "softgpu/server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What epoll hands back: the place, which of its two descriptors, and a serial number, so that news of a client that
 * was dropped a moment ago is not taken for news of the next one in its place. */
static uint64_t token_of(int index, int is_pid, uint32_t serial)
{
    return (uint64_t)(uint32_t)index | (uint64_t)is_pid << 16 | (uint64_t)serial << 32;
}

/* How long the server sleeps while it has clients, though nobody asks: competing clients change the model every slice,
 * and whoever asks next should not wait for hours of slices to be worked off. */
enum { LISTENER = 0xffff, LOOK_MS = 10000 };

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

void sg_disturb(struct sg_server *server)
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
    sg_checkpoint_forget(server, index);
    /* The others' work, and its own until now, comes before its end. */
    sg_pump(server, sg_now_ns());
    sg_group_hear_out(server, index);
    if (client->greeted)
        sg_share_leave(server, index);
    sg_fault_death(server, index);
    sg_group_close(server, index);
    sg_account_leave(server, index);
    server->clients[index] = NULL;
    if (client->greeted) {
        ct_device_client_kill(server->device, sg_now_ns(), client->model);
        for (int i = 0; i <= CT_DEVICE_MAX_HANDLES; i++) {
            if (server->contexts[i].client == index + 1)
                server->contexts[i].client = 0;
            if (server->streams[i].client == index + 1)
                server->streams[i].client = 0;
            if (server->events[i].client == index + 1)
                server->events[i].client = 0;
        }
        server->died++;
        sg_disturb(server);
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

static void welcome(struct sg_server *server)
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
    /* The socket alone would not do: a child forked by the client may hold it open past the client's death. A pid of
     * another namespace is 0 here, and then the socket has to do. */
    client->pidfd = peer.pid > 0 ? (int)syscall(SYS_pidfd_open, peer.pid, 0) : -1;
    server->clients[index] = client;
    if (client->pidfd >= 0)
        watch(server, client->pidfd, token_of(index, 1, client->serial));
}

/* One message at a time, so that no client holds up the others. */
static void listen_to(struct sg_server *server, int index)
{
    struct sg_client *client = server->clients[index];
    struct sg_greeting said;
    ssize_t got = recv(client->socket, &said, sizeof said, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int is_greeting = got == (ssize_t)sizeof said && said.request.kind == SG_HELLO && !client->greeted;
    if (is_greeting)
        memcpy(client->account_name, said.account, sizeof client->account_name);
    if ((got != (ssize_t)sizeof said.request && !is_greeting) || sg_answer(server, index, &said.request) < 0)
        drop(server, index);
}

/* Faults that come or go by themselves are the only thing the server does at an instant of its own. */
static int patience_ms(const struct sg_server *server)
{
    uint64_t now_ns = sg_now_ns(), due_ns = sg_fault_due_ns(server);
    uint64_t left_ms = due_ns > now_ns ? (due_ns - now_ns + 999999) / 1000000 : 0;
    if (due_ns != CT_DEVICE_NEVER && left_ms < LOOK_MS)
        return (int)left_ms;
    return server->connected > server->died || due_ns != CT_DEVICE_NEVER ? LOOK_MS : -1;
}

static void turn(struct sg_server *server)
{
    struct epoll_event events[16];
    int count = epoll_wait(server->epoll, events, 16, patience_ms(server));
    if (count == 0)
        sg_pump(server, sg_now_ns());
    sg_fault_tick(server, sg_now_ns());
    for (int i = 0; i < count; i++) {
        uint64_t token = events[i].data.u64;
        int index = (int)(token & 0xffff), is_death = (int)(token >> 16 & 1);
        if (index == LISTENER)
            welcome(server);
        else if (!server->clients[index] || server->clients[index]->serial != (uint32_t)(token >> 32))
            continue;
        else if (is_death)
            drop(server, index);
        else if (sg_is_asleep(server->clients[index]) && events[i].events == EPOLLIN)
            continue; /* it was locked a moment ago: what it says has to wait */
        else
            listen_to(server, index);
    }
    for (int i = 0; i < SG_CONNECTIONS; i++)
        if (server->clients[i] && server->clients[i]->nonsense > SG_NONSENSE)
            drop(server, i);
}


void *sg_shared(int *descriptor, size_t bytes, const char *name)
{
    *descriptor = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*descriptor < 0)
        return NULL;
    /* Sealed: a client that cuts the file short would otherwise kill whoever else has it mapped. */
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
    server->bulletin = sg_shared(&server->bulletin_fd, sizeof *server->bulletin, "softgpu-bulletin");
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!server->bulletin || server->epoll < 0 || watch(server, server->listener, LISTENER) < 0)
        return errno ? errno : EINVAL;
    return 0;
}

int sg_serve(int listener, const struct ct_device_config *config, uint32_t ordinal, const uint8_t *uuid, int counts_code)
{
    struct sg_server *server = mmap(NULL, sizeof *server, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (server == MAP_FAILED)
        return errno;
    server->listener = listener;
    server->ordinal = ordinal;
    server->counts_code = counts_code;
    memcpy(server->uuid, uuid, sizeof server->uuid);
    int failed = start(server, config);
    while (!failed && !server->stop)
        turn(server);
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
