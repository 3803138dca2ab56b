/* The connection to a device server: connect, send requests, and submit work to the ring without a request. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The server replies within microseconds. A server that does not reply within this time is treated as dead. */
enum { REPLY_TIMEOUT_MS = 30000, LOCK_POLL_US = 50 };

static void mark_lost(struct sg_connection *connection)
{
    connection->lost = 1;
    if (connection->ring)
        sg_wake(connection);
}

CUresult sg_result(int model_result)
{
    switch (model_result) {
    case CT_DEVICE_OK:
        return CUDA_SUCCESS;
    case CT_DEVICE_STALE:
        return CUDA_ERROR_INVALID_HANDLE;
    case CT_DEVICE_FULL:
    case CT_DEVICE_NO_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case CT_DEVICE_NO_FIT:
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    case CT_DEVICE_NOT_READY:
        return CUDA_ERROR_NOT_READY;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Wait for a reply and retry after signals. While this process is locked the server sends no reply. */
static ssize_t receive(const struct sg_connection *connection, struct msghdr *message)
{
    struct pollfd poll_fd = {.fd = connection->socket, .events = POLLIN};
    for (;;) {
        int ready = poll(&poll_fd, 1, REPLY_TIMEOUT_MS);
        if ((ready < 0 && errno == EINTR) || (ready == 0 && connection->ring && atomic_load(&connection->ring->held)))
            continue;
        if (ready <= 0)
            return -1;
        ssize_t got = recvmsg(connection->socket, message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        return got;
    }
}

static int send_message(struct sg_connection *connection, const void *words, size_t bytes)
{
    ssize_t sent;
    do
        sent = send(connection->socket, words, bytes, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes ? 0 : -1;
}

/* Return the descriptors that came with a message; the caller closes them. -1: none. */
static void descriptors_of(struct msghdr *message, int descriptors[2])
{
    struct cmsghdr *rights = CMSG_FIRSTHDR(message);
    descriptors[0] = descriptors[1] = -1;
    if (!rights || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS)
        return;
    size_t bytes = rights->cmsg_len - CMSG_LEN(0);
    memcpy(descriptors, CMSG_DATA(rights), bytes < 2 * sizeof(int) ? bytes : 2 * sizeof(int));
}

int sg_call_fd(struct sg_connection *connection, const struct sg_request *request, struct sg_reply *reply,
               int *descriptor)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec words = {reply, sizeof *reply};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1};
    int descriptors[2] = {-1, -1};
    if (connection->lost)
        return -1;
    if (descriptor) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
    }
    if (send_message(connection, request, sizeof *request) == 0 &&
        receive(connection, &message) == (ssize_t)sizeof *reply) {
        if (descriptor) {
            descriptors_of(&message, descriptors);
            *descriptor = descriptors[0];
        }
        return 0;
    }
    mark_lost(connection);
    return -1;
}

int sg_call(struct sg_connection *connection, const struct sg_request *request, struct sg_reply *reply)
{
    return sg_call_fd(connection, request, reply, NULL);
}

static void *map(int descriptor, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_DONTFORK); /* a child must not write to its parent's ring */
    return memory;
}

static int handshake(struct sg_device *device, uint32_t group)
{
    struct sg_connection *connection = &device->connection;
    struct sg_hello_request hello_request = {.request = {.kind = SG_HELLO, .a = SG_WIRE_VERSION, .b = group}};
    const char *account = getenv("SOFTGPU_ACCOUNT");
    struct sg_hello hello;
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec words = {&hello, sizeof hello};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int descriptors[2];
    if (account) /* without a terminating zero it is too long, and the server refuses it */
        memcpy(hello_request.account, account, strnlen(account, sizeof hello_request.account));
    ssize_t got = -1;
    if (send_message(connection, &hello_request, sizeof hello_request) == 0)
        got = receive(connection, &message);
    if (got < 0)
        return -1;
    descriptors_of(&message, descriptors);
    if (got == (ssize_t)sizeof hello && hello.result == CT_DEVICE_OK && hello.version == SG_WIRE_VERSION &&
        descriptors[0] >= 0 && descriptors[1] >= 0) {
        connection->ring = map(descriptors[0], sizeof *connection->ring);
        connection->bulletin = map(descriptors[1], sizeof *connection->bulletin);
        device->config = hello.config;
        device->number = hello.ordinal;
        device->sm_cap = hello.sm_cap;
        device->counts_code = (int)hello.counts_code;
        device->costs = hello.costs;
        memcpy(device->uuid, hello.uuid, sizeof device->uuid);
    }
    for (int i = 0; i < 2; i++)
        if (descriptors[i] >= 0)
            close(descriptors[i]);
    if (got == (ssize_t)sizeof hello && hello.result == SG_REFUSED)
        return (int)hello.refused;
    return connection->ring && connection->bulletin ? 0 : -1;
}

