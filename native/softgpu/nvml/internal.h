/* Devices, locking and request functions of the NVML implementation. */
#ifndef COTENANT_SOFTGPU_NVML_INTERNAL_H
#define COTENANT_SOFTGPU_NVML_INTERNAL_H

#include "device/board.h"
#include "softgpu/nvml/nvml.h"
#include "softgpu/observation.h"
#include "softgpu/wire.h"

#include <stddef.h>

#define API __attribute__((visibility("default")))
#define ALIAS(name) __attribute__((alias(#name), visibility("default")))

enum { NV_MAX_DEVICES = 16 };

/* A device handle is the address of one of these, which exist as long as the library is loaded. */
struct nvmlDevice_st {
    unsigned index; /* number in the directory: NVML ignores CUDA_VISIBLE_DEVICES */
    int socket;
    int lost;
    struct sg_bulletin *bulletin;
    struct ct_device_config config;
    const struct ct_board *board;
    uint8_t uuid[16];
    uint64_t epoch_ns; /* wall-clock time at the server's instant 0 */
};

extern struct nvmlDevice_st nv_devices[NV_MAX_DEVICES];
extern unsigned nv_device_count;

/* One lock for NVML. The enter functions take it; nv_leave releases it and returns the result. */
nvmlReturn_t nv_enter(void);
nvmlReturn_t nv_enter_device(nvmlDevice_t device);
nvmlReturn_t nv_leave(nvmlReturn_t result);
nvmlReturn_t nv_unsupported(void);

/* Send a request. The lock is held. */
nvmlReturn_t nv_request(nvmlDevice_t device, const struct sg_request *request, struct sg_reply *reply);
/* Request the observation since an instant or SG_LATEST_PERIOD. The lock is held. */
nvmlReturn_t nv_observe(nvmlDevice_t device, uint64_t since_ns, struct sg_observation *observation);

/* Rounded percentage, at most 100. */
unsigned nv_percent(double part, double whole);
/* Over one sample period. */
unsigned nv_busy_percent(const struct sg_sample *before, const struct sg_sample *after);
unsigned nv_memory_percent(const struct ct_device_config *config, const struct sg_sample *before,
                           const struct sg_sample *after);
/* Average power over a sample period. */
unsigned nv_power_mw(nvmlDevice_t device, const struct sg_sample *before, const struct sg_sample *after);
unsigned nv_clock_mhz(nvmlDevice_t device, int type, const struct sg_sample *at);
/* Convert an instant to NVML's wall-clock time in microseconds. */
nvmlWord nv_stamp_us(nvmlDevice_t device, uint64_t at_ns);
/* Return the last instant with this time stamp. */
uint64_t nv_instant_ns(nvmlDevice_t device, nvmlWord stamp_us);

/* Copy a text with its terminating zero. INSUFFICIENT_SIZE: it does not fit. */
nvmlReturn_t nv_text(char *buffer, unsigned length, const char *text);
nvmlReturn_t nv_uuid_text(nvmlDevice_t device, char *buffer, unsigned length);

/* Define a function that returns one value of a device. */
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

/* Define a function that returns a text of a device. */
#define ANSWER_TEXT(name, text)                                                                                        \
    API nvmlReturn_t name(nvmlDevice_t device, char *buffer, unsigned length);                                         \
    API nvmlReturn_t name(nvmlDevice_t device, char *buffer, unsigned length)                                          \
    {                                                                                                                  \
        nvmlReturn_t result = nv_enter_device(device);                                                                 \
        return result != NVML_SUCCESS ? result : nv_leave(nv_text(buffer, length, text));                              \
    }

/* Begin any other function of a device: take the lock and check the handle. */
#define ENTER(device)                                                                                                  \
    nvmlReturn_t result = nv_enter_device(device);                                                                     \
    if (result != NVML_SUCCESS)                                                                                        \
        return result

/* Release the lock and return `otherwise` unless the condition holds. */
#define NEED(condition, otherwise)                                                                                     \
    if (!(condition))                                                                                                  \
    return nv_leave(otherwise)

#endif
