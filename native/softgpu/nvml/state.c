/* Reference-counted initialisation, the lock, connections to the servers, and the state after fork. */
#define _GNU_SOURCE
#include "softgpu/nvml/internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* The server replies within microseconds. A server that does not reply within this time is treated as dead. */
enum { REPLY_TIMEOUT_S = 30 };

struct nvmlDevice_st nv_devices[NV_MAX_DEVICES];
unsigned nv_device_count;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;

static void close_device(nvmlDevice_t device)
{
    if (device->bulletin)
        munmap(device->bulletin, sizeof *device->bulletin);
    close(device->socket);
    device->bulletin = NULL;
    device->socket = -1;
}

/* A child must not share sockets with its parent, because each could receive the other's replies. It may initialise
 * NVML again. */
static void after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    for (unsigned i = 0; i < nv_device_count; i++)
        close_device(&nv_devices[i]);
    nv_device_count = users = 0;
}

static ssize_t send_and_receive(int socket, const struct sg_request *request, struct msghdr *message)
{
    ssize_t done;
    do
        done = send(socket, request, sizeof *request, MSG_NOSIGNAL);
    while (done < 0 && errno == EINTR);
    if (done != (ssize_t)sizeof *request)
        return -1;
    do
        done = recvmsg(socket, message, MSG_CMSG_CLOEXEC);
    while (done < 0 && errno == EINTR);
    return done;
}

static nvmlReturn_t exchange(nvmlDevice_t device, const struct sg_request *request, void *reply, size_t bytes)
{
    struct iovec words = {reply, bytes};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1};
    if (!device->lost && send_and_receive(device->socket, request, &message) == (ssize_t)bytes)
        return NVML_SUCCESS;
    device->lost = 1;
    return NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t nv_request(nvmlDevice_t device, const struct sg_request *request, struct sg_reply *reply)
{
    return exchange(device, request, reply, sizeof *reply);
}

nvmlReturn_t nv_observe(nvmlDevice_t device, uint64_t since_ns, struct sg_observation *observation)
{
    struct sg_request request = {.kind = SG_SAMPLES, .a = since_ns};
    nvmlReturn_t result = exchange(device, &request, observation, sizeof *observation);
    return result == NVML_SUCCESS && observation->is_lost ? NVML_ERROR_GPU_IS_LOST : result;
}

static int handshake(nvmlDevice_t device)
{
    struct sg_request request = {.kind = SG_OBSERVE, .a = SG_WIRE_VERSION};
    struct sg_hello hello;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec words = {&hello, sizeof hello};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got = send_and_receive(device->socket, &request, &message);
    struct cmsghdr *rights = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (!rights || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS)
        return -1;
    int descriptor;
    memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
    if (got == (ssize_t)sizeof hello && hello.result == CT_DEVICE_OK) {
        void *bulletin = mmap(NULL, sizeof *device->bulletin, PROT_READ, MAP_SHARED, descriptor, 0);
        device->bulletin = bulletin == MAP_FAILED ? NULL : bulletin;
        device->config = hello.config;
        device->board = ct_board_of(&device->config);
        memcpy(device->uuid, hello.uuid, sizeof device->uuid);
    }
    close(descriptor);
    struct sg_observation observation;
    if (!device->bulletin || (nv_observe(device, SG_LATEST_PERIOD, &observation) != NVML_SUCCESS && device->lost))
        return -1;
    device->epoch_ns = observation.epoch_ns;
    return 0;
}

static int open_device(nvmlDevice_t device, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval timeout = {.tv_sec = REPLY_TIMEOUT_S};
    memcpy(address.sun_path, path, strlen(path));
    device->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (device->socket < 0)
        return -1;
    if (setsockopt(device->socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0 &&
        connect(device->socket, (struct sockaddr *)&address, sizeof address) == 0 && handshake(device) == 0)
        return 0;
    close_device(device);
    return -1;
}

/* A GPU without a server does not exist, like one that fell off the bus. */
static void open_devices(const char *directory)
{
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    for (unsigned i = 0; i < NV_MAX_DEVICES; i++) {
        nvmlDevice_t device = &nv_devices[nv_device_count];
        int length = snprintf(path, sizeof path, "%s/gpu%u.sock", directory, i);
        if (length >= (int)sizeof path || access(path, F_OK) != 0)
            return;
        *device = (struct nvmlDevice_st){.index = i, .socket = -1};
        if (open_device(device, path) == 0)
            nv_device_count++;
    }
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags);
API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    static int handlers_set;
    const char *directory = getenv("COTENANT_SOFTGPU");
    if (flags & ~(unsigned)(NVML_INIT_NO_GPUS | NVML_INIT_NO_ATTACH))
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    if (users == 0 && directory && *directory) {
        open_devices(directory);
        if (!handlers_set && pthread_atfork(NULL, NULL, after_fork) == 0)
            handlers_set = 1;
    }
    if (users == 0 && nv_device_count == 0 && !(flags & NVML_INIT_NO_GPUS))
        return nv_leave(NVML_ERROR_DRIVER_NOT_LOADED);
    users++;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlInit_v2(void);
API nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit(void) ALIAS(nvmlInit_v2);

API nvmlReturn_t nvmlShutdown(void);
API nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    if (--users == 0) {
        for (unsigned i = 0; i < nv_device_count; i++)
            close_device(&nv_devices[i]);
        nv_device_count = 0;
    }
    return nv_leave(NVML_SUCCESS);
}

nvmlReturn_t nv_leave(nvmlReturn_t result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t nv_enter(void)
{
    pthread_mutex_lock(&lock);
    return users ? NVML_SUCCESS : nv_leave(NVML_ERROR_UNINITIALIZED);
}

nvmlReturn_t nv_enter_device(nvmlDevice_t device)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned i = 0; i < nv_device_count; i++)
        if (device == &nv_devices[i])
            return device->lost ? nv_leave(NVML_ERROR_GPU_IS_LOST) : NVML_SUCCESS;
    return nv_leave(NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nv_unsupported(void)
{
    nvmlReturn_t result = nv_enter();
    return result != NVML_SUCCESS ? result : nv_leave(NVML_ERROR_NOT_SUPPORTED);
}

API const char *nvmlErrorString(nvmlReturn_t code);
API const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
#define NVML_ERROR(name, number, text)                                                                                 \
    case number:                                                                                                       \
        return text;
#include "softgpu/nvml/errors.def"
#undef NVML_ERROR
    default:
        return "unknown error code";
    }
}
