/* The driver's calls that suspend another process: locked, its memory off the device, back again, let go. */
#define _GNU_SOURCE
#include "softgpu/face.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LOOK_US = 500 };

/* The devices that the process is connected to, whichever of them this process may see. */
struct party {
    int count, pid;
    struct member {
        int socket;
        uint32_t state;
        uint8_t uuid[16];
    } members[SG_MAX_DEVICES];
};

/* One question about the process. -1: the device is gone. */
static int ask(int socket, int pid, enum sg_checkpoint_act act, struct sg_reply *reply)
{
    struct sg_request request = {.kind = SG_CHECKPOINT, .a = (uint64_t)pid, .b = act};
    struct sg_link line = {.socket = socket};
    return sg_ask(&line, &request, reply);
}

static void part(struct party *party)
{
    for (int i = 0; i < party->count; i++)
        close(party->members[i].socket);
    party->count = 0;
}

static int reach(const char *directory, int number)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/gpu%d.sock", directory, number);
    int line = length < (int)sizeof address.sun_path ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
    if (line >= 0 && connect(line, (struct sockaddr *)&address, sizeof address) < 0) {
        close(line);
        return -1;
    }
    return line;
}

/* Not through sg_enter(): a process that is locked may let itself go. */
static CUresult meet(struct party *party, int pid)
{
    const char *directory = getenv("COTENANT_SOFTGPU");
    CUresult result = sg_may_call();
    *party = (struct party){.pid = pid};
    if (result != CUDA_SUCCESS)
        return result;
    for (int i = 0; directory && pid > 0 && i < SG_MAX_DEVICES; i++) {
        struct member *member = &party->members[party->count];
        struct sg_reply reply;
        member->socket = reach(directory, i);
        if (member->socket < 0)
            continue;
        if (ask(member->socket, pid, SG_CHECKPOINT_STATE, &reply) < 0 || reply.result != CT_DEVICE_OK) {
            close(member->socket);
            continue;
        }
        member->state = (uint32_t)reply.a;
        memcpy(member->uuid, reply.batch, sizeof member->uuid);
        party->count++;
    }
    return party->count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Those that are not in this state are left as they are. */
static void keep(struct party *party, uint32_t state)
{
    int kept = 0;
    for (int i = 0; i < party->count; i++) {
        if (party->members[i].state == state)
            party->members[kept++] = party->members[i];
        else
            close(party->members[i].socket);
    }
    party->count = kept;
}

/* Where they are not all in one state somebody died on the way: the least advanced one is the whole's. */
static CUprocessState state_of(const struct party *party)
{
    uint32_t state = CU_PROCESS_STATE_FAILED;
    for (int i = 0; i < party->count; i++) {
        if (party->members[i].state == CU_PROCESS_STATE_FAILED)
            return CU_PROCESS_STATE_FAILED;
        state = party->members[i].state < state ? party->members[i].state : state;
    }
    return (CUprocessState)state;
}

/* The first answer that is not a yes; those before it are counted. */
static CUresult ask_all(struct party *party, enum sg_checkpoint_act act, int *agreed)
{
    for (*agreed = 0; *agreed < party->count; ++*agreed) {
        struct sg_reply reply;
        if (ask(party->members[*agreed].socket, party->pid, act, &reply) < 0)
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (reply.result == SG_REFUSED)
            return (CUresult)reply.a;
        if (reply.result != CT_DEVICE_OK) /* a process that is gone is as one that never was */
            return reply.result == CT_DEVICE_STALE ? CUDA_ERROR_INVALID_VALUE : sg_result(reply.result);
    }
    return CUDA_SUCCESS;
}

static void undo(struct party *party, enum sg_checkpoint_act act, int agreed)
{
    struct sg_reply reply;
    for (int i = 0; i < agreed; i++)
        ask(party->members[i].socket, party->pid, act, &reply);
}

/* First whether all devices would, then all of them; who changes his mind in between undoes it for all. */
static CUresult all_or_none(struct party *party, enum sg_checkpoint_act may, enum sg_checkpoint_act act,
                            enum sg_checkpoint_act back)
{
    int agreed;
    CUresult result = ask_all(party, may, &agreed);
    if (result != CUDA_SUCCESS)
        return result;
    result = ask_all(party, act, &agreed);
    if (result != CUDA_SUCCESS)
        undo(party, back, agreed);
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
    struct party party;
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = meet(&party, pid);
    if (result == CUDA_SUCCESS)
        *state = state_of(&party);
    part(&party);
    return result;
}

/* Nothing here needs a thread of its own; the process's first one is sure to be there. */
API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    struct party party;
    if (!tid)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = meet(&party, pid);
    if (result == CUDA_SUCCESS)
        *tid = pid;
    part(&party);
    return result;
}

