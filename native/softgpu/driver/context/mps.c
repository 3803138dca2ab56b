/* Connection to the MPS control daemon. A process is an MPS client if a daemon listens in its pipe directory during
 * cuInit. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct sg_mps sg_mps = {.socket = -1};

/* The process that joined. A forked child must not report that its parent exits. */
static pid_t owner_pid;

/* NVIDIA's daemon uses a stream socket, which refuses this socket type, so the two cannot be confused. */
static int open_control_socket(void)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control",
                          directory && *directory ? directory : "/tmp/nvidia-mps");
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (length < (int)sizeof address.sun_path && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Send the limits that this process sets for itself. The daemon applies its own limits in addition. */
static int send_limits(int fd)
{
    static const char *const names[] = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                                        "CUDA_MPS_CLIENT_PRIORITY"};
    char words[2048];
    size_t length = (size_t)snprintf(words, sizeof words, "client\n");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value && strlen(value) < 512 && !strchr(value, '\n'))
            length += (size_t)snprintf(words + length, sizeof words - length, "%s=%s\n", names[i], value);
    }
    return send(fd, words, length, MSG_NOSIGNAL) == (ssize_t)length ? 0 : -1;
}

static CUresult parse_answer(char *answer)
{
    int code;
    if (sscanf(answer, "refused %d", &code) == 1 && code > 0)
        return (CUresult)code;
    if (strncmp(answer, "welcome ", 8) != 0)
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    for (char *line = strchr(answer, '\n'); line && sg_mps.count < SG_MAX_DEVICES; line = strchr(line + 1, '\n')) {
        struct sg_mps_gpu *gpu = &sg_mps.gpus[sg_mps.count];
        sg_mps.count += sscanf(line, " gpu %d %u", &gpu->ordinal, &gpu->group) == 2;
    }
    return CUDA_SUCCESS;
}

CUresult sg_mps_join(void)
{
    char answer[4096];
    ssize_t got = -1;
    sg_mps_disconnect();
    sg_mps = (struct sg_mps){.socket = open_control_socket()};
    if (sg_mps.socket < 0)
        return CUDA_SUCCESS;
    /* There is no timeout: clients wait while a server starts or while the clients of another user finish. */
    if (send_limits(sg_mps.socket) == 0)
        do
            got = recv(sg_mps.socket, answer, sizeof answer - 1, 0);
        while (got < 0 && errno == EINTR);
    answer[got > 0 ? got : 0] = 0;
    CUresult result = got > 0 ? parse_answer(answer) : CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (result != CUDA_SUCCESS) {
        sg_mps_disconnect();
        return result;
    }
    const char *choice = getenv("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING");
    sg_mps.is_per_context = choice && strcmp(choice, "1") == 0;
    sg_mps.is_client = 1;
    owner_pid = getpid();
    return result;
}

void sg_mps_disconnect(void)
{
    if (sg_mps.socket >= 0)
        close(sg_mps.socket);
    sg_mps.socket = -1;
    sg_mps.is_client = 0;
}

/* Round down to whole SMs, but to at least one, as the daemon does. */
static uint32_t share_of(const struct sg_device *device)
{
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    char *end;
    double percentage = text ? strtod(text, &end) : 100.0;
    if (!text || end == text || *end || !(percentage > 0.0 && percentage < 100.0))
        return 0;
    uint32_t share = (uint32_t)(device->config.sm_count * percentage / 100.0);
    return share ? share : 1;
}

uint32_t sg_mps_cap(const struct sg_device *device, uint32_t wanted)
{
    uint32_t share = sg_mps.is_per_context ? share_of(device) : 0;
    return share && (!wanted || share < wanted) ? share : wanted;
}

/* A program that returns or exits destroys its contexts in order; only a killed one leaves work in flight. */
__attribute__((destructor)) static void send_leave(void)
{
    struct sg_request request = {.kind = SG_GROUP_LEAVE};
    if (!sg_mps.is_client || owner_pid != getpid())
        return;
    for (int i = 0; i < sg_device_count; i++)
        send(sg_devices[i].connection.socket, &request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT);
}
