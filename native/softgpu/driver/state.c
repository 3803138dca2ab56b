/* Initialisation, the lock, the context stack of each thread, and the state after fork. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"
#include "softgpu/abi/names.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STACK_FIRST = 16 };

struct sg_device sg_devices[SG_MAX_DEVICES];
int sg_device_count;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUresult state = CUDA_ERROR_NOT_INITIALIZED;
static int forked;
static uint64_t ids;

/* The address does not identify a context, because a new one may reuse it. */
struct entry {
    CUcontext context;
    uint64_t name;
};

static __thread struct entry *stack;
static __thread int depth, stack_capacity;
static pthread_key_t stack_key;
static pthread_once_t stack_once = PTHREAD_ONCE_INIT;
static __thread int in_callback;

uint64_t sg_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t sg_next_id(void)
{
    return ++ids;
}

int sg_in_callback(int set)
{
    if (set >= 0)
        in_callback = set;
    return in_callback;
}

void sg_relock(void)
{
    pthread_mutex_lock(&lock);
}

void sg_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

CUresult sg_may_call(void)
{
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (in_callback)
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    return now == CUDA_ERROR_NO_DEVICE ? CUDA_ERROR_NOT_INITIALIZED : now;
}

static __thread uint64_t call_begin_ns, call_end_ns; /* 0: calls cost nothing */

/* All devices of a directory have the same costs. */
static void begin_call(void)
{
    call_end_ns = 0;
    if (sg_device_count > 0 && sg_devices[0].costs.call_ns) {
        call_begin_ns = sg_clock_ns();
        call_end_ns = call_begin_ns + sg_devices[0].costs.call_ns;
    }
}

void sg_call_lasts(uint64_t duration_ns)
{
    if (call_end_ns && call_end_ns < call_begin_ns + duration_ns)
        call_end_ns = call_begin_ns + duration_ns;
}

/* Another thread may have held the lock during the fork, so the child never takes it. */
CUresult sg_enter(void)
{
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (in_callback)
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&lock);
    sg_wait_while_held();
    begin_call();
    if (state != CUDA_SUCCESS)
        return sg_leave(state == CUDA_ERROR_NO_DEVICE ? CUDA_ERROR_NOT_INITIALIZED : state);
    return CUDA_SUCCESS;
}

CUresult sg_leave(CUresult result)
{
    pthread_mutex_unlock(&lock);
    if (call_end_ns) { /* a driver spends this time in the calling thread */
        uint64_t end_ns = call_end_ns;
        call_end_ns = 0;
        while (sg_clock_ns() < end_ns)
            ;
    }
    return result;
}

/* A primary context that is reset and retained again counts as the same context. */
static uint64_t name_of(CUcontext context)
{
    return context->is_primary ? UINT64_MAX - (uint64_t)context->device->ordinal : context->object.id;
}

static int is_current_alive(void)
{
    const struct entry *top = depth ? &stack[depth - 1] : NULL;
    return top && sg_alive(SG_CONTEXT, top->context) && name_of(top->context) == top->name;
}

CUresult sg_enter_context(CUcontext *context)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *context = sg_current();
    if (!*context)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!is_current_alive())
        return sg_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    result = sg_connection_status(&(*context)->device->connection);
    return result == CUDA_SUCCESS ? CUDA_SUCCESS : sg_leave(result);
}

void sg_kernel_fault(struct sg_connection *connection, CUresult fault)
{
    struct sg_request request = {.kind = SG_FAULT, .a = SG_FAULT_ILLEGAL_ADDRESS, .b = SG_FAULT_SELF};
    struct sg_reply reply;
    switch (fault) {
    case CUDA_ERROR_MISALIGNED_ADDRESS:
        request.a = SG_FAULT_MISALIGNED_ADDRESS;
        break;
    case CUDA_ERROR_LAUNCH_TIMEOUT:
        request.a = SG_FAULT_LAUNCH_TIMEOUT;
        break;
    case CUDA_ERROR_ASSERT:
        request.a = SG_FAULT_ASSERT;
        break;
    case CUDA_ERROR_LAUNCH_FAILED:
        request.a = SG_FAULT_LAUNCH_FAILED;
        break;
    default:
        break;
    }
    if (fault != CUDA_SUCCESS)
        sg_call(connection, &request, &reply);
}

CUcontext sg_current(void)
{
    return depth ? stack[depth - 1].context : NULL;
}

void sg_context_pop_if_current(CUcontext context, uint64_t id)
{
    if (depth && stack[depth - 1].context == context && stack[depth - 1].name == id)
        depth--;
}

struct sg_device *sg_device_at(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < sg_device_count ? &sg_devices[ordinal] : NULL;
}