/* No call of the process begins while this waits; with our connections that ends, if it is not locked by then. */
static CUresult lock(struct party *party, uint64_t until_ns)
{
    for (;;) {
        CUresult result = all_or_none(party, SG_CHECKPOINT_HOLD, SG_CHECKPOINT_LOCK, SG_CHECKPOINT_RELEASE);
        if (result != CUDA_ERROR_NOT_READY || sg_clock_ns() >= until_ns)
            return result;
        usleep(LOOK_US);
    }
}

API CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    struct party party;
    uint64_t until_ns = CT_DEVICE_NEVER;
    if (args && (args->reserved0 || !is_zero(args->reserved1, sizeof args->reserved1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (args && args->timeoutMs)
        until_ns = sg_clock_ns() + args->timeoutMs * UINT64_C(1000000);
    CUresult result = meet(&party, pid);
    if (result == CUDA_SUCCESS && state_of(&party) != CU_PROCESS_STATE_RUNNING)
        result = CUDA_ERROR_ILLEGAL_STATE;
    keep(&party, CU_PROCESS_STATE_RUNNING);
    if (result == CUDA_SUCCESS)
        result = lock(&party, until_ns);
    part(&party);
    return result;
}

API CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    struct party party;
    if (args && !is_zero(args, sizeof *args))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = meet(&party, pid);
    if (result == CUDA_SUCCESS && state_of(&party) != CU_PROCESS_STATE_LOCKED)
        result = CUDA_ERROR_ILLEGAL_STATE;
    keep(&party, CU_PROCESS_STATE_LOCKED);
    if (result == CUDA_SUCCESS)
        result = all_or_none(&party, SG_CHECKPOINT_MAY_SAVE, SG_CHECKPOINT_SAVE, SG_CHECKPOINT_LOAD);
    part(&party);
    return result;
}

/* Memory returns to the device it left: nothing moves to another one. */
static CUresult check_pairs(const struct party *party, const CUcheckpointGpuPair *pairs, unsigned count)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < party->count && count; i++) {
        const CUcheckpointGpuPair *found = NULL;
        for (unsigned j = 0; j < count && !found; j++)
            if (memcmp(pairs[j].oldUuid.bytes, party->members[i].uuid, sizeof party->members[i].uuid) == 0)
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
    struct party party;
    if (args && (!is_zero(args->reserved, sizeof args->reserved) || args->reserved1 ||
                 (args->gpuPairsCount && !args->gpuPairs)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = meet(&party, pid);
    if (result == CUDA_SUCCESS && state_of(&party) != CU_PROCESS_STATE_CHECKPOINTED)
        result = CUDA_ERROR_ILLEGAL_STATE;
    if (result == CUDA_SUCCESS && args)
        result = check_pairs(&party, args->gpuPairs, args->gpuPairsCount);
    if (result == CUDA_SUCCESS)
        result = all_or_none(&party, SG_CHECKPOINT_MAY_LOAD, SG_CHECKPOINT_LOAD, SG_CHECKPOINT_SAVE);
    part(&party);
    return result;
}

API CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    struct party party;
    int agreed;
    if (args && !is_zero(args, sizeof *args))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = meet(&party, pid);
    for (int i = 0; i < party.count; i++)
        if (party.members[i].state != CU_PROCESS_STATE_LOCKED)
            result = CUDA_ERROR_ILLEGAL_STATE;
    if (result == CUDA_SUCCESS)
        result = ask_all(&party, SG_CHECKPOINT_RELEASE, &agreed);
    part(&party);
    return result;
}
