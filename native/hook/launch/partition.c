/* Green contexts of several sizes, created when a launch first needs one, and the order between their streams and those
 * of the program. */
#include "hook/launch/partition.h"

#include <pthread.h>
#include <string.h>

/* The hook's own functions, which account for the memory of green contexts. */
CT_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags);
CT_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green);

enum {
    WHOLE_PPM = 1000 * 1000,
    SIZES = 20,          /* at most this many sizes of partitions */
    SMS_MIN = 2,         /* of older drivers, which do not state the size of a partition */
    SMS_MIN_CLUSTERS = 8 /* the same, for devices with clusters of blocks */
};
enum { CLUSTERS_SINCE = 9, COMPUTE_CAPABILITY_MAJOR = 75 };

/* The partitions of this process. All of them begin with the same SMs, so that a smaller one is part of a larger one. */
static struct {
    pthread_mutex_t lock;
    int is_usable;
    CUdevice device;
    uint32_t sm_count, step_sms;
    CUgreenCtx contexts[SIZES + 1];
    CUstream streams[SIZES + 1]; /* by the number of steps */
    CUevent event;               /* orders two streams; a wait refers to the record before it, so it can be used again at
                                  * once */
} partitions = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t rounded_up(uint32_t value, uint32_t step)
{
    return (value + step - 1) / step * step;
}

uint32_t ct_partition_step(CUdevice device)
{
    CUdevResource whole;
    int major = 0;
    memset(&whole, 0, sizeof whole);
    if (CT_NEXT(cuDeviceGetDevResource)(device, &whole, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS || !whole.sm.smCount)
        return 0;
    CT_NEXT(cuDeviceGetAttribute)(&major, COMPUTE_CAPABILITY_MAJOR, device);
    const uint32_t min_sms = whole.sm.minSmPartitionSize ? whole.sm.minSmPartitionSize
        : major >= CLUSTERS_SINCE ? SMS_MIN_CLUSTERS : SMS_MIN;
    const uint32_t align_sms = whole.sm.smCoscheduledAlignment ? whole.sm.smCoscheduledAlignment : min_sms;
    uint32_t step_sms = (whole.sm.smCount + SIZES - 1) / SIZES;
    step_sms = rounded_up(step_sms > min_sms ? step_sms : min_sms, align_sms);
    if (step_sms >= whole.sm.smCount)
        return 0;
    pthread_mutex_lock(&partitions.lock);
    partitions.device = device;
    partitions.sm_count = whole.sm.smCount;
    partitions.step_sms = step_sms;
    partitions.is_usable = 1;
    pthread_mutex_unlock(&partitions.lock);
    return (uint32_t)((uint64_t)step_sms * WHOLE_PPM / whole.sm.smCount);
}

/* From now on launches are not limited. */
static void give_up(struct ct_session *session)
{
    pthread_mutex_lock(&partitions.lock);
    partitions.is_usable = 0;
    pthread_mutex_unlock(&partitions.lock);
    ct_lock(session);
    session->gateway->sm_step_ppm = 0;
    ct_unlock(session);
}

/* Creates the partition of this many steps. Called with the lock held. */
static void create(uint32_t steps)
{
    CUdevResource whole, part;
    CUdevResourceDesc resources;
    unsigned count = 1;
    memset(&whole, 0, sizeof whole);
    memset(&part, 0, sizeof part);
    if (CT_NEXT(cuDeviceGetDevResource)(partitions.device, &whole, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        CT_NEXT(cuDevSmResourceSplitByCount)(&part, &count, &whole, NULL, 0, steps * partitions.step_sms) !=
            CUDA_SUCCESS ||
        CT_NEXT(cuDevResourceGenerateDesc)(&resources, &part, 1) != CUDA_SUCCESS)
        return;
    if (cuGreenCtxCreate(&partitions.contexts[steps], resources, partitions.device, CU_GREEN_CTX_DEFAULT_STREAM) !=
        CUDA_SUCCESS) {
        partitions.contexts[steps] = NULL;
        return;
    }
    if (CT_NEXT(cuGreenCtxStreamCreate)(&partitions.streams[steps], partitions.contexts[steps], CU_STREAM_NON_BLOCKING,
                                        0) != CUDA_SUCCESS)
        partitions.streams[steps] = NULL;
}

/* Returns the stream of the partition of this size, or NULL. */
static CUstream stream_of_size(uint32_t sm_ppm)
{
    CUstream stream = NULL;
    pthread_mutex_lock(&partitions.lock);
    if (partitions.is_usable) {
        const uint32_t sms = (uint32_t)((uint64_t)sm_ppm * partitions.sm_count / WHOLE_PPM);
        uint32_t steps = (sms + partitions.step_sms / 2) / partitions.step_sms;
        steps = steps < 1 ? 1 : steps > SIZES ? SIZES : steps;
        if (!partitions.contexts[steps])
            create(steps);
        stream = partitions.streams[steps];
    }
    pthread_mutex_unlock(&partitions.lock);
    return stream;
}

/* Makes all later work of one stream wait for all earlier work of another. Returns whether the driver did so. */
static int order(CUstream earlier, int earlier_is_per_thread, CUstream later, int later_is_per_thread)
{
    pthread_mutex_lock(&partitions.lock);
    if (!partitions.event && CT_NEXT(cuEventCreate)(&partitions.event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        partitions.event = NULL;
    const CUevent event = partitions.event;
    int is_ordered = event && (earlier_is_per_thread ? CT_NEXT(cuEventRecord_ptsz)(event, earlier)
                                                     : CT_NEXT(cuEventRecord)(event, earlier)) == CUDA_SUCCESS;
    is_ordered = is_ordered && (later_is_per_thread ? CT_NEXT(cuStreamWaitEvent_ptsz)(later, event, 0)
                                                    : CT_NEXT(cuStreamWaitEvent)(later, event, 0)) == CUDA_SUCCESS;
    if (!is_ordered)
        partitions.event = NULL; /* it belongs to a context that has ended, or is not the current one */
    pthread_mutex_unlock(&partitions.lock);
    return is_ordered;
}

CUstream ct_partition_enter(struct ct_launch *launch)
{
    const CUstream stream = stream_of_size(launch->request.sm_ppm);
    if (!stream || !order(launch->stream, launch->is_per_thread, stream, 0)) {
        give_up(launch->session);
        return launch->stream;
    }
    return launch->partition = stream;
}

int ct_partition_leave(struct ct_launch *launch, CUresult result)
{
    if (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_CONTEXT ||
        result == CUDA_ERROR_NOT_SUPPORTED) {
        give_up(launch->session); /* the function belongs to a context of the program's own */
        return 0;
    }
    if (result == CUDA_SUCCESS && !order(launch->partition, 0, launch->stream, launch->is_per_thread))
        give_up(launch->session);
    return 1;
}

void ct_partition_close(void)
{
    CUgreenCtx contexts[SIZES + 1];
    pthread_mutex_lock(&partitions.lock);
    memcpy(contexts, partitions.contexts, sizeof contexts);
    memset(partitions.contexts, 0, sizeof partitions.contexts);
    memset(partitions.streams, 0, sizeof partitions.streams);
    partitions.event = NULL;
    pthread_mutex_unlock(&partitions.lock);
    for (int i = 0; i <= SIZES; i++)
        if (contexts[i])
            cuGreenCtxDestroy(contexts[i]); /* which calls this function again: nothing is left then */
}
