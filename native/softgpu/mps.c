/* Is this process an MPS client? It is if a control daemon lives in its pipe directory when CUDA is initialised. */
#define _GNU_SOURCE
#include "softgpu/face.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct sg_mps sg_mps = {.socket = -1};

/* Of this process alone: a child must not say that its parent ends. */
static pid_t joined;

/* A stream socket, as NVIDIA's daemon has it, refuses this kind: neither is ever taken for the other. */
static int reach(void)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control",
                          directory && *directory ? directory : "/tmp/nvidia-mps");
    int line = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (line < 0)
        return -1;
    if (length < (int)sizeof address.sun_path && connect(line, (struct sockaddr *)&address, sizeof address) == 0)
        return line;
    close(line);
    return -1;
}

/* The daemon reads the limits that this process sets itself: it has to reckon with its own anyway. */
static int introduce(int line)
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
    return send(line, words, length, MSG_NOSIGNAL) == (ssize_t)length ? 0 : -1;
}

static CUresult understand(char *answer)
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
    sg_mps_part();
    sg_mps = (struct sg_mps){.socket = reach()};
    if (sg_mps.socket < 0)
        return CUDA_SUCCESS;
    /* Without a time limit: while a server starts, or another user's clients finish, those who come wait. */
    if (introduce(sg_mps.socket) == 0)
        do
            got = recv(sg_mps.socket, answer, sizeof answer - 1, 0);
        while (got < 0 && errno == EINTR);
    answer[got > 0 ? got : 0] = 0;
    CUresult result = got > 0 ? understand(answer) : CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (result != CUDA_SUCCESS) {
        sg_mps_part();
        return result;
    }
    const char *choice = getenv("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING");
    sg_mps.is_per_context = choice && strcmp(choice, "1") == 0;
    sg_mps.is_client = 1;
    joined = getpid();
    return result;
}

void sg_mps_part(void)
{
    if (sg_mps.socket >= 0)
        close(sg_mps.socket);
    sg_mps.socket = -1;
    sg_mps.is_client = 0;
}

/* As the daemon reckons: rounded down to whole SMs, but at least one. */
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

/* A program that returns or exits tears its contexts down in order; only one that is killed leaves work in flight. */
__attribute__((destructor)) static void say_goodbye(void)
{
    struct sg_request request = {.kind = SG_GROUP_LEAVE};
    if (!sg_mps.is_client || joined != getpid())
        return;
    for (int i = 0; i < sg_device_count; i++)
        send(sg_devices[i].link.socket, &request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT);
}
