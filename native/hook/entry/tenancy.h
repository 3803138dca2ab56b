/* The tenant that this process belongs to: its slot and its grant page, which also shows whether other tenants are on
 * the device. */
#ifndef COTENANT_HOOK_ENTRY_TENANCY_H
#define COTENANT_HOOK_ENTRY_TENANCY_H

#include "gate/grant.h"

#include <stdint.h>

struct ct_tenancy {
    const struct ct_grant_page *page; /* NULL: not found */
    uint64_t slot, generation;
    int is_tenant; /* otherwise the number of other tenants is not known */
};

/* Finds the grant page by the descriptor in the environment, which the program may have closed, or by its name in the
 * directory of the records. */
void ct_tenancy_open(struct ct_tenancy *tenancy, const char *records);
void ct_tenancy_close(struct ct_tenancy *tenancy);

/* Returns a number that changes whenever the page does, or 0 unless this tenant is alone on the device. Equal numbers
 * before and after an interval mean that it was alone throughout. */
uint64_t ct_tenancy_alone_since(const struct ct_tenancy *tenancy);

#endif