int sg_unsupported(int number)
{
    CUresult result = sg_enter();
    if (result == CUDA_SUCCESS) {
        CUcontext context = sg_current();
        struct sg_device *device = is_current_alive() ? context->device : sg_device_at(0);
        struct sg_request request = {.kind = SG_UNSUPPORTED, .a = (uint64_t)number};
        struct sg_reply reply;
        if (device) /* with a reply, so that it is counted before this call returns */
            sg_call(&device->connection, &request, &reply);
        sg_leave(result);
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void after_fork(void)
{
    forked = 1;
    /* Close the inherited sockets, so that the server notices the parent's death immediately. */
    for (int i = 0; i < sg_device_count; i++)
        close(sg_devices[i].connection.socket);
    sg_mps_disconnect();
}

/* Parse CUDA_VISIBLE_DEVICES as an ordered list of numbers. An invalid entry ends the list; a duplicate empties it, as
 * in the driver. */
static int visible(int *chosen, int capacity, int present)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    if (!list) {
        for (int i = 0; i < present && i < capacity; i++)
            chosen[count++] = i;
        return count;
    }
    while (count < capacity) {
        char *end;
        long number = strtol(list, &end, 10);
        if (end == list || number < 0 || number >= present)
            break;
        for (int i = 0; i < count; i++)
            if (chosen[i] == number)
                return 0;
        chosen[count++] = (int)number;
        if (*end != ',')
            break;
        list = end + 1;
    }
    return count;
}

/* One device refused the connection, so none is used. cuInit may be called again. */
static void close_devices(void)
{
    while (sg_device_count > 0)
        sg_connection_close(&sg_devices[--sg_device_count].connection);
    sg_mps_disconnect();
}

static CUresult open_devices(void)
{
    const char *directory = getenv("COTENANT_SOFTGPU");
    int chosen[SG_MAX_DEVICES], present = 0;
    char path[108];
    if (!directory || !*directory)
        return CUDA_ERROR_NO_DEVICE;
    while (present < SG_MAX_DEVICES) {
        snprintf(path, sizeof path, "%s/gpu%d.sock", directory, present);
        if (access(path, F_OK) != 0)
            break;
        present++;
    }
    CUresult result = sg_mps_join();
    if (result != CUDA_SUCCESS)
        return result;
    /* Under MPS, the list refers to the devices of the MPS server. */
    int count = visible(chosen, SG_MAX_DEVICES, sg_mps.is_client ? sg_mps.count : present);
    for (int i = 0; i < count; i++) {
        struct sg_device *device = &sg_devices[sg_device_count];
        int number = sg_mps.is_client ? sg_mps.gpus[chosen[i]].ordinal : chosen[i];
        int length = snprintf(path, sizeof path, "%s/gpu%d.sock", directory, number);
        uint32_t group = sg_mps.is_client ? sg_mps.gpus[chosen[i]].group : 0;
        int failed = length < (int)sizeof path ? sg_connection_open(path, group, device) : -1;
        if (failed > 0) {
            close_devices();
            return (CUresult)failed;
        }
        /* A GPU without a server does not exist, like one that fell off the bus. */
        if (failed)
            continue;
        device->ordinal = sg_device_count++;
    }
    if (!sg_device_count)
        sg_mps_disconnect();
    return sg_device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

API CUresult cuInit(unsigned int flags)
{
    static int handlers_set;
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (in_callback)
        return CUDA_ERROR_NOT_PERMITTED;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (state != CUDA_SUCCESS) {
        __atomic_store_n(&state, open_devices(), __ATOMIC_RELEASE);
        if (state == CUDA_SUCCESS && !handlers_set && pthread_atfork(NULL, NULL, after_fork) == 0)
            handlers_set = 1;
    }
    CUresult result = state;
    pthread_mutex_unlock(&lock);
    return result;
}

API CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = SG_DRIVER_VERSION;
    return CUDA_SUCCESS;
}

/* A thread's stack ends with the thread. Destructors that run later find an empty stack. */
static void end_stack(void *ended)
{
    free(ended);
    stack = NULL;
    depth = stack_capacity = 0;
}

static void make_stack_key(void)
{
    pthread_key_create(&stack_key, end_stack);
}

static int push(CUcontext context)
{
    if (depth == stack_capacity) {
        int more = stack_capacity ? stack_capacity * 2 : STACK_FIRST;
        struct entry *larger = realloc(stack, (size_t)more * sizeof *larger);
        if (!larger)
            return -1;
        stack = larger;
        stack_capacity = more;
        pthread_once(&stack_once, make_stack_key);
        pthread_setspecific(stack_key, stack);
    }
    stack[depth++] = (struct entry){context, name_of(context)};
    return 0;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_CONTEXT, context))
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    return sg_leave(push(context) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!depth)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    depth--;
    if (context)
        *context = stack[depth].context;
    return sg_leave(CUDA_SUCCESS);
}

/* NULL pops the current context; any other context replaces it. */
API CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!context) {
        depth -= depth > 0;
        return sg_leave(CUDA_SUCCESS);
    }
    if (!sg_alive(SG_CONTEXT, context))
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!depth)
        return sg_leave(push(context) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
    stack[depth - 1] = (struct entry){context, name_of(context)};
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!context)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *context = sg_current();
    return sg_leave(CUDA_SUCCESS);
}