void sg_connection_close(struct sg_connection *connection)
{
    if (connection->ring)
        munmap(connection->ring, sizeof *connection->ring);
    if (connection->bulletin)
        munmap(connection->bulletin, sizeof *connection->bulletin);
    connection->ring = NULL;
    connection->bulletin = NULL;
    close(connection->socket);
}

int sg_connection_open(const char *path, uint32_t group, struct sg_device *device)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(device, 0, sizeof *device);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    device->connection.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (device->connection.socket < 0)
        return -1;
    int failed = connect(device->connection.socket, (struct sockaddr *)&address, sizeof address);
    if (failed == 0)
        failed = handshake(device, group);
    if (failed == 0)
        return 0;
    sg_connection_close(&device->connection);
    return failed;
}

static int is_full(const struct sg_connection *connection)
{
    return connection->tail - atomic_load_explicit(&connection->ring->head, memory_order_acquire) >= SG_RING_SLOTS;
}

/* Apply back-pressure: wait until the server has taken slots from the full ring. */
static CUresult wait_for_space(struct sg_device *device)
{
    struct sg_connection *connection = &device->connection;
    while (is_full(connection)) {
        uint32_t wake = atomic_load(&connection->ring->wake);
        struct sg_request request = {.kind = SG_PROJECT, .a = SG_TARGET_SPACE, .c = connection->tail};
        struct sg_reply reply;
        if (sg_call(connection, &request, &reply) < 0)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (!is_full(connection))
            break;
        sg_unlock();
        sg_sleep_until(connection, wake, reply.a, 0);
        sg_relock();
        CUresult status = sg_connection_status(connection);
        if (status != CUDA_SUCCESS)
            return status;
    }
    return CUDA_SUCCESS;
}

const void *sg_this_thread(void)
{
    static __thread char name;
    return &name; /* unique among the threads that exist at a time */
}

CUresult sg_stream_lock(CUstream stream)
{
    uint64_t id = stream->object.id;
    while (stream->owner_thread && stream->owner_thread != sg_this_thread()) {
        sg_unlock();
        usleep(LOCK_POLL_US);
        sg_relock();
        if (stream->object.id != id || !stream->object.alive)
            return CUDA_ERROR_INVALID_HANDLE;
    }
    stream->owner_thread = sg_this_thread();
    return CUDA_SUCCESS;
}

void sg_stream_unlock(CUstream stream)
{
    if (stream->owner_thread == sg_this_thread())
        stream->owner_thread = NULL;
}

/* Work that did not become a node before this point cannot be captured. */
static CUresult may_submit(CUstream stream)
{
    if (stream->capture)
        return sg_capture_refuse(stream);
    if (stream->is_legacy) {
        CUresult result = sg_capture_implicit(stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    if (!stream->owner_thread || stream->owner_thread == sg_this_thread())
        return CUDA_SUCCESS;
    CUresult result = sg_stream_lock(stream);
    sg_stream_unlock(stream);
    return result;
}

CUresult sg_submit(CUstream stream, struct sg_slot *slot)
{
    struct sg_device *device = stream->context->device;
    struct sg_connection *connection = &device->connection;
    static uint64_t orders;
    if (connection->lost)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    CUresult result = may_submit(stream);
    while (result == CUDA_SUCCESS && is_full(connection)) {
        result = wait_for_space(device);
        if (result == CUDA_SUCCESS)
            result = may_submit(stream); /* another thread may have locked the stream while this one waited */
    }
    if (result != CUDA_SUCCESS)
        return result;
    slot->stream = stream->model;
    slot->at_ns = sg_clock_ns();
    connection->ring->slots[connection->tail % SG_RING_SLOTS] = *slot;
    connection->tail++;
    atomic_store_explicit(&connection->ring->tail, connection->tail, memory_order_release);
    uint64_t count = atomic_fetch_add_explicit(&connection->bulletin->submissions, 1, memory_order_release);
    stream->order = ++orders;
    stream->slot = connection->tail;
    sg_note_submission(stream, count + 1);
    return CUDA_SUCCESS;
}
