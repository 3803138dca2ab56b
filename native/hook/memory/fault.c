/* Recognizes the results after which a process cannot use its device any more, and holds those of a lost device. */
#include "hook/memory/memory.h"

#include <stdlib.h>
#include <time.h>

/* According to cuda.h the process must be restarted after these. They are the errors in node/policy/protect/errors.py
 * that end a tenant. */
static const int FATAL_RESULTS[] = {
    214, /* uncorrectable ECC error */
    220, /* uncorrectable NVLink error */
    226, /* contained */
    700, /* illegal address */
    702, /* launch timeout */
    710, /* assert */
    714, /* hardware stack error */
    715, /* illegal instruction */
    716, /* misaligned address */
    717, /* invalid address space */
    718, /* invalid program counter */
    719, /* launch failed */
    721, /* tensor memory leak */
    805, /* no connection to the MPS server */
    806, /* an MPS call failed */
    810, /* MPS client terminated */
    911, /* external device */
    999, /* unknown */
};

/* Results with which the driver reports that a device failed, whatever the program did. */
static const int DEVICE_RESULTS[] = {
    46,  /* device unavailable */
    214, /* uncorrectable ECC error */
    220, /* uncorrectable NVLink error */
    999, /* unknown: the device fell off the bus */
};
enum { LONGEST_HOLD_MS = 60000 };

/* Return when the first held error may be returned, in nanoseconds of CLOCK_MONOTONIC; 0: errors are not held. */
static int64_t hold_until(void)
{
    static _Atomic int64_t until_ns;
    int64_t found = atomic_load(&until_ns);
    if (found)
        return found < 0 ? 0 : found;
    const char *setting = getenv("COTENANT_HOLD_ERRORS_MS");
    long hold_ms = setting ? strtol(setting, NULL, 10) : 0;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t wanted = -1;
    if (hold_ms > 0) {
        hold_ms = hold_ms < LONGEST_HOLD_MS ? hold_ms : LONGEST_HOLD_MS;
        wanted = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + (int64_t)hold_ms * 1000000;
    }
    int64_t none = 0;
    if (!atomic_compare_exchange_strong(&until_ns, &none, wanted))
        wanted = none;
    return wanted < 0 ? 0 : wanted;
}

/* Keep an error of the device from the program for a limited time, so that its pod is evicted before it fails: an
 * eviction costs its Job no retry, and a failure would. A signal ends the wait. */
static void hold_device_error(CUresult result)
{
    for (size_t i = 0; i < sizeof DEVICE_RESULTS / sizeof DEVICE_RESULTS[0]; i++) {
        int64_t until_ns = DEVICE_RESULTS[i] == (int)result ? hold_until() : 0;
        if (!until_ns)
            continue;
        struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

void ct_fault_record(CUresult result)
{
    for (size_t i = 0; i < sizeof FATAL_RESULTS / sizeof FATAL_RESULTS[0]; i++) {
        if (FATAL_RESULTS[i] != result)
            continue;
        struct ct_memory *memory = ct_memory();
        uint64_t none = 0;
        if (memory)
            atomic_compare_exchange_strong(&memory->ledger.page->line.fault, &none, (uint64_t)result);
    }
    hold_device_error(result);
}
