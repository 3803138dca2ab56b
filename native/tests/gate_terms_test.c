/* Does a reader of the terms page ever see half of a write, wait for the dead, or trust a foreign page? */
#include "gate/terms.h"
#include "tests/expect.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum { WRITES = 20000, READERS = 3 };

/* A whole page, because that is what the functions are promised. */
union page {
    struct ct_terms_page terms;
    unsigned char bytes[CT_TERMS_BYTES];
};

/* Terms whose words all follow from one number, so that a mixture of two writes shows. */
static struct ct_terms terms_of(uint64_t number)
{
    uint64_t words[CT_TERMS_WORDS];
    struct ct_terms terms;
    for (uint64_t i = 0; i < CT_TERMS_WORDS; i++)
        words[i] = number * 1000 + i;
    memcpy(&terms, words, sizeof terms);
    return terms;
}

static bool is_whole(const struct ct_terms *terms)
{
    uint64_t words[CT_TERMS_WORDS];
    memcpy(words, terms, sizeof words);
    for (uint64_t i = 0; i < CT_TERMS_WORDS; i++)
        if (words[i] != words[0] + i)
            return false;
    return words[0] % 1000 == 0;
}

static bool equal(const struct ct_terms *a, const struct ct_terms *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static void a_new_page_is_free(void)
{
    union page page = {0};
    struct ct_terms terms;
    memset(&terms, 0xff, sizeof terms);
    EXPECT(ct_terms_init(&page, sizeof page) == CT_TERMS_OK);
    EXPECT(ct_terms_check(&page, sizeof page) == CT_TERMS_OK);
    EXPECT(ct_terms_read(&page.terms, &terms) == CT_TERMS_OK);
    EXPECT(terms.state == CT_TERMS_FREE);
    EXPECT(terms.share_ppm == 0 && terms.memory_bytes == 0 && terms.gpu == 0);
}

static void what_is_written_is_read(void)
{
    union page page = {0};
    EXPECT(ct_terms_init(&page, sizeof page) == CT_TERMS_OK);
    for (uint64_t number = 1; number <= 5; number++) { /* odd and even writes use different copies */
        struct ct_terms written = terms_of(number), read;
        ct_terms_write(&page.terms, &written);
        EXPECT(ct_terms_read(&page.terms, &read) == CT_TERMS_OK);
        EXPECT(equal(&written, &read));
    }
}

static void a_second_init_keeps_what_readers_hold(void)
{
    union page page = {0};
    struct ct_terms written = terms_of(7), read;
    EXPECT(ct_terms_init(&page, sizeof page) == CT_TERMS_OK);
    ct_terms_write(&page.terms, &written);
    EXPECT(ct_terms_init(&page, sizeof page) == CT_TERMS_OK);
    EXPECT(ct_terms_read(&page.terms, &read) == CT_TERMS_OK);
    EXPECT(equal(&written, &read));
}

static void what_is_no_terms_page_is_refused(void)
{
    union page page = {0};
    EXPECT(ct_terms_check(&page, sizeof page) == CT_TERMS_FOREIGN);
    EXPECT(ct_terms_init(&page, CT_TERMS_BYTES - 1) == CT_TERMS_SMALL);
    EXPECT(ct_terms_check(&page, sizeof page) == CT_TERMS_FOREIGN); /* and the refused init wrote nothing */
    EXPECT(ct_terms_init(&page, sizeof page) == CT_TERMS_OK);
    EXPECT(ct_terms_check(&page, CT_TERMS_BYTES - 1) == CT_TERMS_SMALL);
    page.terms.version = CT_TERMS_VERSION + 1;
    EXPECT(ct_terms_check(&page, sizeof page) == CT_TERMS_OTHER);
}

/* A writer that died after any number of its stores: the count never moved, so the last whole write stays valid. */
static void a_torn_write_is_never_seen(void)
{
    for (uint64_t writes = 0; writes < 4; writes++) {
        for (int stores = 0; stores <= CT_TERMS_WORDS; stores++) {
            union page page = {0};
            struct ct_terms last = {0}, next = terms_of(99), read;
            EXPECT(ct_terms_init(&page, sizeof page) == CT_TERMS_OK);
            for (uint64_t number = 1; number <= writes; number++) {
                last = terms_of(number);
                ct_terms_write(&page.terms, &last);
            }
            _Atomic uint64_t *spare = page.terms.copy[(writes + 1) & 1];
            uint64_t words[CT_TERMS_WORDS];
            memcpy(words, &next, sizeof words);
            for (int i = 0; i < stores; i++)
                atomic_store(&spare[i], words[i]);
            EXPECT(ct_terms_read(&page.terms, &read) == CT_TERMS_OK);
            EXPECT(equal(&last, &read));
            /* The node that comes back writes over the torn copy, and is understood. */
            next = terms_of(100);
            ct_terms_write(&page.terms, &next);
            EXPECT(ct_terms_read(&page.terms, &read) == CT_TERMS_OK);
            EXPECT(equal(&next, &read));
        }
    }
}

struct race {
    union page page;
    atomic_bool over;
};

static void *read_until_over(void *argument)
{
    struct race *race = argument;
    uint64_t newest = 0, reads = 0;
    bool last_round = false;
    while (!last_round) {
        last_round = atomic_load(&race->over);
        struct ct_terms terms;
        int result = ct_terms_read(&race->page.terms, &terms);
        if (result == CT_TERMS_BUSY)
            continue; /* bounded, as promised: the reader was overtaken in every attempt, not stuck */
        EXPECT(result == CT_TERMS_OK);
        EXPECT(is_whole(&terms));
        EXPECT(terms.state / 1000 >= newest); /* a reader never goes back in time */
        newest = terms.state / 1000;
        reads++;
    }
    EXPECT(reads > 0);
    EXPECT(newest == WRITES); /* the round after the end sees the last write */
    return NULL;
}

static void readers_beside_a_busy_writer_see_whole_terms(void)
{
    static struct race race;
    pthread_t readers[READERS];
    struct ct_terms first = terms_of(0);
    EXPECT(ct_terms_init(&race.page, sizeof race.page) == CT_TERMS_OK);
    ct_terms_write(&race.page.terms, &first);
    for (int i = 0; i < READERS; i++)
        EXPECT(pthread_create(&readers[i], NULL, read_until_over, &race) == 0);
    for (uint64_t number = 1; number <= WRITES; number++) {
        struct ct_terms terms = terms_of(number);
        ct_terms_write(&race.page.terms, &terms);
    }
    atomic_store(&race.over, true);
    for (int i = 0; i < READERS; i++)
        EXPECT(pthread_join(readers[i], NULL) == 0);
}

int main(void)
{
    a_new_page_is_free();
    what_is_written_is_read();
    a_second_init_keeps_what_readers_hold();
    what_is_no_terms_page_is_refused();
    a_torn_write_is_never_seen();
    readers_beside_a_busy_writer_see_whole_terms();
    return 0;
}
