/* Event sets. The only event type of a software GPU is the Xid. */
#define _GNU_SOURCE
#include "softgpu/nvml/internal.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A set sleeps on the futex of one device and polls the others. It notices a lost server within a second. */
enum { POLL_ONE_MS = 1000, POLL_MANY_MS = 50 };

struct nvmlEventSet_st {
    struct nvmlEventSet_st *next;
    unsigned waiting; /* number of waiting threads, which keep the set alive */
    int is_ending;
    uint8_t is_registered[NV_MAX_DEVICES];
    uint64_t last[NV_MAX_DEVICES]; /* sequence number of the last reported Xid */
};

static nvmlEventSet_t sets;

static nvmlEventSet_t *find_set(nvmlEventSet_t set)
{
    nvmlEventSet_t *set_link = &sets;
    while (*set_link && *set_link != set)
        set_link = &(*set_link)->next;
    return set_link;
}

static int is_valid(nvmlEventSet_t set)
{
    return set && *find_set(set) && !set->is_ending;
}

/* The set has no valid handle and no waiting threads. */
static void end(nvmlEventSet_t set)
{
    *find_set(set) = set->next;
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

/* Only later events are reported. */
API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, nvmlWord types, nvmlEventSet_t set);
API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, nvmlWord types, nvmlEventSet_t set)
{
    struct sg_observation observation;
    ENTER(device);
    NEED(is_valid(set), NVML_ERROR_INVALID_ARGUMENT);
    NEED(!(types & ~(nvmlWord)NVML_EVENT_XID), NVML_ERROR_NOT_SUPPORTED);
    NEED(types && !set->is_registered[device - nv_devices], NVML_SUCCESS);
    result = nv_observe(device, SG_LATEST_PERIOD, &observation);
    NEED(result == NVML_SUCCESS, result);
    set->last[device - nv_devices] = observation.xids;
    set->is_registered[device - nv_devices] = 1;
    return nv_leave(NVML_SUCCESS);
}

/* Query every device of the set. SUCCESS: *data is set; TIMEOUT: no new event. */
static nvmlReturn_t poll_devices(nvmlEventSet_t set, nvmlEventData_t *data)
{
    for (unsigned i = 0; i < nv_device_count; i++) {
        struct sg_request request = {.kind = SG_XID_NEXT, .a = set->last[i]};
        struct sg_reply reply;
        if (!set->is_registered[i])
            continue;
        nvmlReturn_t result = nv_request(&nv_devices[i], &request, &reply);
        if (result != NVML_SUCCESS)
            return result;
        if (reply.result != CT_DEVICE_OK)
            continue;
        set->last[i] = reply.b;
        *data = (nvmlEventData_t){&nv_devices[i], NVML_EVENT_XID, reply.a, NVML_NO_INSTANCE, NVML_NO_INSTANCE};
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

/* Sleep without the lock until the word changes or the time has passed. */
static void sleep_on(_Atomic uint32_t *word, uint32_t value, uint64_t ms)
{
    struct timespec time = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    if (word)
        syscall(SYS_futex, word, FUTEX_WAIT, value, &time, NULL, 0);
    else
        nanosleep(&time, NULL);
}

/* The lock is held and released while asleep. */
static nvmlReturn_t wait_for_event(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
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
            value = atomic_load(word); /* before the query, so that a later event changes it */
        }
        nvmlReturn_t result = poll_devices(set, data);
        uint64_t now_ms = clock_ms();
        if (result != NVML_ERROR_TIMEOUT || now_ms >= until_ms)
            return result;
        uint64_t slice_ms = registered > 1 ? POLL_MANY_MS : POLL_ONE_MS;
        nv_leave(NVML_SUCCESS);
        sleep_on(word, value, until_ms - now_ms < slice_ms ? until_ms - now_ms : slice_ms);
        result = nv_enter();
        if (result != NVML_SUCCESS)
            return result;
        if (set->is_ending)
            return NVML_ERROR_INVALID_ARGUMENT;
    }
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms);
API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(is_valid(set) && data, NVML_ERROR_INVALID_ARGUMENT);
    set->waiting++;
    result = wait_for_event(set, data, timeout_ms);
    if (result == NVML_ERROR_UNINITIALIZED) /* NVML was shut down: the lock is not held, and the set is leaked */
        return result;
    set->waiting--;
    if (set->is_ending && !set->waiting)
        end(set);
    return nv_leave(result);
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t *data, unsigned timeout_ms);
API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t *data, unsigned timeout_ms)
{
    nvmlEventData_t full;
    nvmlReturn_t result = nvmlEventSetWait_v2(set, data ? &full : NULL, timeout_ms);
    if (result == NVML_SUCCESS)
        *data = (nvmlEventData_v1_t){full.device, full.eventType, full.eventData};
    return result;
}
