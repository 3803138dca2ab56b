/* Maps the grant page of this tenant, and checks it against the slot that the process was started in. */
#define _GNU_SOURCE
#include "hook/entry/tenancy.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 1024 };

static const struct ct_grant_page *map_page(int descriptor)
{
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status) < 0 || !S_ISREG(status.st_mode) || status.st_size < CT_GRANT_BYTES)
        return NULL;
    void *page = mmap(NULL, CT_GRANT_BYTES, PROT_READ, MAP_SHARED, descriptor, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (ct_grant_check(page, CT_GRANT_BYTES) != CT_GRANT_OK) { /* the program has reused the descriptor number for
                                                                * another file */
        munmap(page, CT_GRANT_BYTES);
        return NULL;
    }
    madvise(page, CT_GRANT_BYTES, MADV_DONTFORK); /* a forked child maps its own */
    return page;
}

static const struct ct_grant_page *map_named(const char *records)
{
    char path[PATH_BYTES];
    int length = records ? snprintf(path, sizeof path, "%s/grant", records) : -1;
    if (length < 0 || (size_t)length >= sizeof path)
        return NULL;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const struct ct_grant_page *page = map_page(descriptor);
    if (descriptor >= 0)
        close(descriptor);
    return page;
}

void ct_tenancy_open(struct ct_tenancy *tenancy, const char *records)
{
    const char *slot = getenv("COTENANT_SLOT"), *descriptor_text = getenv("COTENANT_GRANT_FD");
    unsigned long long number, generation;
    memset(tenancy, 0, sizeof *tenancy);
    tenancy->is_tenant = slot && *slot;
    if (!tenancy->is_tenant || sscanf(slot, "%llu/%llu", &number, &generation) != 2)
        return;
    tenancy->slot = number;
    tenancy->generation = generation;
    tenancy->page = map_named(records);
    if (!tenancy->page && descriptor_text && *descriptor_text)
        tenancy->page = map_page(atoi(descriptor_text));
}

void ct_tenancy_close(struct ct_tenancy *tenancy)
{
    if (tenancy->page)
        munmap((void *)(uintptr_t)tenancy->page, CT_GRANT_BYTES);
    tenancy->page = NULL;
}

uint64_t ct_tenancy_alone_since(const struct ct_tenancy *tenancy)
{
    struct ct_grant grant;
    if (!tenancy->is_tenant)
        return 1;
    if (!tenancy->page)
        return 0;
    uint64_t writes = load_acquire(&tenancy->page->writes);
    int is_alone = ct_grant_read(tenancy->page, &grant) == CT_GRANT_OK && grant.state == CT_GRANT_ACTIVE &&
                   grant.slot == tenancy->slot && grant.generation == tenancy->generation && grant.neighbours == 1;
    return is_alone ? writes + 1 : 0;
}
