/* Shares: memory files that represent device memory, and their content. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

CUresult sg_client_charge(struct sg_device *device, uint64_t bytes, int is_release)
{
    struct sg_request request = {.kind = is_release ? SG_CLIENT_GIVE : SG_CLIENT_TAKE, .a = bytes};
    struct sg_reply reply;
    if (!bytes)
        return CUDA_SUCCESS;
    if (sg_call(&device->connection, &request, &reply) < 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return sg_result(reply.result);
}

static CUresult request_file(struct sg_device *device, const struct sg_request *request, struct sg_reply *reply,
                             int *descriptor)
{
    *descriptor = -1;
    if (sg_call_fd(&device->connection, request, reply, descriptor) < 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (reply->result != CT_DEVICE_OK) {
        if (*descriptor >= 0)
            close(*descriptor);
        *descriptor = -1;
        return sg_result(reply->result);
    }
    return *descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult sg_share_make(struct sg_device *device, uint32_t context, enum sg_share_kind kind, uint64_t bytes,
                       uint64_t file_bytes, uint64_t *share, int *descriptor)
{
    struct sg_request request = {.kind = SG_SHARE_MAKE, .a = bytes, .b = file_bytes,
                                 .c = (uint64_t)context << 32 | (uint64_t)kind};
    struct sg_reply reply;
    CUresult result = request_file(device, &request, &reply, descriptor);
    if (result == CUDA_SUCCESS)
        *share = reply.a;
    return result;
}

CUresult sg_share_open(struct sg_device *device, uint64_t share, uint64_t token, enum sg_share_kind kind,
                       struct sg_reply *reply, int *descriptor)
{
    struct sg_request request = {.kind = SG_SHARE_OPEN, .a = share, .b = token, .c = (uint64_t)kind};
    return request_file(device, &request, reply, descriptor);
}

void sg_share_close(struct sg_device *device, uint64_t share)
{
    struct sg_request request = {.kind = SG_SHARE_CLOSE, .a = share};
    struct sg_reply reply;
    sg_call(&device->connection, &request, &reply);
}

struct sg_device *sg_device_by_uuid(const uint8_t *uuid)
{
    for (int i = 0; i < sg_device_count; i++)
        if (memcmp(sg_devices[i].uuid, uuid, sizeof sg_devices[i].uuid) == 0)
            return &sg_devices[i];
    return NULL;
}

struct sg_device *sg_share_from_file(int descriptor, uint64_t *share, uint64_t *token)
{
    char path[64], name[256];
    uint8_t uuid[16];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(path, name, sizeof name - 1);
    static const char start[] = "/memfd:softgpu:";
    const size_t head = sizeof start - 1;
    if (length < (ssize_t)(head + 32))
        return NULL;
    name[length] = 0;
    if (memcmp(name, start, head) != 0)
        return NULL;
    for (int i = 0; i < 16; i++)
        if (sscanf(name + head + 2 * i, "%2" SCNx8, &uuid[i]) != 1)
            return NULL;
    if (sscanf(name + head + 32, ":%" SCNx64 ":%" SCNx64, share, token) != 2 || !*token)
        return NULL;
    return sg_device_by_uuid(uuid);
}

int sg_share_write(int descriptor, uint64_t from, uint64_t bytes)
{
    static const char zeros[PAGE];
    for (uint64_t done = 0; done < bytes; done += PAGE) {
        uint64_t chunk = bytes - done < PAGE ? bytes - done : PAGE;
        const char *at = (const char *)(uintptr_t)(from + done);
        if (memcmp(at, zeros, chunk) != 0 && pwrite(descriptor, at, chunk, (off_t)done) != (ssize_t)chunk)
            return -1;
    }
    return 0;
}
