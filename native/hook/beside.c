/* The terms page as the hook reads it: mapped once, compared with the slot that we were started in. */
#define _GNU_SOURCE
#include "hook/beside.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_ROOM = 1024 };

static const struct ct_terms_page *map_page(int descriptor)
{
    struct stat found;
    if (descriptor < 0 || fstat(descriptor, &found) < 0 || !S_ISREG(found.st_mode) || found.st_size < CT_TERMS_BYTES)
        return NULL;
    void *page = mmap(NULL, CT_TERMS_BYTES, PROT_READ, MAP_SHARED, descriptor, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (ct_terms_check(page, CT_TERMS_BYTES) != CT_TERMS_OK) { /* the program has another file under this number */
        munmap(page, CT_TERMS_BYTES);
        return NULL;
    }
    madvise(page, CT_TERMS_BYTES, MADV_DONTFORK); /* a child maps its own */
    return page;
}

static const struct ct_terms_page *map_named(const char *records)
{
    char path[PATH_ROOM];
    int length = records ? snprintf(path, sizeof path, "%s/terms", records) : -1;
    if (length < 0 || (size_t)length >= sizeof path)
        return NULL;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const struct ct_terms_page *page = map_page(descriptor);
    if (descriptor >= 0)
        close(descriptor);
    return page;
}

void ct_beside_open(struct ct_beside *beside, const char *records)
{
    const char *slot = getenv("COTENANT_SLOT"), *named = getenv("COTENANT_TERMS_FD");
    unsigned long long number, generation;
    memset(beside, 0, sizeof *beside);
    beside->is_tenant = slot && *slot;
    if (!beside->is_tenant || sscanf(slot, "%llu/%llu", &number, &generation) != 2)
        return;
    beside->slot = number;
    beside->generation = generation;
    beside->page = map_named(records);
    if (!beside->page && named && *named)
        beside->page = map_page(atoi(named));
}

void ct_beside_close(struct ct_beside *beside)
{
    if (beside->page)
        munmap((void *)(uintptr_t)beside->page, CT_TERMS_BYTES);
    beside->page = NULL;
}

uint64_t ct_alone_since(const struct ct_beside *beside)
{
    struct ct_terms terms;
    if (!beside->is_tenant)
        return 1;
    if (!beside->page)
        return 0;
    uint64_t writes = atomic_load_explicit(&beside->page->writes, memory_order_acquire);
    int is_alone = ct_terms_read(beside->page, &terms) == CT_TERMS_OK && terms.state == CT_TERMS_GRANTED &&
                   terms.slot == beside->slot && terms.generation == beside->generation && terms.neighbours == 1;
    return is_alone ? writes + 1 : 0;
}
