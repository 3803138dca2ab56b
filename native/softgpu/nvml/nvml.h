/* The part of NVML's binary interface that this library implements. A test compares it with nvidia-ml-py. */
#ifndef COTENANT_SOFTGPU_NVML_NVML_H
#define COTENANT_SOFTGPU_NVML_NVML_H

#include <stdint.h>

typedef int nvmlReturn_t;
typedef int nvmlEnableState_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;
typedef struct nvmlGpmSample_st *nvmlGpmSample_t;
typedef unsigned long long nvmlWord;

enum {
#define NVML_ERROR(name, code, text) name = code,
#include "softgpu/nvml/errors.def"
#undef NVML_ERROR
};

/* The first word of a versioned struct holds its size and version. */
#define NVML_VERSION(type, number) ((unsigned)(sizeof(type) | (unsigned)(number) << 24))

enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO, NVML_CLOCK_COUNT };
enum { NVML_CLOCK_ID_CURRENT, NVML_CLOCK_ID_APP_TARGET, NVML_CLOCK_ID_APP_DEFAULT, NVML_CLOCK_ID_BOOST_MAX };
enum { NVML_THRESHOLD_SHUTDOWN, NVML_THRESHOLD_SLOWDOWN, NVML_THRESHOLD_MEM_MAX, NVML_THRESHOLD_GPU_MAX };
enum { NVML_SAMPLE_POWER, NVML_SAMPLE_GPU, NVML_SAMPLE_MEMORY, NVML_SAMPLE_ENC, NVML_SAMPLE_DEC, NVML_SAMPLE_SM_CLOCK,
       NVML_SAMPLE_MEMORY_CLOCK, NVML_SAMPLE_MODULE_POWER, NVML_SAMPLE_JPG, NVML_SAMPLE_OFA };
enum { NVML_VALUE_DOUBLE, NVML_VALUE_UINT, NVML_VALUE_ULONG, NVML_VALUE_ULONGLONG };
enum { NVML_PCIE_TX, NVML_PCIE_RX };
enum { NVML_TOPOLOGY_INTERNAL = 0, NVML_TOPOLOGY_SINGLE = 10, NVML_TOPOLOGY_MULTIPLE = 20,
       NVML_TOPOLOGY_HOSTBRIDGE = 30, NVML_TOPOLOGY_NODE = 40, NVML_TOPOLOGY_SYSTEM = 50 };
enum { NVML_BRAND_TESLA = 2, NVML_BRAND_NVIDIA = 14 };
enum { NVML_EVENT_XID = 8 };
enum { NVML_REASON_IDLE = 1, NVML_REASON_HW_SLOWDOWN = 8, NVML_REASONS = 0x1ff };
enum { NVML_INIT_NO_GPUS = 1, NVML_INIT_NO_ATTACH = 2 };
enum { NVML_PSTATE_UNKNOWN = 32 };
#define NVML_NO_INSTANCE UINT32_MAX

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct { /* versions 1 and 2: the space of the newer busId was reserved */
    char busId[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId, reserved[4];
} nvmlPciInfo_v2_t;
typedef struct {
    unsigned version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_v1_t;

typedef struct {
    nvmlWord total, free, used;
} nvmlMemory_t;
typedef struct {
    unsigned version;
    nvmlWord total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct {
    nvmlWord bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;
typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef union {
    double dVal;
    unsigned uiVal;
    unsigned long ulVal;
    nvmlWord ullVal;
    long long sllVal;
    int siVal;
    unsigned short usVal;
} nvmlValue_t;
typedef struct {
    nvmlWord timeStamp;
    nvmlValue_t sampleValue;
} nvmlSample_t;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct {
    nvmlWord referenceTime, violationTime;
} nvmlViolationTime_t;

typedef struct {
    unsigned pid;
    nvmlWord usedGpuMemory;
} nvmlProcessInfo_v1_t;
typedef struct { /* versions 2 and 3 */
    unsigned pid;
    nvmlWord usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct {
    unsigned pid;
    nvmlWord usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
    nvmlWord usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;
typedef struct {
    unsigned version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_t;
typedef struct {
    unsigned pid;
    nvmlWord timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
typedef struct {
    nvmlWord timeStamp;
    unsigned pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;
typedef struct {
    unsigned version, processSamplesCount;
    nvmlWord lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_t;

typedef struct {
    unsigned version, sensorType;
    int temperature;
} nvmlTemperature_v1_t;
typedef struct {
    unsigned version;
    int marginTemperature;
} nvmlMarginTemperature_v1_t;
typedef struct {
    nvmlWord l1Cache, l2Cache, deviceMemory, registerFile;
} nvmlEccErrorCounts_t;
typedef struct {
    unsigned max, high, partial, low, none;
} nvmlRowRemapperHistogramValues_t;
typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    nvmlWord memorySizeMB;
} nvmlDeviceAttributes_t;
typedef struct {
    unsigned version, type;
    union {
        char str[41];
        unsigned char bytes[16];
    } value;
} nvmlUUID_v1_t;
typedef struct {
    unsigned version;
    char branch[80];
} nvmlSystemDriverBranchInfo_v1_t;

typedef struct {
    nvmlDevice_t device;
    nvmlWord eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
typedef struct { /* version 1: without instance ids */
    nvmlDevice_t device;
    nvmlWord eventType, eventData;
} nvmlEventData_v1_t;

typedef struct {
    unsigned version, isSupportedDevice;
} nvmlGpmSupport_t;
typedef struct {
    unsigned metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct {
        const char *shortName, *longName, *unit;
    } metricInfo;
} nvmlGpmMetric_t;
typedef struct {
    unsigned version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[]; /* its maximum length grew with NVML; numMetrics is the actual number */
} nvmlGpmMetricsGet_t;

#endif
