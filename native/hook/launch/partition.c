/* Green contexts of several sizes, created when a launch first needs one, and the order between their streams and those
 * of the program. */
#include "hook/launch/partition.h"
#include "hook/memory/context.h"

#include <pthread.h>
#include <string.h>

/* The hook's own function, which accounts for the memory of a green context. */
CT_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags);

enum {
    WHOLE_PPM = 1000 * 1000,
    SIZES = 20,          /* at most this many sizes of partitions */
    PARTITIONS = 3,      /* at most this many exist at a time, because each takes device memory */
    REPLACE_NS = 1000 * 1000 * 1000, /* the shortest time between two replacements */
    SMS_MIN = 2,         /* of older drivers, which do not state the size of a partition */
    SMS_MIN_CLUSTERS = 8 /* the same, for devices with clusters of blocks */
};
enum { CLUSTERS_SINCE = 9, COMPUTE_CAPABILITY_MAJOR = 75 };

struct partition {
    CUgreenCtx context; /* NULL: there is none */
    CUstream stream;
    uint32_t steps;     /* its size */
    uint64_t last_use;  /* larger: later */
};

/* The partitions of this process on one device. All of them begin with the same SMs, so that a smaller one is part of a larger
 * one. */
static struct partitions {
    pthread_mutex_t lock;
    int is_usable;
    CUdevice device;
    uint32_t sm_count, step_sms;
    struct partition partition[PARTITIONS];
    uint64_t uses;
    uint64_t replaced_ns; /* when a partition was last replaced by one of another size */
    CUevent event;        /* orders two streams; a wait refers to the record before it, so it can be used again at once */
} all_partitions[CT_DEVICES] = {[0 ... CT_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

/* Returns those of the device on which the call acts. */
static struct partitions *own_partitions(void)
{
    struct ct_page *page = load_acquire(&ct_page);
    return &all_partitions[page ? ct_device_of(page) - page->devices : 0];
}

static uint32_t rounded_up(uint32_t value, uint32_t step)
{
    return (value + step - 1) / step * step;
}

uint32_t ct_partition_step(CUdevice device)
{
    struct partitions *const partitions = own_partitions();
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
    pthread_mutex_lock(&partitions->lock);
    partitions->device = device;
    partitions->sm_count = whole.sm.smCount;
    partitions->step_sms = step_sms;
    partitions->is_usable = 1;
    pthread_mutex_unlock(&partitions->lock);
    return (uint32_t)((uint64_t)step_sms * WHOLE_PPM / whole.sm.smCount);
}

/* From now on launches are not limited. */
static void give_up(struct ct_session *session)
{
    struct partitions *const partitions = own_partitions();
    pthread_mutex_lock(&partitions->lock);
    partitions->is_usable = 0;
    pthread_mutex_unlock(&partitions->lock);
    ct_lock(session);
    session->gateway->sm_step_ppm = 0;
    ct_unlock(session);
}

/* Creates a partition of this many steps; returns whether the driver did so. Called with the lock held. */
static int create(struct partition *partition, uint32_t steps)
{
    struct partitions *const partitions = own_partitions();
    CUdevResource whole, part;
    CUdevResourceDesc resources;
    unsigned count = 1;
    memset(&whole, 0, sizeof whole);
    memset(&part, 0, sizeof part);
    if (CT_NEXT(cuDeviceGetDevResource)(partitions->device, &whole, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        CT_NEXT(cuDevSmResourceSplitByCount)(&part, &count, &whole, NULL, 0, steps * partitions->step_sms) !=
            CUDA_SUCCESS ||
        CT_NEXT(cuDevResourceGenerateDesc)(&resources, &part, 1) != CUDA_SUCCESS ||
        cuGreenCtxCreate(&partition->context, resources, partitions->device, CU_GREEN_CTX_DEFAULT_STREAM) !=
            CUDA_SUCCESS) {
        partition->context = NULL;
        return 0;
    }
    partition->steps = steps;
    if (CT_NEXT(cuGreenCtxStreamCreate)(&partition->stream, partition->context, CU_STREAM_NON_BLOCKING, 0) ==
        CUDA_SUCCESS)
        return 1;
    partition->stream = NULL;
    return 0;
}

static int is_idle(const struct partition *partition)
{
    return !partition->stream || CT_NEXT(cuStreamQuery)(partition->stream) == CUDA_SUCCESS;
}

static void destroy(CUgreenCtx context)
{
    struct ct_memory *memory = ct_memory();
    ct_memory_begin(memory);
    ct_memory_green_ended(memory, context, CT_NEXT(cuGreenCtxDestroy)(context));
}

/* Returns whether `one` replaces `other` better than what was found so far: the next smaller size, or else the next larger
 * one. */
static int is_nearer(const struct partition *one, const struct partition *other, uint32_t steps)
{
    if (!other || (one->steps < steps) != (other->steps < steps))
        return !other || one->steps < steps;
    return one->steps < steps ? one->steps > other->steps : one->steps < other->steps;
}

/* Returns a partition of this size, or one of a size near it while no more can be created; NULL if there is none. Called
 * with the lock held. */
static struct partition *provide(uint32_t steps, uint64_t now_ns)
{
    struct partitions *const partitions = own_partitions();
    struct partition *empty = NULL, *oldest = NULL, *near = NULL;
    for (int i = 0; i < PARTITIONS; i++) {
        struct partition *each = &partitions->partition[i];
        if (each->context && each->steps == steps)
            return each;
        if (!each->context)
            empty = each;
        else if (!oldest || each->last_use < oldest->last_use)
            oldest = each;
        if (each->context && is_nearer(each, near, steps))
            near = each;
    }
    if (!empty && now_ns - partitions->replaced_ns >= REPLACE_NS && is_idle(oldest)) {
        destroy(oldest->context);
        near = near == oldest ? NULL : near;
        *oldest = (struct partition){0};
        partitions->replaced_ns = now_ns;
        empty = oldest;
    }
    return empty && create(empty, steps) ? empty : near;
}

/* Returns the stream of a partition of about this size; NULL: the driver refuses to create one. */
static CUstream stream_of_size(uint32_t sm_ppm, uint64_t now_ns)
{
    struct partitions *const partitions = own_partitions();
    struct partition *partition = NULL;
    pthread_mutex_lock(&partitions->lock);
    if (partitions->is_usable) {
        const uint32_t sms = (uint32_t)((uint64_t)sm_ppm * partitions->sm_count / WHOLE_PPM);
        uint32_t steps = (sms + partitions->step_sms / 2) / partitions->step_sms;
        steps = steps < 1 ? 1 : steps > SIZES ? SIZES : steps;
        partition = provide(steps, now_ns);
    }
    if (partition)
        partition->last_use = ++partitions->uses;
    const CUstream stream = partition ? partition->stream : NULL;
    pthread_mutex_unlock(&partitions->lock);
    return stream;
}

/* Makes all later work of one stream wait for all earlier work of another. Returns whether the driver did so. */
static int order(CUstream earlier, int earlier_is_per_thread, CUstream later, int later_is_per_thread)
{
    struct partitions *const partitions = own_partitions();
    pthread_mutex_lock(&partitions->lock);
    if (!partitions->event && CT_NEXT(cuEventCreate)(&partitions->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        partitions->event = NULL;
    const CUevent event = partitions->event;
    int is_ordered = event && (earlier_is_per_thread ? CT_NEXT(cuEventRecord_ptsz)(event, earlier)
                                                     : CT_NEXT(cuEventRecord)(event, earlier)) == CUDA_SUCCESS;
    is_ordered = is_ordered && (later_is_per_thread ? CT_NEXT(cuStreamWaitEvent_ptsz)(later, event, 0)
                                                    : CT_NEXT(cuStreamWaitEvent)(later, event, 0)) == CUDA_SUCCESS;
    if (!is_ordered)
        partitions->event = NULL; /* it belongs to a context that has ended, or is not the current one */
    pthread_mutex_unlock(&partitions->lock);
    return is_ordered;
}

CUstream ct_partition_enter(struct ct_launch *launch)
{
    const CUstream stream = stream_of_size(launch->request.sm_ppm, launch->session->gateway->instant.last_ns);
    if (stream && order(launch->stream, launch->is_per_thread, stream, 0))
        return launch->partition = stream;
    give_up(launch->session);
    return launch->stream;
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

/* Takes the contexts of all partitions, or of those that are idle, for the caller to destroy. Called with the lock held. */
static int take(CUgreenCtx contexts[PARTITIONS], int only_idle)
{
    struct partitions *const partitions = own_partitions();
    int count = 0;
    for (int i = 0; i < PARTITIONS; i++) {
        struct partition *partition = &partitions->partition[i];
        if (!partition->context || (only_idle && !is_idle(partition)))
            continue;
        contexts[count++] = partition->context;
        *partition = (struct partition){0};
    }
    return count;
}

int ct_partition_trim(void)
{
    struct partitions *const partitions = own_partitions();
    CUgreenCtx contexts[PARTITIONS];
    if (pthread_mutex_trylock(&partitions->lock) != 0)
        return 0; /* this thread is creating one, or another thread uses them */
    const int count = take(contexts, 1);
    partitions->is_usable = partitions->is_usable && !count;
    pthread_mutex_unlock(&partitions->lock);
    for (int i = 0; i < count; i++)
        destroy(contexts[i]);
    return count;
}

void ct_partition_close(void)
{
    struct partitions *const partitions = own_partitions();
    CUgreenCtx contexts[PARTITIONS];
    pthread_mutex_lock(&partitions->lock);
    const int count = take(contexts, 0);
    partitions->event = NULL;
    pthread_mutex_unlock(&partitions->lock);
    for (int i = 0; i < count; i++)
        destroy(contexts[i]);
}
