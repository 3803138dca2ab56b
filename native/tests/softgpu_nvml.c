/* Tests of NVML with invalid arguments: every call returns an error and has no other effect. */
#include "softgpu_server.h"

#include "softgpu/nvml/nvml.h"

#include <dlfcn.h>
#include <pthread.h>

nvmlReturn_t nvmlInit_v2(void), nvmlShutdown(void), nvmlInitWithFlags(unsigned);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *), nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t, char *, unsigned), nvmlDeviceGetUUID(nvmlDevice_t, char *, unsigned);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t *);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t *);
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t, nvmlTemperature_v1_t *);
nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t, nvmlPciInfoExt_v1_t *);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t, nvmlProcessDetailList_t *);
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t, unsigned, nvmlWord, unsigned *, unsigned *, nvmlSample_t *);
nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t, nvmlProcessesUtilizationInfo_t *);
nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t, unsigned, unsigned *, unsigned *);
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t, unsigned, unsigned long *);
nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t, unsigned *, unsigned);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *), nvmlEventSetFree(nvmlEventSet_t);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t, nvmlEventData_t *, unsigned);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t, nvmlWord, nvmlEventSet_t);
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t, unsigned), nvmlDeviceGetComputeMode(nvmlDevice_t, unsigned *);
nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *), nvmlGpmSampleFree(nvmlGpmSample_t);
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t, nvmlGpmSample_t), nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t, int, nvmlFieldValue_t *);
const char *nvmlErrorString(nvmlReturn_t);

static const char *const names[] = {
#define NVML_NAME(symbol) #symbol,
#include "softgpu/nvml/names.def"
#undef NVML_NAME
};

typedef nvmlReturn_t (*any_call)(void *, void *, void *, void *, void *, void *);

/* Calls every function with a handle and zeros: each returns an error, and none crashes. */
static void call_all(nvmlDevice_t device, nvmlReturn_t expected)
{
    unsigned call_count = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        any_call call;
        void *address = dlsym(RTLD_DEFAULT, names[i]);
        EXPECT(address != NULL);
        memcpy(&call, &address, sizeof call);
        if (strncmp(names[i], "nvmlInit", 8) == 0 || strcmp(names[i], "nvmlShutdown") == 0)
            continue;
        int takes_device = strncmp(names[i], "nvmlDevice", 10) == 0 && !strstr(names[i], "GetCount");
        nvmlReturn_t result = call(takes_device ? device : NULL, NULL, NULL, NULL, NULL, NULL);
        if (expected != NVML_SUCCESS && result != expected && strstr(names[i], "CudaDriverVersion") == NULL) {
            fprintf(stderr, "%s returned %d\n", names[i], result);
            exit(1);
        }
        /* Zero is a valid compute mode. */
        if (result == NVML_SUCCESS && strcmp(names[i], "nvmlDeviceSetComputeMode") != 0) {
            fprintf(stderr, "%s succeeded without arguments\n", names[i]);
            exit(1);
        }
        call_count++;
    }
    EXPECT(call_count > 400);
}

