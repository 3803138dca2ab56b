/* Is anybody else on the device? What the node's page says of our neighbours, without asking anybody. */
#ifndef COTENANT_HOOK_BESIDE_H
#define COTENANT_HOOK_BESIDE_H

#include "gate/terms.h"

#include <stdint.h>

struct ct_beside {
    const struct ct_terms_page *page; /* NULL: none was found */
    uint64_t slot, generation;
    int is_tenant; /* outside of a tenant nobody says who else is there */
};

/* Finds the page of our tenant: by the descriptor in the environment, which a program that closes what it does not know
 * has lost, or by its name beside the records. */
void ct_beside_open(struct ct_beside *beside, const char *records);
void ct_beside_close(struct ct_beside *beside);

/* A number that changes whenever the page does, or 0 unless we are known to be alone: the same number before and after
 * means that nobody came in between. */
uint64_t ct_alone_since(const struct ct_beside *beside);

#endif
