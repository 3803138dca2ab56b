/* How long do kernels take? What an earlier profile of the task says, and what was seen since. */
#ifndef COTENANT_HOOK_KNOWN_H
#define COTENANT_HOOK_KNOWN_H

#include "hook/record.h"

#include <stdint.h>

struct ct_shape;

/* Of kernels longer than this, most measurements beside a neighbour have a time slice of its in them. */
enum { CT_KNOWN_BESIDE = 7, CT_KNOWN_BESIDE_MOST_NS = 1000 * 1000 };

/* Of one kernel; read and written under the session's lock. */
struct ct_known {
    uint64_t expect_ns, sure_ns; /* its mean, and what it hardly exceeds */
    uint32_t is_known, may_fill;
    uint32_t varies;     /* launches of one name and shape do different things, and take different times */
    uint32_t pieces;     /* kernels in it; 0 is one */
    uint32_t grain_part; /* of its time, what one block holds up those above, in 2^-16; 0: all of it does */
    uint32_t tries;    /* launches that were timed only because it was not known */
    uint32_t attempts; /* launches that were to be */
    uint32_t free_ppm;   /* of the device, what it leaves to others while it runs */
    uint32_t charges;    /* launches charged to our share since one of them was timed */
    uint64_t charged_ns; /* and as how much device time, times the part of the device */
    uint32_t turn;       /* how many of them one stands for this time, in 2^-8 of the usual number; 0: the usual number */
    uint32_t besides;    /* measured while a neighbour was active */
    uint64_t beside_ns[CT_KNOWN_BESIDE]; /* the latest of them */
};

/* The file `known` beside the records: a magic, then these, as format/known.py writes them. */
struct ct_known_entry {
    uint64_t key, mean_ns, p90_ns, p99_ns;
};

enum { CT_KNOWN_ENTRIES = 4096 };

struct ct_known_file {
    uint32_t count;
    struct ct_known_entry entries[CT_KNOWN_ENTRIES];
};

/* Reads the file; one that is not there, or is none, says nothing. */
void ct_known_read(struct ct_known_file *file, const char *directory);

/* What the file says of a kernel on a device goes into `known`, unless something is in there already. */
void ct_known_find(const struct ct_known_file *file, const char *device, const struct ct_record_kernel *kernel,
                   struct ct_known *known);

/* What was seen of it so far replaces what the file said, once there is enough of it. */
void ct_known_learn(struct ct_known *known, const struct ct_histogram *device);

/* The device as this process has it. */
struct ct_sms {
    uint32_t seen;     /* SMs that its kernels may use; 0: unknown */
    uint32_t whole;    /* SMs that there are: more under MPS, if a part of them was given to it */
    uint32_t yielding; /* those that it may use, if its blocks give way to those of others; else 0 */
};

/* How its blocks lie on the device: how many kernels it has, how soon those give way, if they do at all, and what part of
 * the device they leave free. */
void ct_known_spread(struct ct_known *known, const struct ct_record_kernel *kernel, const struct ct_sms *device);

/* Of the device, what a kernel of so many blocks leaves to others while it runs, in the mean. */
uint32_t ct_known_free(uint64_t blocks, uint64_t blocks_per_sm, const struct ct_sms *device);

/* It was charged to our share. Whether the next is to be measured, for all of its kind since the last. */
void ct_known_charge(struct ct_known *known, uint64_t bound_ns);
int ct_known_must_check(const struct ct_known *known);
/* One is: the next stands for more or fewer of them, by chance. Programs repeat themselves: if every second launch of a kernel
 * takes long, and every second one were measured, all would count as long, or none. */
void ct_known_checked(struct ct_known *known, uint64_t chance);

/* Whether what is to be measured may be a later one: of those beside a neighbour not every one tells much. */
int ct_known_can_wait(const struct ct_known *known);

/* It was measured while a neighbour was active, whose time slice may be in that: how long it takes, as the latest such cases
 * show; 0: they do not show that it is anything else than expected. `has_waited`: nothing of ours was before it, so that its
 * wait for our turn is in it: that it took longer than expected says nothing. Of one that varies, few show only that it takes
 * longer than it hardly ever did. */
uint64_t ct_known_beside(struct ct_known *known, uint64_t length_ns, int has_waited);
/* The same of one that nobody knows: what is short and has been seen often enough is known from then on. */
void ct_known_guess(struct ct_known *known, uint64_t length_ns);

/* How long a kernel above waits for one of its blocks at most; 0: until it is over. */
static inline uint64_t ct_known_grain(const struct ct_known *known)
{
    const uint64_t grain_ns = known->expect_ns * known->grain_part >> 16;
    return grain_ns || !known->grain_part || !known->expect_ns ? grain_ns : 1; /* hardly anything is not all of it */
}

#endif
