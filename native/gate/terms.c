/* The terms page: one writer, any number of readers, nothing that a dead process can leave locked. */
#include "gate/terms.h"

#include <string.h>

static const uint64_t MAGIC = UINT64_C(0x314d524554544f43); /* "COTTERM1" in little-endian bytes */

/* The writer needs microseconds between two writes; a reader that loses this often is being starved on purpose. */
enum { READ_ATTEMPTS = 64 };

int ct_terms_check(const void *memory, size_t bytes)
{
    const struct ct_terms_page *page = memory;
    if (bytes < CT_TERMS_BYTES)
        return CT_TERMS_SMALL;
    if (page->magic != MAGIC)
        return CT_TERMS_FOREIGN;
    if (page->version != CT_TERMS_VERSION)
        return CT_TERMS_OTHER;
    return CT_TERMS_OK;
}

int ct_terms_init(void *memory, size_t bytes)
{
    struct ct_terms_page *page = memory;
    if (bytes < CT_TERMS_BYTES)
        return CT_TERMS_SMALL;
    if (page->magic == MAGIC && page->version == CT_TERMS_VERSION)
        return CT_TERMS_OK; /* readers may have it mapped: what it says stays */
    memset(page, 0, sizeof *page);
    page->version = CT_TERMS_VERSION;
    atomic_thread_fence(memory_order_release);
    page->magic = MAGIC;
    return CT_TERMS_OK;
}

void ct_terms_write(struct ct_terms_page *page, const struct ct_terms *terms)
{
    uint64_t words[CT_TERMS_WORDS];
    memcpy(words, terms, sizeof words);
    uint64_t writes = atomic_load_explicit(&page->writes, memory_order_relaxed);
    _Atomic uint64_t *spare = page->copy[(writes + 1) & 1];
    /* Orders the stores below after the publication of the copy that readers now use: a reader that sees one of
     * them also sees that count, and tries again. */
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < CT_TERMS_WORDS; i++)
        atomic_store_explicit(&spare[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&page->writes, writes + 1, memory_order_release);
}

int ct_terms_read(const struct ct_terms_page *page, struct ct_terms *terms)
{
    uint64_t words[CT_TERMS_WORDS];
    for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
        uint64_t before = atomic_load_explicit(&page->writes, memory_order_acquire);
        const _Atomic uint64_t *valid = page->copy[before & 1];
        for (int i = 0; i < CT_TERMS_WORDS; i++)
            words[i] = atomic_load_explicit(&valid[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&page->writes, memory_order_relaxed) == before) {
            memcpy(terms, words, sizeof words);
            return CT_TERMS_OK;
        }
    }
    return CT_TERMS_BUSY;
}
