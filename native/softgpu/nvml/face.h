/* Inside the face of NVML: its devices, its lock, and how a question becomes an answer. */
#ifndef COTENANT_SOFTGPU_NVML_FACE_H
#define COTENANT_SOFTGPU_NVML_FACE_H

#include "device/board.h"
#include "softgpu/nvml/nvml.h"
#include "softgpu/observation.h"
#include "softgpu/wire.h"

#include <stddef.h>

#define API __attribute__((visibility("default")))
#define ALIAS(name) __attribute__((alias(#name), visibility("default")))

enum { NV_MAX_DEVICES = 16 };

/* A handle is the address of one of these; they live as long as the library. */
struct nvmlDevice_st {
    unsigned index; /* as the directory numbers it: CUDA_VISIBLE_DEVICES is none of NVML's business */
    int socket;
    int lost;
    struct sg_bulletin *bulletin;
    struct ct_device_config config;
    const struct ct_board *board;
    uint8_t uuid[16];
    uint64_t epoch_ns; /* the wall clock's reading at the server's instant 0 */
};

extern struct nvmlDevice_st nv_devices[NV_MAX_DEVICES];
extern unsigned nv_device_count;

/* One lock for all of NVML, taken by the enters and given back by nv_leave, which hands the result on. */
nvmlReturn_t nv_enter(void);
nvmlReturn_t nv_enter_device(nvmlDevice_t device);
nvmlReturn_t nv_leave(nvmlReturn_t result);
nvmlReturn_t nv_unsupported(void);

/* The lock is held. */
nvmlReturn_t nv_ask(nvmlDevice_t device, const struct sg_request *request, struct sg_reply *reply);
/* What happened after an instant, or SG_LATEST_PERIOD. */
nvmlReturn_t nv_observe(nvmlDevice_t device, uint64_t since_ns, struct sg_observation *seen);

/* Per cent of a whole, rounded, never more than 100. */
unsigned nv_percent(double part, double whole);
/* Of one sample period. */
unsigned nv_busy_percent(const struct sg_sample *before, const struct sg_sample *after);
unsigned nv_memory_percent(const struct ct_device_config *config, const struct sg_sample *before,
                           const struct sg_sample *after);
/* Power is told as its average over a sample period. */
unsigned nv_power_mw(nvmlDevice_t device, const struct sg_sample *before, const struct sg_sample *after);
unsigned nv_clock_mhz(nvmlDevice_t device, int type, const struct sg_sample *at);
/* NVML tells time in microseconds of the wall clock. */
nvmlWord nv_stamp_us(nvmlDevice_t device, uint64_t at_ns);
/* The last instant that has this stamp. */
uint64_t nv_instant_ns(nvmlDevice_t device, nvmlWord stamp_us);

/* Into a buffer of the caller's: INSUFFICIENT_SIZE when it does not fit with its end. */
nvmlReturn_t nv_text(char *buffer, unsigned length, const char *text);
nvmlReturn_t nv_uuid_text(nvmlDevice_t device, char *buffer, unsigned length);

/* A function of one device and one place for its answer. */
#define ANSWER_IF(name, type, condition, expression)                                                                   \
    API nvmlReturn_t name(nvmlDevice_t device, type *answer);                                                          \
    API nvmlReturn_t name(nvmlDevice_t device, type *answer)                                                           \
    {                                                                                                                  \
        nvmlReturn_t result = nv_enter_device(device);                                                                 \
        if (result != NVML_SUCCESS)                                                                                    \
            return result;                                                                                             \
        if (!answer)                                                                                                   \
            return nv_leave(NVML_ERROR_INVALID_ARGUMENT);                                                              \
        if (!(condition))                                                                                              \
            return nv_leave(NVML_ERROR_NOT_SUPPORTED);                                                                 \
        *answer = (type)(expression);                                                                                  \
        return nv_leave(NVML_SUCCESS);                                                                                 \
    }
#define ANSWER(name, type, expression) ANSWER_IF(name, type, 1, expression)

/* A function of one device whose answer is a text. */
#define ANSWER_TEXT(name, text)                                                                                        \
    API nvmlReturn_t name(nvmlDevice_t device, char *buffer, unsigned length);                                         \
    API nvmlReturn_t name(nvmlDevice_t device, char *buffer, unsigned length)                                          \
    {                                                                                                                  \
        nvmlReturn_t result = nv_enter_device(device);                                                                 \
        return result != NVML_SUCCESS ? result : nv_leave(nv_text(buffer, length, text));                              \
    }

/* Begins any other function of one device: returns from it unless the device may be asked. */
#define ENTER(device)                                                                                                  \
    nvmlReturn_t result = nv_enter_device(device);                                                                     \
    if (result != NVML_SUCCESS)                                                                                        \
        return result

/* The same, and leaves when a condition does not hold. */
#define NEED(condition, otherwise)                                                                                     \
    if (!(condition))                                                                                                  \
    return nv_leave(otherwise)

#endif
