/* NVML's memory queries, which report the tenant's quota instead of the device's memory.
 *
 * The two functions are found in the same way as those of the driver: through a shim in the shim directory, or through
 * the replacement of dlsym. All other functions of NVML are unchanged. */
#define _GNU_SOURCE
#include "hook/nvml/nvml.h"

#include "hook/memory/memory.h"
#include "hook/entry/route.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* From nvml.h. */
enum { NVML_SUCCESS = 0, NVML_ERROR_FUNCTION_NOT_FOUND = 13, UUID_BYTES = 96 };

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

enum { MEMORY, MEMORY_V2, UUID, INDEX, COUNT, CALLS };

static const char *const names[CALLS] = {
    [MEMORY] = "nvmlDeviceGetMemoryInfo", [MEMORY_V2] = "nvmlDeviceGetMemoryInfo_v2", [UUID] = "nvmlDeviceGetUUID",
    [INDEX] = "nvmlDeviceGetIndex",       [COUNT] = "nvmlDeviceGetCount_v2",
};

/* Returns a function of NVML. The shim directory has the library under another name; otherwise it is the one loaded
 * under the usual name. A program that has a device handle has loaded it, so it is never loaded here. */
static void *nvml_function(int call)
{
    static _Atomic(void *) cached[CALLS];
    void *address = load_acquire(&cached[call]);
    ct_dlsym_type find = address ? NULL : ct_real_dlsym();
    if (address || !find)
        return address;
    void *library = dlopen("libnvidia-ml-real.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
    if (!library)
        library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
    address = library ? find(library, names[call]) : NULL;
    dlerror(); /* a missing symbol is not an error of the program */
    if (address)
        store_release(&cached[call], address);
    return address;
}

/* ---- the tenant's device ------------------------------------------------------------------------------------------ */

static int is_only_device(void)
{
    int (*count)(unsigned int *) = (int (*)(unsigned int *))nvml_function(COUNT);
    unsigned int devices = 0;
    return count && count(&devices) == NVML_SUCCESS && devices == 1;
}

/* Returns whether an entry of CUDA_VISIBLE_DEVICES names this device, by its index or by the beginning of its UUID. */
static int is_named(void *device, const char *entry, size_t length)
{
    int (*index_of)(void *, unsigned int *) = (int (*)(void *, unsigned int *))nvml_function(INDEX);
    int (*uuid_of)(void *, char *, unsigned int) = (int (*)(void *, char *, unsigned int))nvml_function(UUID);
    char *end, uuid[UUID_BYTES];
    unsigned int index;
    const unsigned long number = strtoul(entry, &end, 10);
    if (length && end == entry + length)
        return index_of && index_of(device, &index) == NVML_SUCCESS && index == number;
    return length && uuid_of && uuid_of(device, uuid, sizeof uuid) == NVML_SUCCESS && strncmp(uuid, entry, length) == 0;
}

static uint32_t count_entries(const char *list)
{
    uint32_t count = 1;
    for (; *list; list++)
        count += *list == ',';
    return count;
}

/* Returns the number by which the process's driver knows this device: its position in CUDA_VISIBLE_DEVICES. -1: it is none of
 * the tenant's, or unknown because the list is missing or names more devices than the tenant has. */
static int number_of(void *device, uint32_t device_count)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible || !*visible || count_entries(visible) > device_count)
        return is_only_device() ? 0 : -1;
    for (int number = 0; visible; number++) {
        const size_t length = strcspn(visible, ",");
        if (is_named(device, visible, length))
            return number;
        visible = visible[length] ? visible + length + 1 : NULL;
    }
    return -1;
}

/* Returns the quota, or 0 if this device's memory is to be reported unchanged. */
static uint64_t quota_of(void *device, uint64_t *held_bytes)
{
    if (!ct_memory()) /* attaches the process, unless it has */
        return 0;
    const int number = number_of(device, load_relaxed(&load_acquire(&ct_page)->device_count));
    if (number < 0)
        return 0;
    CT_ON_DEVICE(number);
    struct ct_memory *memory = ct_memory();
    const uint64_t quota = memory ? ct_memory_quota(memory) : 0;
    if (!quota)
        return 0;
    *held_bytes = ct_memory_held(memory);
    return quota;
}

/* ---- the replaced functions --------------------------------------------------------------------------------------- */

int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory);
int nvmlDeviceGetMemoryInfo_v2(void *device, struct nvml_memory_v2 *memory);

CT_EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory)
{
    int (*call)(void *, struct nvml_memory *) = (int (*)(void *, struct nvml_memory *))nvml_function(MEMORY);
    uint64_t held;
    const int result = call ? call(device, memory) : NVML_ERROR_FUNCTION_NOT_FOUND;
    const uint64_t quota = result == NVML_SUCCESS ? quota_of(device, &held) : 0;
    if (!quota || quota >= memory->total)
        return result;
    *memory = (struct nvml_memory){quota, held < quota ? quota - held : 0, held < quota ? held : quota};
    return result;
}

CT_EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct nvml_memory_v2 *memory)
{
    int (*call)(void *, struct nvml_memory_v2 *) = (int (*)(void *, struct nvml_memory_v2 *))nvml_function(MEMORY_V2);
    uint64_t held;
    const int result = call ? call(device, memory) : NVML_ERROR_FUNCTION_NOT_FOUND;
    const uint64_t quota = result == NVML_SUCCESS ? quota_of(device, &held) : 0;
    if (!quota || quota >= memory->total)
        return result;
    /* Memory that the device reserves for itself is not part of the quota. */
    *memory = (struct nvml_memory_v2){memory->version, quota, 0, held < quota ? quota - held : 0,
                                      held < quota ? held : quota};
    return result;
}

void *ct_nvml_substitute(const char *name, void *address)
{
    if (strcmp(name, names[MEMORY]) == 0)
        return (void *)nvmlDeviceGetMemoryInfo;
    return strcmp(name, names[MEMORY_V2]) == 0 ? (void *)nvmlDeviceGetMemoryInfo_v2 : address;
}
