/* The line to a device server: connecting, asking, and putting work into the ring without asking. */
#define _GNU_SOURCE
#include "softgpu/face.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The server answers in microseconds; one that says nothing for this long is as good as dead. */
enum { ANSWER_MS = 30000, TURN_US = 50 };

static void lose(struct sg_link *link)
{
    link->lost = 1;
    if (link->ring)
        sg_wake(link);
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

/* Waits for the answer, whatever signals arrive in between. While the process is locked there is none. */
static ssize_t hear(const struct sg_link *link, struct msghdr *message)
{
    struct pollfd line = {.fd = link->socket, .events = POLLIN};
    for (;;) {
        int ready = poll(&line, 1, ANSWER_MS);
        if ((ready < 0 && errno == EINTR) || (ready == 0 && link->ring && atomic_load(&link->ring->held)))
            continue;
        if (ready <= 0)
            return -1;
        ssize_t got = recvmsg(link->socket, message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        return got;
    }
}

static int say(struct sg_link *link, const void *words, size_t bytes)
{
    ssize_t sent;
    do
        sent = send(link->socket, words, bytes, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes ? 0 : -1;
}

/* Takes the descriptors that came with a message, if any: from here on they are ours to close. -1: none in a place. */
static void descriptors_of(struct msghdr *message, int descriptors[2])
{
    struct cmsghdr *rights = CMSG_FIRSTHDR(message);
    descriptors[0] = descriptors[1] = -1;
    if (!rights || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS)
        return;
    size_t bytes = rights->cmsg_len - CMSG_LEN(0);
    memcpy(descriptors, CMSG_DATA(rights), bytes < 2 * sizeof(int) ? bytes : 2 * sizeof(int));
}

int sg_ask_for(struct sg_link *link, const struct sg_request *request, struct sg_reply *reply, int *descriptor)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec words = {reply, sizeof *reply};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1};
    int descriptors[2] = {-1, -1};
    if (link->lost)
        return -1;
    if (descriptor) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
    }
    if (say(link, request, sizeof *request) == 0 && hear(link, &message) == (ssize_t)sizeof *reply) {
        if (descriptor) {
            descriptors_of(&message, descriptors);
            *descriptor = descriptors[0];
        }
        return 0;
    }
    lose(link);
    return -1;
}

int sg_ask(struct sg_link *link, const struct sg_request *request, struct sg_reply *reply)
{
    return sg_ask_for(link, request, reply, NULL);
}

static void *map(int descriptor, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_DONTFORK); /* a child must not write into its parent's ring */
    return memory;
}

static int greet(struct sg_device *device, uint32_t group)
{
    struct sg_link *link = &device->link;
    struct sg_greeting greeting = {.request = {.kind = SG_HELLO, .a = SG_WIRE_VERSION, .b = group}};
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
    if (account) /* one without a zero behind it is too long: the server says so */
        memcpy(greeting.account, account, strnlen(account, sizeof greeting.account));
    ssize_t got = say(link, &greeting, sizeof greeting) < 0 ? -1 : hear(link, &message);
    if (got < 0)
        return -1;
    descriptors_of(&message, descriptors);
    if (got == (ssize_t)sizeof hello && hello.result == CT_DEVICE_OK && hello.version == SG_WIRE_VERSION &&
        descriptors[0] >= 0 && descriptors[1] >= 0) {
        link->ring = map(descriptors[0], sizeof *link->ring);
        link->bulletin = map(descriptors[1], sizeof *link->bulletin);
        device->config = hello.config;
        device->number = hello.ordinal;
        device->sm_cap = hello.sm_cap;
        device->counts_code = (int)hello.counts_code;
        memcpy(device->uuid, hello.uuid, sizeof device->uuid);
    }
    for (int i = 0; i < 2; i++)
        if (descriptors[i] >= 0)
            close(descriptors[i]);
    if (got == (ssize_t)sizeof hello && hello.result == SG_REFUSED)
        return (int)hello.refused;
    return link->ring && link->bulletin ? 0 : -1;
}

