/* The grant page: one writer, any number of readers, and no lock that a dead process could leave behind. */
#include "gate/grant.h"

#include <string.h>

static const uint64_t MAGIC = UINT64_C(0x314d524554544f43); /* "COTTERM1" in little-endian bytes */

/* The writer writes at most every few microseconds; a reader that loses this often is being starved. */
enum { READ_ATTEMPTS = 64 };

int ct_grant_check(const void *memory, size_t bytes)
{
    const struct ct_grant_page *page = memory;
    if (bytes < CT_GRANT_BYTES)
        return CT_GRANT_TOO_SMALL;
    if (page->magic != MAGIC)
        return CT_GRANT_NOT_A_PAGE;
    if (page->version != CT_GRANT_VERSION)
        return CT_GRANT_OTHER_VERSION;
    return CT_GRANT_OK;
}

int ct_grant_init(void *memory, size_t bytes)
{
    struct ct_grant_page *page = memory;
    if (bytes < CT_GRANT_BYTES)
        return CT_GRANT_TOO_SMALL;
    if (page->magic == MAGIC && page->version == CT_GRANT_VERSION)
        return CT_GRANT_OK; /* readers may have it mapped, so the contents are kept */
    memset(page, 0, sizeof *page);
    page->version = CT_GRANT_VERSION;
    atomic_thread_fence(memory_order_release);
    page->magic = MAGIC;
    return CT_GRANT_OK;
}

void ct_grant_write(struct ct_grant_page *page, const struct ct_grant *grant)
{
    uint64_t words[CT_GRANT_WORDS];
    memcpy(words, grant, sizeof words);
    uint64_t writes = load_relaxed(&page->writes);
    _Atomic uint64_t *spare = page->copy[(writes + 1) & 1];
    /* Orders the stores below after the publication of the copy that readers use now: a reader that sees one of them
     * also sees that count, and tries again. */
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < CT_GRANT_WORDS; i++)
        store_relaxed(&spare[i], words[i]);
    store_release(&page->writes, writes + 1);
}

int ct_grant_read(const struct ct_grant_page *page, struct ct_grant *grant)
{
    uint64_t words[CT_GRANT_WORDS];
    for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
        uint64_t before = load_acquire(&page->writes);
        const _Atomic uint64_t *valid = page->copy[before & 1];
        for (int i = 0; i < CT_GRANT_WORDS; i++)
            words[i] = load_relaxed(&valid[i]);
        atomic_thread_fence(memory_order_acquire);
        if (load_relaxed(&page->writes) == before) {
            memcpy(grant, words, sizeof words);
            return CT_GRANT_OK;
        }
    }
    return CT_GRANT_BUSY;
}
