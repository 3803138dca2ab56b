/* Device enumeration, names, identifiers and properties. */
#include "softgpu/driver/internal.h"

#include <stdio.h>
#include <string.h>

enum { PCI_DOMAIN = 0 };

static CUresult enter_device(CUdevice ordinal, struct sg_device **device)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *device = sg_device_at(ordinal);
    return *device ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_DEVICE);
}

#define ENTER(ordinal, device)                                                                                         \
    struct sg_device *device;                                                                                          \
    CUresult result = enter_device(ordinal, &device);                                                                  \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(ordinal, found);
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *device = found->ordinal;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetCount(int *count)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *count = sg_device_count;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
    ENTER(ordinal, device);
    if (!name || length <= 0)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    snprintf(name, (size_t)length, "%s", device->config.name);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
    ENTER(ordinal, device);
    if (!uuid)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(uuid->bytes, device->uuid, sizeof uuid->bytes);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
    return cuDeviceGetUuid_v2(uuid, ordinal);
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    ENTER(ordinal, device);
    if (!bytes)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *bytes = device->config.memory_bytes;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
    ENTER(ordinal, device);
    if (!major || !minor)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *major = (int)device->config.compute_major;
    *minor = (int)device->config.compute_minor;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal)
{
    ENTER(ordinal, device);
    char full[16];
    int needed =
        snprintf(full, sizeof full, "%04x:%02x:00.0", PCI_DOMAIN, (SG_PCI_BUS_FIRST + device->number) & 0xff);
    if (!text || length <= needed)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(text, full, (size_t)needed + 1);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    unsigned domain, bus, slot;
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!device || !text)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = PCI_DOMAIN;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2)
            return sg_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct sg_device *found = NULL;
    for (int i = 0; i < sg_device_count && !found; i++)
        if (SG_PCI_BUS_FIRST + sg_devices[i].number == bus)
            found = &sg_devices[i];
    if (!found || domain != PCI_DOMAIN || slot)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    *device = found->ordinal;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice ordinal)
{
    ENTER(ordinal, device);
    const struct ct_device_config *c = &device->config;
    if (!properties)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *properties = (CUdevprop){
        .maxThreadsPerBlock = (int)c->threads_per_block,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .sharedMemPerBlock = (int)c->shared_bytes_per_block,
        .totalConstantMemory = 65536,
        .SIMDWidth = CT_DEVICE_WARP_THREADS,
        .memPitch = 2147483647,
        .regsPerBlock = 65536,
        .clockRate = (int)c->clock_khz,
        .textureAlign = 512,
    };
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer)
{
    ENTER(ordinal, device);
    if (!can)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sg_device_at(peer))
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    *can = peer != device->ordinal;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice ordinal, CUdevice peer)
{
    ENTER(ordinal, device);
    if (!value || (int)attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK || (int)attribute > 5)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sg_device_at(peer) || peer == device->ordinal)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    *value = (int)attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetExecAffinitySupport(int *can, CUexecAffinityType type, CUdevice ordinal)
{
    ENTER(ordinal, device);
    (void)device;
    if (!can)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *can = type == 0 && sg_mps.is_client;
    return sg_leave(CUDA_SUCCESS);
}
