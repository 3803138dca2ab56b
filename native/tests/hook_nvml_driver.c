/* A fake NVML with two devices of 16 GiB. */
#include <stdio.h>

#define API __attribute__((visibility("default")))

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

API unsigned int fake_device_count = 2;

API int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
API int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory);
API int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int capacity);
API int nvmlDeviceGetIndex(void *device, unsigned int *index);
API int nvmlDeviceGetCount_v2(unsigned int *count);

API int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    if (!device)
        return 2;
    *memory = (struct memory){16ull << 30, 15ull << 30, 1ull << 30};
    return 0;
}

API int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
    if (!device)
        return 2;
    *memory = (struct memory_v2){memory->version, 16ull << 30, 1ull << 28, 15ull << 30, 1ull << 30};
    return 0;
}

API int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int capacity)
{
    return snprintf(uuid, capacity, "GPU-%d0f1e2d3", (int)(unsigned long)device) < 0;
}

API int nvmlDeviceGetIndex(void *device, unsigned int *index)
{
    *index = (unsigned int)(unsigned long)device - 1;
    return 0;
}

API int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = fake_device_count;
    return 0;
}