static void check_versions(nvmlDevice_t device)
{
    nvmlMemory_v2_t memory = {.version = NVML_VERSION(nvmlMemory_v2_t, 1)};
    nvmlTemperature_v1_t temperature = {.version = 1};
    nvmlPciInfoExt_v1_t pci = {.version = 0};
    nvmlProcessDetailList_t details = {.version = UINT32_MAX};
    nvmlProcessesUtilizationInfo_t utilization = {.version = NVML_VERSION(nvmlProcessesUtilizationInfo_t, 2)};
    EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    EXPECT_EQ(nvmlDeviceGetTemperatureV(device, &temperature), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    EXPECT_EQ(nvmlDeviceGetPciInfoExt(device, &pci), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    EXPECT_EQ(nvmlDeviceGetRunningProcessDetailList(device, &details), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    EXPECT_EQ(nvmlDeviceGetProcessesUtilizationInfo(device, &utilization), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    memory.version = NVML_VERSION(nvmlMemory_v2_t, 2);
    EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_SUCCESS);
    EXPECT_EQ(memory.total, ct_device_preset("h100")->memory_bytes);
}

static void check_sizes(nvmlDevice_t device)
{
    char text[8];
    unsigned count = 0, states[1], type;
    unsigned long cpus[64];
    nvmlSample_t sample;
    EXPECT_EQ(nvmlDeviceGetName(device, text, 0), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(nvmlDeviceGetUUID(device, text, sizeof text), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(nvmlDeviceGetSupportedGraphicsClocks(device, 2619, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT(count > 1);
    unsigned clocks[1], too_short = 1;
    EXPECT_EQ(nvmlDeviceGetSupportedGraphicsClocks(device, 2619, &too_short, clocks), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(too_short, count);
    EXPECT_EQ(nvmlDeviceGetSupportedGraphicsClocks(device, 1, &count, NULL), NVML_ERROR_NOT_FOUND);
    EXPECT_EQ(nvmlDeviceGetSupportedPerformanceStates(device, states, 3), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(nvmlDeviceGetCpuAffinity(device, 0, cpus), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(nvmlDeviceGetCpuAffinity(device, 64, cpus), NVML_SUCCESS);
    EXPECT(cpus[0] & 1);
    count = 0;
    EXPECT_EQ(nvmlDeviceGetSamples(device, NVML_SAMPLE_GPU, 0, &type, &count, &sample), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(nvmlDeviceGetSamples(device, 77, 0, &type, &count, NULL), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(nvmlDeviceGetSamples(device, NVML_SAMPLE_GPU, UINT64_MAX, &type, &count, NULL), NVML_ERROR_NOT_FOUND);
    EXPECT_EQ(nvmlDeviceGetFieldValues(device, -1, NULL), NVML_ERROR_INVALID_ARGUMENT);
}

/* A process with a context is listed; one that only reads is not. */
static void check_processes(nvmlDevice_t device, const char *path)
{
    struct sg_request request = {.kind = SG_CONTEXT_CREATE};
    struct sg_reply reply;
    nvmlProcessInfo_t infos[4];
    unsigned count = 0;
    EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL), NVML_SUCCESS);
    EXPECT_EQ(count, 0);
    struct test_client client = test_client_open(path);
    EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL), NVML_SUCCESS);
    EXPECT(send(client.socket, &request, sizeof request, 0) == (ssize_t)sizeof request);
    EXPECT(recv(client.socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply && reply.result == CT_DEVICE_OK);
    EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(count, 1);
    count = 4;
    EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos), NVML_SUCCESS);
    EXPECT(count == 1 && infos[0].pid == (unsigned)getpid());
    close(client.socket);
    munmap(client.ring, sizeof *client.ring);
    /* The server notices the closed connection with a delay. */
    do
        EXPECT(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos) == NVML_SUCCESS);
    while (count);
}

static void check_modes_and_sets(nvmlDevice_t device)
{
    unsigned mode = 9;
    nvmlEventSet_t set;
    nvmlEventData_t event;
    EXPECT_EQ(nvmlDeviceSetComputeMode(device, 1), NVML_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(nvmlDeviceSetComputeMode(device, 4), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(nvmlDeviceSetComputeMode(device, 3), NVML_SUCCESS);
    EXPECT_EQ(nvmlDeviceGetComputeMode(device, &mode), NVML_SUCCESS);
    EXPECT_EQ(mode, 3);
    EXPECT_EQ(nvmlDeviceSetComputeMode(device, 0), NVML_SUCCESS);
    EXPECT_EQ(nvmlEventSetCreate(&set), NVML_SUCCESS);
    EXPECT_EQ(nvmlEventSetWait_v2(set, &event, 0), NVML_ERROR_TIMEOUT);
    EXPECT_EQ(nvmlDeviceRegisterEvents(device, 16, set), NVML_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(nvmlDeviceRegisterEvents(device, 8, (nvmlEventSet_t)device), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(nvmlEventSetFree(set), NVML_SUCCESS);
    EXPECT_EQ(nvmlEventSetFree(set), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(nvmlEventSetWait_v2(set, &event, 0), NVML_ERROR_INVALID_ARGUMENT);
}

static void check_gpm(nvmlDevice_t device)
{
    struct {
        nvmlGpmMetricsGet_t head;
        nvmlGpmMetric_t metrics[2];
    } request = {.head = {.version = 7}};
    nvmlGpmSample_t a, b;
    EXPECT(nvmlGpmSampleAlloc(&a) == NVML_SUCCESS && nvmlGpmSampleAlloc(&b) == NVML_SUCCESS);
    EXPECT_EQ(nvmlGpmMetricsGet(&request.head), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    request.head = (nvmlGpmMetricsGet_t){.version = 1, .numMetrics = 2, .sample1 = a, .sample2 = b};
    EXPECT_EQ(nvmlGpmMetricsGet(&request.head), NVML_ERROR_INVALID_ARGUMENT); /* no sample was read */
    EXPECT(nvmlGpmSampleGet(device, a) == NVML_SUCCESS && nvmlGpmSampleGet(device, b) == NVML_SUCCESS);
    request.metrics[0].metricId = 2;
    request.metrics[1].metricId = 999;
    EXPECT_EQ(nvmlGpmMetricsGet(&request.head), NVML_SUCCESS);
    EXPECT(request.metrics[0].nvmlReturn == NVML_SUCCESS && request.metrics[0].value == 0);
    EXPECT_EQ(request.metrics[1].nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
    EXPECT(nvmlGpmSampleFree(a) == NVML_SUCCESS && nvmlGpmSampleFree(b) == NVML_SUCCESS);
}

static void *query_repeatedly(void *device)
{
    nvmlMemory_t memory;
    for (int i = 0; i < 200; i++) {
        EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
        EXPECT_EQ(nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
        EXPECT_EQ(memory.free + memory.used, memory.total);
        EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
    }
    return NULL;
}

/* A child does not share connections with its parent and may open its own. */
static void check_fork(nvmlDevice_t device)
{
    unsigned count;
    int status;
    pid_t child = fork();
    if (child == 0) {
        nvmlDevice_t own;
        EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
        EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
        EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &own), NVML_SUCCESS);
        EXPECT_EQ(nvmlDeviceSetComputeMode(own, 2), NVML_SUCCESS);
        EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(nvmlDeviceGetComputeMode(device, &count) == NVML_SUCCESS && count == 2);
}

int main(void)
{
    struct test_server server;
    nvmlDevice_t device;
    unsigned count;
    pthread_t threads[4];
    test_server_start(&server, "h100");
    call_all(NULL, NVML_ERROR_UNINITIALIZED);
    EXPECT_EQ(nvmlInitWithFlags(8), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT(nvmlInit_v2() == NVML_SUCCESS && nvmlInit_v2() == NVML_SUCCESS);
    EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS); /* initialisation is counted */
    EXPECT(nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS && count == 1);
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(1, &device), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    call_all(NULL, NVML_SUCCESS);
    call_all(device, NVML_SUCCESS);
    check_versions(device);
    check_sizes(device);
    check_processes(device, server.path);
    check_modes_and_sets(device);
    check_gpm(device);
    check_fork(device);
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, query_repeatedly, device), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    EXPECT(strcmp(nvmlErrorString(NVML_ERROR_TIMEOUT), nvmlErrorString(12345)) != 0);
    test_server_stop(&server);
    EXPECT_EQ(nvmlDeviceGetComputeMode(device, &count), NVML_ERROR_GPU_IS_LOST);
    EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
    EXPECT_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
    EXPECT_EQ(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
    EXPECT_EQ(nvmlInitWithFlags(1), NVML_SUCCESS); /* no device is required */
    EXPECT(nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS && count == 0);
    EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
    return 0;
}
