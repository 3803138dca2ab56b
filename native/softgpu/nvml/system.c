/* System queries: versions, process names and the devices of the machine. */
#define _GNU_SOURCE
#include "softgpu/nvml/internal.h"

#include <stdio.h>
#include <string.h>

/* The CUDA version is that of libsoftgpu; the driver version is from the matching branch. */
enum { CUDA_VERSION = 13000 };
static const char driver_version[] = "580.65.06", nvml_version[] = "13.580.65.06", driver_branch[] = "r580_00";

nvmlReturn_t nv_text(char *buffer, unsigned length, const char *text)
{
    if (!buffer)
        return NVML_ERROR_INVALID_ARGUMENT;
    size_t bytes = strlen(text) + 1;
    if (bytes > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(buffer, text, bytes);
    return NVML_SUCCESS;
}

static nvmlReturn_t get_text(char *buffer, unsigned length, const char *text)
{
    nvmlReturn_t result = nv_enter();
    return result != NVML_SUCCESS ? result : nv_leave(nv_text(buffer, length, text));
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length);
API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return get_text(version, length, driver_version);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length);
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    return get_text(version, length, nvml_version);
}

API nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_v1_t *info, unsigned length);
API nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_v1_t *info, unsigned length)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(info, NVML_ERROR_INVALID_ARGUMENT);
    NEED(info->version == NVML_VERSION(nvmlSystemDriverBranchInfo_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    return nv_leave(nv_text(info->branch, length < sizeof info->branch ? length : sizeof info->branch, driver_branch));
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version);
API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!version) /* available before initialisation, because it is a property of the library */
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = CUDA_VERSION;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) ALIAS(nvmlSystemGetCudaDriverVersion_v2);

/* Truncate the name as NVML does. */
API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length);
API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[32], words[1024] = "";
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(name && length, NVML_ERROR_INVALID_ARGUMENT);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(words, 1, sizeof words - 1, file) : 0;
    if (file)
        fclose(file);
    NEED(got, NVML_ERROR_NOT_FOUND);
    snprintf(name, length, "%s", words); /* the first argument; the others follow its terminating zero */
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count);
API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(count, NVML_ERROR_INVALID_ARGUMENT);
    *count = nv_device_count;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *count) ALIAS(nvmlDeviceGetCount_v2);

static nvmlReturn_t count_none(unsigned *count)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(count, NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlUnitGetCount(unsigned *count);
API nvmlReturn_t nvmlUnitGetCount(unsigned *count)
{
    return count_none(count);
}

API nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count);
API nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count)
{
    return count_none(count);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(device && index < nv_device_count, NVML_ERROR_INVALID_ARGUMENT);
    *device = &nv_devices[index];
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) ALIAS(nvmlDeviceGetHandleByIndex_v2);

/* Return the first device that matches. The lock is held and released. */
static nvmlReturn_t find(int (*matches)(nvmlDevice_t, const void *), const void *key, nvmlDevice_t *device)
{
    for (unsigned i = 0; i < nv_device_count; i++) {
        if (!matches(&nv_devices[i], key))
            continue;
        *device = &nv_devices[i];
        return nv_leave(NVML_SUCCESS);
    }
    return nv_leave(NVML_ERROR_NOT_FOUND);
}

static int has_uuid_text(nvmlDevice_t device, const void *text)
{
    char own[48];
    nv_uuid_text(device, own, sizeof own);
    return strcasecmp(own, text) == 0;
}

static int has_uuid(nvmlDevice_t device, const void *bytes)
{
    return memcmp(device->uuid, bytes, sizeof device->uuid) == 0;
}

static int has_bus(nvmlDevice_t device, const void *bus)
{
    return SG_PCI_BUS_FIRST + device->index == *(const unsigned *)bus;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(uuid && device, NVML_ERROR_INVALID_ARGUMENT);
    return find(has_uuid_text, uuid, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *device);
API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *device)
{
    enum { ASCII = 1, BINARY = 2 };
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(uuid && device, NVML_ERROR_INVALID_ARGUMENT);
    NEED(uuid->version == NVML_VERSION(nvmlUUID_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEED(uuid->type == ASCII || uuid->type == BINARY, NVML_ERROR_INVALID_ARGUMENT);
    char text[sizeof uuid->value.str + 1] = "";
    memcpy(text, uuid->value.str, sizeof uuid->value.str);
    return uuid->type == ASCII ? find(has_uuid_text, text, device) : find(has_uuid, uuid->value.bytes, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device);
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device)
{
    unsigned domain = 0, bus, slot;
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(text && device, NVML_ERROR_INVALID_ARGUMENT);
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        NEED(sscanf(text, "%x:%x", &bus, &slot) == 2, NVML_ERROR_INVALID_ARGUMENT);
    }
    NEED(domain == 0 && slot == 0, NVML_ERROR_NOT_FOUND);
    return find(has_bus, &bus, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *device)
    ALIAS(nvmlDeviceGetHandleByPciBusId_v2);
