/* The root of what the hook knows in a process: one entry per device of the process's tenant.
 *
 * Everything else hangs on an entry: the membership with the pages of that device, the session with its gate, and the memory
 * accounting. Code that handles a call uses the entry of the device on which the call acts, which is that of the current
 * context unless a scope names another one. In a tenant with one device, which most are, there is one entry and nothing is
 * looked up. */
#ifndef COTENANT_HOOK_ENTRY_PAGE_H
#define COTENANT_HOOK_ENTRY_PAGE_H

#include "atomics.h"
#include "hook/entry/route.h"

#include <stdint.h>

enum { CT_DEVICES = 16 }; /* of one tenant; GPU_LIMIT in src/cotenant/node/model/tenant.py */
#define CT_ANY_DEVICE (-1)

struct ct_session;
struct ct_memory;
struct ct_membership;

struct ct_device {
    _Atomic(struct ct_session *) session;
    _Atomic int is_tried;
    _Atomic(struct ct_memory *) memory; /* separate from the session, because the quota must hold without a record */
    _Atomic int is_memory_tried, memory_lock;
    _Atomic(struct ct_membership *) membership;
    _Atomic int is_membership_tried;
    /* Collectives that passed on another device of the process and were not launched on this one yet, and when the latest
     * passed; see launch/ranks.h. */
    _Atomic uint32_t owed;
    _Atomic uint64_t owed_ns;
};

/* A page that the kernel clears in a forked child, which must not inherit locks, files or contexts. */
struct ct_page {
    _Atomic uint32_t device_count; /* devices of the tenant, as the process's first attachment states; 0: unknown */
    _Atomic int membership_lock;   /* taken to attach for any device */
    struct ct_device devices[CT_DEVICES]; /* by the number that the process's driver uses */
};
_Static_assert(sizeof(struct ct_page) <= 4096, "one page");

extern _Atomic(struct ct_page *) ct_page;
struct ct_page *ct_page_open(void); /* NULL: out of memory */

/* Returns the number of the device on which the calling thread's call acts. Calls the driver; for a tenant with several
 * devices only. */
uint32_t ct_device_number(const struct ct_page *page);

static inline int ct_has_several_devices(const struct ct_page *page)
{
    return page && CT_UNLIKELY(load_relaxed(&page->device_count) > 1);
}

static inline struct ct_device *ct_device_of(struct ct_page *page)
{
    return &page->devices[ct_has_several_devices(page) ? ct_device_number(page) : 0];
}

/* Makes the rest of a block act on a device of which the call names the number, or on the current context's. */
int ct_device_enter(int64_t device);
void ct_device_leave(const int *outer);
#define CT_ON_DEVICE(device) __attribute__((cleanup(ct_device_leave))) const int outer_device = ct_device_enter(device)

#endif