void sg_link_close(struct sg_link *link)
{
    if (link->ring)
        munmap(link->ring, sizeof *link->ring);
    if (link->bulletin)
        munmap(link->bulletin, sizeof *link->bulletin);
    link->ring = NULL;
    link->bulletin = NULL;
    close(link->socket);
}

int sg_link_open(const char *path, uint32_t group, struct sg_device *device)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(device, 0, sizeof *device);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    device->link.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (device->link.socket < 0)
        return -1;
    int failed = connect(device->link.socket, (struct sockaddr *)&address, sizeof address);
    if (failed == 0)
        failed = greet(device, group);
    if (failed == 0)
        return 0;
    sg_link_close(&device->link);
    return failed;
}

static int is_full(const struct sg_link *link)
{
    return link->tail - atomic_load_explicit(&link->ring->head, memory_order_acquire) >= SG_RING_SLOTS;
}

/* Back-pressure: the server takes what it can, and says when it can take more. */
static CUresult make_room(struct sg_device *device)
{
    struct sg_link *link = &device->link;
    while (is_full(link)) {
        uint32_t wake = atomic_load(&link->ring->wake);
        struct sg_request request = {.kind = SG_PROJECT, .a = SG_TARGET_SPACE, .c = link->tail};
        struct sg_reply reply;
        if (sg_ask(link, &request, &reply) < 0)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (!is_full(link))
            break;
        sg_unlock();
        sg_sleep_until(link, wake, reply.a, 0);
        sg_relock();
        CUresult trouble = sg_trouble(link);
        if (trouble != CUDA_SUCCESS)
            return trouble;
    }
    return CUDA_SUCCESS;
}

const void *sg_this_thread(void)
{
    static __thread char name;
    return &name; /* no two threads that live have it at one place */
}

CUresult sg_stream_take_turn(CUstream stream)
{
    uint64_t id = stream->object.id;
    while (stream->turn && stream->turn != sg_this_thread()) {
        sg_unlock();
        usleep(TURN_US);
        sg_relock();
        if (stream->object.id != id || !stream->object.alive)
            return CUDA_ERROR_INVALID_HANDLE;
    }
    stream->turn = sg_this_thread();
    return CUDA_SUCCESS;
}

void sg_stream_end_turn(CUstream stream)
{
    if (stream->turn == sg_this_thread())
        stream->turn = NULL;
}

/* What was not made a node before it came here cannot be captured. */
static CUresult may_submit(CUstream stream)
{
    if (stream->capture)
        return sg_capture_refuse(stream);
    if (stream->is_legacy) {
        CUresult result = sg_capture_implicit(stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    if (!stream->turn || stream->turn == sg_this_thread())
        return CUDA_SUCCESS;
    CUresult result = sg_stream_take_turn(stream);
    sg_stream_end_turn(stream);
    return result;
}

CUresult sg_submit(CUstream stream, struct sg_slot *slot)
{
    struct sg_device *device = stream->context->device;
    struct sg_link *link = &device->link;
    static uint64_t orders;
    if (link->lost)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    CUresult result = may_submit(stream);
    while (result == CUDA_SUCCESS && is_full(link)) {
        result = make_room(device);
        if (result == CUDA_SUCCESS)
            result = may_submit(stream); /* another may have taken its turn while this one waited */
    }
    if (result != CUDA_SUCCESS)
        return result;
    slot->stream = stream->model;
    slot->at_ns = sg_clock_ns();
    link->ring->slots[link->tail % SG_RING_SLOTS] = *slot;
    link->tail++;
    atomic_store_explicit(&link->ring->tail, link->tail, memory_order_release);
    uint64_t count = atomic_fetch_add_explicit(&link->bulletin->submissions, 1, memory_order_release);
    stream->order = ++orders;
    stream->slot = link->tail;
    sg_submitted(stream, count + 1);
    return CUDA_SUCCESS;
}
