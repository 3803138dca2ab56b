/* The grant page: no reader gets a partial write, waits for a dead writer, or accepts another kind of page. */
#include "gate/grant.h"
#include "tests/expect.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum { WRITES = 20000, READERS = 3 };

/* A whole page, as the functions require. */
union page {
    struct ct_grant_page grant;
    unsigned char bytes[CT_GRANT_BYTES];
};

/* Returns a grant whose words all depend on one number, so that a mixture of two writes is detected. */
static struct ct_grant grant_of(uint64_t number)
{
    uint64_t words[CT_GRANT_WORDS];
    struct ct_grant grant;
    for (uint64_t i = 0; i < CT_GRANT_WORDS; i++)
        words[i] = number * 1000 + i;
    memcpy(&grant, words, sizeof grant);
    return grant;
}

static bool is_from_one_write(const struct ct_grant *grant)
{
    uint64_t words[CT_GRANT_WORDS];
    memcpy(words, grant, sizeof words);
    for (uint64_t i = 0; i < CT_GRANT_WORDS; i++)
        if (words[i] != words[0] + i)
            return false;
    return words[0] % 1000 == 0;
}

static bool equal(const struct ct_grant *a, const struct ct_grant *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static void new_page_is_free(void)
{
    union page page = {0};
    struct ct_grant grant;
    memset(&grant, 0xff, sizeof grant);
    EXPECT(ct_grant_init(&page, sizeof page) == CT_GRANT_OK);
    EXPECT(ct_grant_check(&page, sizeof page) == CT_GRANT_OK);
    EXPECT(ct_grant_read(&page.grant, &grant) == CT_GRANT_OK);
    EXPECT(grant.state == CT_GRANT_FREE);
    EXPECT(grant.share_ppm == 0 && grant.memory_bytes == 0 && grant.gpu == 0);
}

static void read_returns_what_was_written(void)
{
    union page page = {0};
    EXPECT(ct_grant_init(&page, sizeof page) == CT_GRANT_OK);
    for (uint64_t number = 1; number <= 5; number++) { /* odd and even writes use different copies */
        struct ct_grant written = grant_of(number), read;
        ct_grant_write(&page.grant, &written);
        EXPECT(ct_grant_read(&page.grant, &read) == CT_GRANT_OK);
        EXPECT(equal(&written, &read));
    }
}

static void second_init_keeps_the_contents(void)
{
    union page page = {0};
    struct ct_grant written = grant_of(7), read;
    EXPECT(ct_grant_init(&page, sizeof page) == CT_GRANT_OK);
    ct_grant_write(&page.grant, &written);
    EXPECT(ct_grant_init(&page, sizeof page) == CT_GRANT_OK);
    EXPECT(ct_grant_read(&page.grant, &read) == CT_GRANT_OK);
    EXPECT(equal(&written, &read));
}

static void invalid_pages_are_rejected(void)
{
    union page page = {0};
    EXPECT(ct_grant_check(&page, sizeof page) == CT_GRANT_NOT_A_PAGE);
    EXPECT(ct_grant_init(&page, CT_GRANT_BYTES - 1) == CT_GRANT_TOO_SMALL);
    EXPECT(ct_grant_check(&page, sizeof page) == CT_GRANT_NOT_A_PAGE); /* the refused initialization wrote nothing */
    EXPECT(ct_grant_init(&page, sizeof page) == CT_GRANT_OK);
    EXPECT(ct_grant_check(&page, CT_GRANT_BYTES - 1) == CT_GRANT_TOO_SMALL);
    page.grant.version = CT_GRANT_VERSION + 1;
    EXPECT(ct_grant_check(&page, sizeof page) == CT_GRANT_OTHER_VERSION);
}

/* A writer that died after any number of stores: the count did not change, so the last complete write is still
 * valid. */
static void partial_write_is_never_read(void)
{
    for (uint64_t writes = 0; writes < 4; writes++) {
        for (int stores = 0; stores <= CT_GRANT_WORDS; stores++) {
            union page page = {0};
            struct ct_grant last = {0}, next = grant_of(99), read;
            EXPECT(ct_grant_init(&page, sizeof page) == CT_GRANT_OK);
            for (uint64_t number = 1; number <= writes; number++) {
                last = grant_of(number);
                ct_grant_write(&page.grant, &last);
            }
            _Atomic uint64_t *spare = page.grant.copy[(writes + 1) & 1];
            uint64_t words[CT_GRANT_WORDS];
            memcpy(words, &next, sizeof words);
            for (int i = 0; i < stores; i++)
                atomic_store(&spare[i], words[i]);
            EXPECT(ct_grant_read(&page.grant, &read) == CT_GRANT_OK);
            EXPECT(equal(&last, &read));
            /* A restarted node overwrites the partial copy, and is read correctly. */
            next = grant_of(100);
            ct_grant_write(&page.grant, &next);
            EXPECT(ct_grant_read(&page.grant, &read) == CT_GRANT_OK);
            EXPECT(equal(&next, &read));
        }
    }
}

struct race {
    union page page;
    atomic_bool has_ended;
};

static void *read_until_end(void *argument)
{
    struct race *race = argument;
    uint64_t newest = 0, reads = 0;
    bool last_round = false;
    while (!last_round) {
        last_round = atomic_load(&race->has_ended);
        struct ct_grant grant;
        int result = ct_grant_read(&race->page.grant, &grant);
        if (result == CT_GRANT_BUSY)
            continue; /* bounded: overtaken in every attempt, but not stuck */
        EXPECT(result == CT_GRANT_OK);
        EXPECT(is_from_one_write(&grant));
        EXPECT(grant.state / 1000 >= newest); /* a reader never sees an older write again */
        newest = grant.state / 1000;
        reads++;
    }
    EXPECT(reads > 0);
    EXPECT(newest == WRITES); /* the round after the end sees the last write */
    return NULL;
}

static void concurrent_readers_get_complete_grants(void)
{
    static struct race race;
    pthread_t readers[READERS];
    struct ct_grant first = grant_of(0);
    EXPECT(ct_grant_init(&race.page, sizeof race.page) == CT_GRANT_OK);
    ct_grant_write(&race.page.grant, &first);
    for (int i = 0; i < READERS; i++)
        EXPECT(pthread_create(&readers[i], NULL, read_until_end, &race) == 0);
    for (uint64_t number = 1; number <= WRITES; number++) {
        struct ct_grant grant = grant_of(number);
        ct_grant_write(&race.page.grant, &grant);
    }
    atomic_store(&race.has_ended, true);
    for (int i = 0; i < READERS; i++)
        EXPECT(pthread_join(readers[i], NULL) == 0);
}

int main(void)
{
    new_page_is_free();
    read_returns_what_was_written();
    second_init_keeps_the_contents();
    invalid_pages_are_rejected();
    partial_write_is_never_read();
    concurrent_readers_get_complete_grants();
    return 0;
}
