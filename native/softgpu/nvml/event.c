/* Waiting for what goes wrong: sets of events, of which a soft GPU has one kind, the Xid. */
#define _GNU_SOURCE
#include "softgpu/nvml/face.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A set sleeps on the word of one device; with more it looks after the others in between, and in any case it notices
 * within a second that a server is gone. */
enum { LOOK_ONE_MS = 1000, LOOK_MANY_MS = 50 };

struct nvmlEventSet_st {
    struct nvmlEventSet_st *next;
    unsigned waiting; /* threads inside: the set lives until they are out */
    int is_ending;
    uint8_t is_registered[NV_MAX_DEVICES];
    uint64_t last[NV_MAX_DEVICES]; /* the sequence number of the last Xid told */
};

static nvmlEventSet_t sets;

static nvmlEventSet_t *place_of(nvmlEventSet_t set)
{
    nvmlEventSet_t *place = &sets;
    while (*place && *place != set)
        place = &(*place)->next;
    return place;
}

static int is_valid(nvmlEventSet_t set)
{
    return set && *place_of(set) && !set->is_ending;
}

/* Of a set that nobody can name and nobody waits on. */
static void end(nvmlEventSet_t set)
{
    *place_of(set) = set->next;
    free(set);
}

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(set, NVML_ERROR_INVALID_ARGUMENT);
    nvmlEventSet_t made = calloc(1, sizeof *made);
    NEED(made, NVML_ERROR_MEMORY);
    made->next = sets;
    *set = sets = made;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(is_valid(set), NVML_ERROR_INVALID_ARGUMENT);
    set->is_ending = 1;
    if (!set->waiting)
        end(set);
    return nv_leave(NVML_SUCCESS);
}

ANSWER(nvmlDeviceGetSupportedEventTypes, nvmlWord, NVML_EVENT_XID)

/* Only what happens from here on is told. */
API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, nvmlWord types, nvmlEventSet_t set);
API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, nvmlWord types, nvmlEventSet_t set)
{
    struct sg_observation seen;
    ENTER(device);
    NEED(is_valid(set), NVML_ERROR_INVALID_ARGUMENT);
    NEED(!(types & ~(nvmlWord)NVML_EVENT_XID), NVML_ERROR_NOT_SUPPORTED);
    NEED(types && !set->is_registered[device - nv_devices], NVML_SUCCESS);
    result = nv_observe(device, SG_LATEST_PERIOD, &seen);
    NEED(result == NVML_SUCCESS, result);
    set->last[device - nv_devices] = seen.xids;
    set->is_registered[device - nv_devices] = 1;
    return nv_leave(NVML_SUCCESS);
}

/* Asks every device of the set. SUCCESS: *told is filled in; TIMEOUT: nothing new. */
static nvmlReturn_t look(nvmlEventSet_t set, nvmlEventData_t *told)
{
    for (unsigned i = 0; i < nv_device_count; i++) {
        struct sg_request request = {.kind = SG_XID_NEXT, .a = set->last[i]};
        struct sg_reply reply;
        if (!set->is_registered[i])
            continue;
        nvmlReturn_t result = nv_ask(&nv_devices[i], &request, &reply);
        if (result != NVML_SUCCESS)
            return result;
        if (reply.result != CT_DEVICE_OK)
            continue;
        set->last[i] = reply.b;
        *told = (nvmlEventData_t){&nv_devices[i], NVML_EVENT_XID, reply.a, NVML_NO_INSTANCE, NVML_NO_INSTANCE};
        return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}

static uint64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Sleeps outside of the lock until a word changes or some time has passed. */
static void sleep_on(_Atomic uint32_t *word, uint32_t value, uint64_t ms)
{
    struct timespec time = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    if (word)
        syscall(SYS_futex, word, FUTEX_WAIT, value, &time, NULL, 0);
    else
        nanosleep(&time, NULL);
}

/* The lock is held, and given up while asleep. */
static nvmlReturn_t await(nvmlEventSet_t set, nvmlEventData_t *told, unsigned timeout_ms)
{
    uint64_t until_ms = clock_ms() + timeout_ms;
    for (;;) {
        _Atomic uint32_t *word = NULL;
        unsigned registered = 0;
        uint32_t value = 0;
        for (unsigned i = 0; i < nv_device_count; i++) {
            if (!set->is_registered[i])
                continue;
            registered++;
            word = &nv_devices[i].bulletin->xids;
            value = atomic_load(word); /* before looking: what comes after changes it */
        }
        nvmlReturn_t result = look(set, told);
        uint64_t now_ms = clock_ms();
        if (result != NVML_ERROR_TIMEOUT || now_ms >= until_ms)
            return result;
        uint64_t slice_ms = registered > 1 ? LOOK_MANY_MS : LOOK_ONE_MS;
        nv_leave(NVML_SUCCESS);
        sleep_on(word, value, until_ms - now_ms < slice_ms ? until_ms - now_ms : slice_ms);
        result = nv_enter();
        if (result != NVML_SUCCESS)
            return result;
        if (set->is_ending)
            return NVML_ERROR_INVALID_ARGUMENT;
    }
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *told, unsigned timeout_ms);
API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *told, unsigned timeout_ms)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(is_valid(set) && told, NVML_ERROR_INVALID_ARGUMENT);
    set->waiting++;
    result = await(set, told, timeout_ms);
    if (result == NVML_ERROR_UNINITIALIZED) /* shut down meanwhile: the lock is not held, and the set stays behind */
        return result;
    set->waiting--;
    if (set->is_ending && !set->waiting)
        end(set);
    return nv_leave(result);
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t *told, unsigned timeout_ms);
API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t *told, unsigned timeout_ms)
{
    nvmlEventData_t full;
    nvmlReturn_t result = nvmlEventSetWait_v2(set, told ? &full : NULL, timeout_ms);
    if (result == NVML_SUCCESS)
        *told = (nvmlEventData_v1_t){full.device, full.eventType, full.eventData};
    return result;
}
