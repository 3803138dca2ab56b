/* The driver calls that lock, checkpoint, restore and unlock another process. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { POLL_US = 500 };

/* The devices that the target process is connected to, whether or not this process can see them. */
struct target {
    int count, pid;
    struct device_state {
        int socket;
        uint32_t state;
        uint8_t uuid[16];
    } devices[SG_MAX_DEVICES];
};

/* Send one action for the process. -1: the device is lost. */
static int send_action(int socket, int pid, enum sg_checkpoint_action action, struct sg_reply *reply)
{
    struct sg_request request = {.kind = SG_CHECKPOINT, .a = (uint64_t)pid, .b = action};
    struct sg_connection fd = {.socket = socket};
    return sg_call(&fd, &request, reply);
}

static void disconnect(struct target *target)
{
    for (int i = 0; i < target->count; i++)
        close(target->devices[i].socket);
    target->count = 0;
}

static int open_device_socket(const char *directory, int number)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/gpu%d.sock", directory, number);
    int fd = length < (int)sizeof address.sun_path ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* This does not use sg_enter(), because a locked process may unlock itself. */
static CUresult connect_target(struct target *target, int pid)
{
    const char *directory = getenv("COTENANT_SOFTGPU");
    CUresult result = sg_may_call();
    *target = (struct target){.pid = pid};
    if (result != CUDA_SUCCESS)
        return result;
    for (int i = 0; directory && pid > 0 && i < SG_MAX_DEVICES; i++) {
        struct device_state *device_state = &target->devices[target->count];
        struct sg_reply reply;
        device_state->socket = open_device_socket(directory, i);
        if (device_state->socket < 0)
            continue;
        if (send_action(device_state->socket, pid, SG_CHECKPOINT_STATE, &reply) < 0 || reply.result != CT_DEVICE_OK) {
            close(device_state->socket);
            continue;
        }
        device_state->state = (uint32_t)reply.a;
        memcpy(device_state->uuid, reply.batch, sizeof device_state->uuid);
        target->count++;
    }
    return target->count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Drop the devices that are not in this state. */
static void keep_in_state(struct target *target, uint32_t state)
{
    int kept = 0;
    for (int i = 0; i < target->count; i++) {
        if (target->devices[i].state == state)
            target->devices[kept++] = target->devices[i];
        else
            close(target->devices[i].socket);
    }
    target->count = kept;
}

/* The devices are in different states if a caller died between them. The least advanced state is that of the
 * process. */
static CUprocessState state_of(const struct target *target)
{
    uint32_t state = CU_PROCESS_STATE_FAILED;
    for (int i = 0; i < target->count; i++) {
        if (target->devices[i].state == CU_PROCESS_STATE_FAILED)
            return CU_PROCESS_STATE_FAILED;
        state = target->devices[i].state < state ? target->devices[i].state : state;
    }
    return (CUprocessState)state;
}

/* Stop at the first failure; *count is the number of devices that succeeded. */
static CUresult send_action_to_all(struct target *target, enum sg_checkpoint_action action, int *count)
{
    for (*count = 0; *count < target->count; ++*count) {
        struct sg_reply reply;
        if (send_action(target->devices[*count].socket, target->pid, action, &reply) < 0)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (reply.result == SG_REFUSED)
            return (CUresult)reply.a;
        if (reply.result != CT_DEVICE_OK) /* the process no longer exists */
            return reply.result == CT_DEVICE_STALE ? CUDA_ERROR_INVALID_VALUE : sg_result(reply.result);
    }
    return CUDA_SUCCESS;
}

static void undo(struct target *target, enum sg_checkpoint_action action, int count)
{
    struct sg_reply reply;
    for (int i = 0; i < count; i++)
        send_action(target->devices[i].socket, target->pid, action, &reply);
}

/* Check all devices first, then apply the action to all. If a device fails in between, reverse the action on the
 * others. */
static CUresult all_or_none(struct target *target, enum sg_checkpoint_action check, enum sg_checkpoint_action action,
                            enum sg_checkpoint_action reverse)
{
    int count;
    CUresult result = send_action_to_all(target, check, &count);
    if (result != CUDA_SUCCESS)
        return result;
    result = send_action_to_all(target, action, &count);
    if (result != CUDA_SUCCESS)
        undo(target, reverse, count);
    return result;
}

static int is_zero(const void *bytes, size_t count)
{
    const char *at = bytes;
    for (size_t i = 0; i < count; i++)
        if (at[i])
            return 0;
    return 1;
}

API CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    struct target target;
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = connect_target(&target, pid);
    if (result == CUDA_SUCCESS)
        *state = state_of(&target);
    disconnect(&target);
    return result;
}

