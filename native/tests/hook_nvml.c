/* NVML with the hook: reports the quota for the tenant's own device, and NVML's values for everything else. */
#include "hook_tenant.h"

#include "hook/nvml/nvml.h"

#include <stdlib.h>
#include <sys/wait.h>

enum { INVALID = 2, NOT_FOUND = 13 };
#define GIB (UINT64_C(1) << 30)

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory);

static void *const FIRST = (void *)1, *const SECOND = (void *)2;
static unsigned int *devices;

static void expect_report(void *device, uint64_t total, uint64_t used, uint64_t reserved)
{
    struct memory memory;
    struct memory_v2 memory_v2 = {.version = 42};
    EXPECT_EQ(nvmlDeviceGetMemoryInfo(device, &memory), 0);
    EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &memory_v2), 0);
    EXPECT_EQ(memory.total, total);
    EXPECT_EQ(memory.used, used);
    EXPECT_EQ(memory.free, total - used);
    EXPECT_EQ(memory_v2.version, 42);
    EXPECT(memory_v2.total == total && memory_v2.used == used && memory_v2.free == total - used &&
           memory_v2.reserved == reserved);
}

static void expect_device_report(void *device)
{
    expect_report(device, 16 * GIB, GIB, UINT64_C(1) << 28);
}

static void unmanaged_process_gets_device_values(void)
{
    expect_device_report(FIRST);
}

static void tenant_without_quota_gets_device_values(void)
{
    make_tenant(0, false);
    expect_device_report(FIRST);
}

static void quota_and_held_memory_are_reported_for_the_own_device(void)
{
    make_tenant(4 * GIB, false);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    expect_report(SECOND, 4 * GIB, 0, 0);
    expect_device_report(FIRST);
    EXPECT_EQ(ct_memory_reserve(ct_memory(), CT_LEDGER_ALLOCATED, 3 * GIB), CUDA_SUCCESS);
    ct_memory_end(ct_memory());
    expect_report(SECOND, 4 * GIB, 3 * GIB, 0);
    struct memory memory;
    EXPECT_EQ(nvmlDeviceGetMemoryInfo(NULL, &memory), INVALID);
}

static void own_device_is_identified_by_uuid_prefix(void)
{
    make_tenant(4 * GIB, false);
    setenv("CUDA_VISIBLE_DEVICES", "GPU-10f1", 1);
    expect_report(FIRST, 4 * GIB, 0, 0);
    expect_device_report(SECOND);
}

static void only_device_is_the_own_device(void)
{
    make_tenant(4 * GIB, false);
    unsetenv("CUDA_VISIBLE_DEVICES");
    expect_device_report(FIRST); /* with two devices it is unknown which one is meant */
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    expect_device_report(FIRST);
    *devices = 1;
    expect_report(FIRST, 4 * GIB, 0, 0);
}

static void quota_larger_than_the_device_is_not_reported(void)
{
    make_tenant(40 * GIB, false);
    *devices = 1;
    expect_device_report(FIRST);
}

static void only_memory_queries_are_substituted(void)
{
    EXPECT(ct_nvml_substitute("nvmlInit_v2", FIRST) == FIRST);
    EXPECT(ct_nvml_substitute("nvmlDeviceGetMemoryInfo", FIRST) == (void *)nvmlDeviceGetMemoryInfo);
    EXPECT(ct_nvml_substitute("nvmlDeviceGetMemoryInfo_v2", FIRST) == (void *)nvmlDeviceGetMemoryInfo_v2);
}

static void (*const CASES[])(void) = {
    unmanaged_process_gets_device_values,
    tenant_without_quota_gets_device_values,
    quota_and_held_memory_are_reported_for_the_own_device,
    own_device_is_identified_by_uuid_prefix,
    only_device_is_the_own_device,
    quota_larger_than_the_device_is_not_reported,
    only_memory_queries_are_substituted,
};

int main(void)
{
    struct memory memory;
    EXPECT_EQ(nvmlDeviceGetMemoryInfo(FIRST, &memory), NOT_FOUND); /* NVML is not loaded */
    void *nvml = dlopen(NVML_DRIVER, RTLD_NOW | RTLD_LOCAL);
    EXPECT(nvml != NULL);
    devices = dlsym(nvml, "fake_device_count");
    EXPECT(devices != NULL);
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        int status;
        test_hook_open("0", "8");
        pid_t child = fork();
        if (child == 0) {
            CASES[i]();
            _exit(0);
        }
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        test_hook_close();
    }
    return 0;
}
