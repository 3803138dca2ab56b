/* The expected time of each kernel, from an earlier profile and from measurements. */
#ifndef COTENANT_HOOK_TIMING_KERNEL_TIMES_H
#define COTENANT_HOOK_TIMING_KERNEL_TIMES_H

#include "gate/duration.h"
#include "hook/timing/record.h"

#include <stdint.h>

struct ct_shape;

/* Measurements of longer kernels next to an active neighbour usually contain one of its time slices. */
enum { CT_KERNEL_TIME_CORUNS = 7, CT_KERNEL_TIME_CORUN_MAX_NS = 1000 * 1000 };

/* The times of one kernel; accessed with the session's lock held. */
struct ct_kernel_time {
    uint64_t expect_ns, upper_ns; /* mean, and what is rarely exceeded; at the reference clock (see gate/duration.h) */
    uint32_t is_known, may_fill;  /* known: from a profile or from measurements without neighbours */
    uint32_t is_doubtful;         /* the expected time may be wrong by much */
    uint32_t record_number;       /* index of the kernel in the record */
    uint32_t kernel_count;        /* kernels in a graph; otherwise 1 */
    uint64_t key;                 /* hash of its whole name, shape and kind; 0: not in use */
    uint64_t name_hash;
    uint64_t blocks, slots;       /* of its grid, and how many of them run at once; slots 0: unknown */
    uint32_t next_of_name;        /* index plus one of the next kernel time in the list of its name; 0: none */
    uint32_t is_referenced;       /* used during an eviction */
    struct ct_duration duration;
    struct ct_duration parts; /* the time of a launch in parts, computed from measured ones */
    uint32_t varies;                          /* launches with the same name and shape take different times */
    uint32_t granularity_part;                /* preemption granularity as a fraction of its time, in 2^-16; 0: not
                                               * preemptible */
    uint32_t tries;                           /* launches timed only because its time was unknown */
    uint32_t attempts;                        /* launches for which timing was attempted */
    uint32_t free_ppm;                        /* fraction of the device that stays free while it runs */
    uint32_t charges;                         /* launches charged to the share since one was measured */
    uint64_t charged_ns;                      /* device time charged for them, times the fraction of the device */
    uint32_t spacing;                         /* launches that the next measurement represents, in 2^-8 of the usual
                                               * number; 0: the usual number */
    uint32_t corun_count;                     /* measurements next to an active neighbour */
    uint64_t corun_ns[CT_KERNEL_TIME_CORUNS]; /* the latest of these */
};

/* The file `known` in the directory of the records: a magic number, then these entries, as hook/kernel_times.py
 * writes them. */
struct ct_kernel_time_entry {
    uint64_t key, mean_ns, p90_ns, p99_ns;
};

enum { CT_KERNEL_TIME_ENTRIES = 4096 };

struct ct_kernel_time_file {
    uint32_t count;
    struct ct_kernel_time_entry entries[CT_KERNEL_TIME_ENTRIES];
};

/* Reads the file; a missing or invalid file is treated as empty. */
void ct_kernel_time_file_read(struct ct_kernel_time_file *file, const char *directory);

/* Looks up a kernel on a device in the file, unless its time is known already. */
void ct_kernel_time_find(const struct ct_kernel_time_file *file, const char *device,
                         const struct ct_record_kernel *kernel,
                   struct ct_kernel_time *kernel_time);

/* Adds a measurement at this clock (see gate/duration.h). `is_bound`: neighbours or the host may have lengthened it. */
void ct_kernel_time_learn(struct ct_kernel_time *kernel_time, uint64_t length_ns, uint64_t clock_ppm, int is_bound);

/* Adds a measurement of a part of so many blocks. Whole launches are estimated by it only while none was measured. */
void ct_kernel_time_learn_part(struct ct_kernel_time *kernel_time, uint64_t part_blocks, uint64_t length_ns,
                               uint64_t clock_ppm, int is_bound);

/* Estimates the time of an unseen shape from the nearest shape of the same function. `first` is the index plus one of the
 * list of its name. */
void ct_kernel_time_estimate(struct ct_kernel_time *kernel_time, const struct ct_kernel_time *all, uint32_t first);

/* The SMs of the device. */
struct ct_sms {
    uint32_t usable;   /* SMs that this process may use; 0: unknown */
    uint32_t total;    /* SMs of the device; more under MPS if the client is limited to a part */
    uint32_t yielding; /* SMs that this process may use, if its blocks give way to those of other clients; otherwise
                        * 0 */
};

/* Computes the number of kernels, the preemption granularity, and the fraction of the device that stays free. */
void ct_kernel_time_set_layout(struct ct_kernel_time *kernel_time, const struct ct_record_kernel *kernel,
                               const struct ct_sms *device);

/* Returns the mean fraction of the device that a kernel of this many blocks leaves free. */
uint32_t ct_kernel_free_ppm(uint64_t blocks, uint64_t blocks_per_sm, const struct ct_sms *device);

/* Count a launch charged to the share; return whether the next one is to be measured. */
void ct_kernel_time_charge(struct ct_kernel_time *kernel_time, uint64_t bound_ns);
int ct_kernel_time_must_check(const struct ct_kernel_time *kernel_time);
/* Resets the counts after a measurement. The spacing to the next one is random: in a program in which every second
 * launch of a kernel takes long, measuring every second one would see only long ones or only short ones. */
void ct_kernel_time_checked(struct ct_kernel_time *kernel_time, uint64_t random);

/* Returns whether a later launch may be measured instead: next to active neighbours not every launch is informative. */
int ct_kernel_time_can_wait(const struct ct_kernel_time *kernel_time);

/* Adds a measurement next to an active neighbour, whose time slice it may contain. Returns the time that the latest
 * measurements show, or 0 if they do not contradict the expected one. `has_waited`: no work of ours preceded the
 * launch, so the measurement includes the wait for our time slice and only an upper bound is known. For a kernel that
 * varies, few measurements can only show that it takes longer than its upper estimate. */
uint64_t ct_kernel_time_corun(struct ct_kernel_time *kernel_time, uint64_t length_ns, int has_waited);
/* The same for an unknown kernel: a short one that was measured often enough is known from then on. */
void ct_kernel_time_learn_corun(struct ct_kernel_time *kernel_time, uint64_t length_ns);

/* Returns how long an arriving higher-priority kernel waits for one of its blocks at most; 0: until it ends. */
static inline uint64_t ct_kernel_time_granularity(const struct ct_kernel_time *kernel_time)
{
    const uint64_t granularity_ns = kernel_time->expect_ns * kernel_time->granularity_part >> 16;
    return granularity_ns || !kernel_time->granularity_part || !kernel_time->expect_ns ? granularity_ns : 1; /* 0 would mean not preemptible */
}

#endif