/* No thread of its own is needed for a restore. The main thread always exists. */
API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    struct target target;
    if (!tid)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = connect_target(&target, pid);
    if (result == CUDA_SUCCESS)
        *tid = pid;
    disconnect(&target);
    return result;
}

/* No call of the process begins while this waits. If it is not locked by then, closing the connections releases it. */
static CUresult lock(struct target *target, uint64_t until_ns)
{
    for (;;) {
        CUresult result = all_or_none(target, SG_CHECKPOINT_HOLD, SG_CHECKPOINT_LOCK, SG_CHECKPOINT_RELEASE);
        if (result != CUDA_ERROR_NOT_READY || sg_clock_ns() >= until_ns)
            return result;
        usleep(POLL_US);
    }
}

API CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    struct target target;
    uint64_t until_ns = CT_DEVICE_NEVER;
    if (args && (args->reserved0 || !is_zero(args->reserved1, sizeof args->reserved1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (args && args->timeoutMs)
        until_ns = sg_clock_ns() + args->timeoutMs * UINT64_C(1000000);
    CUresult result = connect_target(&target, pid);
    if (result == CUDA_SUCCESS && state_of(&target) != CU_PROCESS_STATE_RUNNING)
        result = CUDA_ERROR_ILLEGAL_STATE;
    keep_in_state(&target, CU_PROCESS_STATE_RUNNING);
    if (result == CUDA_SUCCESS)
        result = lock(&target, until_ns);
    disconnect(&target);
    return result;
}

API CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    struct target target;
    if (args && !is_zero(args, sizeof *args))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = connect_target(&target, pid);
    if (result == CUDA_SUCCESS && state_of(&target) != CU_PROCESS_STATE_LOCKED)
        result = CUDA_ERROR_ILLEGAL_STATE;
    keep_in_state(&target, CU_PROCESS_STATE_LOCKED);
    if (result == CUDA_SUCCESS)
        result = all_or_none(&target, SG_CHECKPOINT_MAY_SAVE, SG_CHECKPOINT_SAVE, SG_CHECKPOINT_LOAD);
    disconnect(&target);
    return result;
}

/* Memory returns to its original device; moving it to another one is not supported. */
static CUresult check_pairs(const struct target *target, const CUcheckpointGpuPair *pairs, unsigned count)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < target->count && count; i++) {
        const CUcheckpointGpuPair *found = NULL;
        for (unsigned j = 0; j < count && !found; j++)
            if (memcmp(pairs[j].oldUuid.bytes, target->devices[i].uuid, sizeof target->devices[i].uuid) == 0)
                found = &pairs[j];
        if (!found)
            return CUDA_ERROR_INVALID_VALUE;
        if (memcmp(&found->oldUuid, &found->newUuid, sizeof found->oldUuid) != 0)
            result = CUDA_ERROR_NOT_SUPPORTED;
    }
    return result;
}

API CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    struct target target;
    if (args && (!is_zero(args->reserved, sizeof args->reserved) || args->reserved1 ||
                 (args->gpuPairsCount && !args->gpuPairs)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = connect_target(&target, pid);
    if (result == CUDA_SUCCESS && state_of(&target) != CU_PROCESS_STATE_CHECKPOINTED)
        result = CUDA_ERROR_ILLEGAL_STATE;
    if (result == CUDA_SUCCESS && args)
        result = check_pairs(&target, args->gpuPairs, args->gpuPairsCount);
    if (result == CUDA_SUCCESS)
        result = all_or_none(&target, SG_CHECKPOINT_MAY_LOAD, SG_CHECKPOINT_LOAD, SG_CHECKPOINT_SAVE);
    disconnect(&target);
    return result;
}

API CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    struct target target;
    int count;
    if (args && !is_zero(args, sizeof *args))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = connect_target(&target, pid);
    for (int i = 0; i < target.count; i++)
        if (target.devices[i].state != CU_PROCESS_STATE_LOCKED)
            result = CUDA_ERROR_ILLEGAL_STATE;
    if (result == CUDA_SUCCESS)
        result = send_action_to_all(&target, SG_CHECKPOINT_RELEASE, &count);
    disconnect(&target);
    return result;
}
