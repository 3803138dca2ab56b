/* When does a process begin to be recorded? At its first work, if the environment names a place for it. */
#define _GNU_SOURCE
#include "hook/gateway.h"
#include "hook/seen.h"
#include "hook/timing.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Atomic(struct ct_page *) ct_page;

enum { DEFAULT_SAMPLE = 64, SPINS_BEFORE_YIELD = 100, YIELDS_BEFORE_DOZE = 1000, DOZE_NS = 50 * 1000 };

/* Whoever holds it may be of lower priority, and run only while we sleep. Not by nanosleep(), where a thread may be
 * cancelled. */
static void doze(void)
{
    const struct timespec moment = {.tv_nsec = DOZE_NS};
    int kept_errno = errno;
    syscall(SYS_nanosleep, &moment, NULL);
    errno = kept_errno;
}

void ct_hold_late(_Atomic int *lock)
{
    for (int tries = 0; atomic_exchange_explicit(lock, 1, memory_order_acquire); tries++)
        if (tries >= YIELDS_BEFORE_DOZE)
            doze();
        else if (tries >= SPINS_BEFORE_YIELD)
            sched_yield();
}

struct ct_page *ct_page_open(void)
{
    struct ct_page *page = atomic_load_explicit(&ct_page, memory_order_acquire), *other = NULL;
    if (page)
        return page;
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (madvise(page, 4096, MADV_WIPEONFORK) < 0 || !atomic_compare_exchange_strong(&ct_page, &other, page)) {
        munmap(page, 4096);
        return other;
    }
    return page;
}

static unsigned number_in(const char *text, unsigned otherwise)
{
    char *end;
    unsigned long number = text && *text ? strtoul(text, &end, 10) : otherwise;
    return number <= UINT32_MAX ? (unsigned)number : otherwise;
}

static void unmake_session(struct ct_session *session)
{
    ct_timing_unmake(session->timing);
    ct_beside_close(&session->beside);
    ct_gateway_close(session->gateway);
    munmap(session, sizeof *session);
}

static struct ct_session *make_session(const char *directory)
{
    struct ct_session *session =
        mmap(NULL, sizeof *session, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (session == MAP_FAILED)
        return NULL;
    madvise(session, sizeof *session, MADV_DONTFORK); /* the child has none of it, and need not copy it */
    const char *measure = getenv("COTENANT_MEASURE");
    session->is_measuring = measure && strcmp(measure, "1") == 0;
    session->sample_every = number_in(getenv("COTENANT_SAMPLE"), DEFAULT_SAMPLE);
    session->until_sample = session->sample_every;
    session->step = &session->step_room[0];
    session->step_count = 1;
    session->timing = ct_timing_make();
    ct_beside_open(&session->beside, directory);
    /* A tenant that went into a file system without our directory is still one: its gate needs no record. */
    if (!session->timing || !(ct_record_open(&session->record, directory, session->is_measuring) ||
                              (session->beside.is_tenant && ct_record_in_memory(&session->record, session->is_measuring)))) {
        unmake_session(session);
        return NULL;
    }
    ct_clock_open(&session->clock);
    ct_trace_open(&session->trace, &session->record, &session->clock);
    ct_known_read(&session->known_file, directory);
    session->gateway = ct_gateway_open(&session->beside, &session->clock, directory);
    atomic_store_explicit(&session->time_next, session->is_measuring, memory_order_relaxed);
    return session;
}

struct ct_session *ct_session_open(void)
{
    int kept_errno = errno; /* a driver call changes no errno; neither do we */
    struct ct_page *page = ct_page_open();
    const char *directory = getenv("COTENANT_RECORD");
    struct ct_session *session = NULL;
    if (page && directory && *directory == '/' && !atomic_load(&page->is_tried)) {
        /* Two threads may both get here, and make a file each; the one that comes second works with the first's. */
        struct ct_session *expected = NULL;
        session = make_session(directory);
        if (session && !atomic_compare_exchange_strong(&page->session, &expected, session)) {
            unlink(session->record.path);
            munmap(session->record.header, CT_RECORD_BYTES);
            unmake_session(session);
        }
    }
    if (page) {
        atomic_store_explicit(&page->is_tried, 1, memory_order_relaxed);
        session = atomic_load_explicit(&page->session, memory_order_acquire);
    }
    errno = kept_errno;
    return session;
}

void ct_capture_ended(void)
{
    struct ct_session *session = ct_session();
    int running = session ? atomic_load_explicit(&session->captures, memory_order_relaxed) : 0;
    while (running > 0 && !atomic_compare_exchange_weak(&session->captures, &running, running - 1))
        ;
}

void ct_seen_unknown(const char *name)
{
    struct ct_session *session = ct_session();
    if (!session)
        return;
    struct ct_record_header *header = session->record.header;
    ct_lock(session);
    uint64_t number = atomic_fetch_add_explicit(&header->unknown, 1, memory_order_relaxed);
    if (number < CT_RECORD_UNKNOWN)
        memcpy(header->unknown_names[number], name, strnlen(name, CT_RECORD_UNKNOWN_BYTES - 1));
    ct_unlock(session);
}

int ct_unknown_is_refused(void)
{
    const char *said = getenv("COTENANT_UNKNOWN");
    return said && strcmp(said, "refuse") == 0;
}

void ct_seen_export_table(void)
{
    struct ct_session *session = ct_session();
    if (session)
        atomic_fetch_add_explicit(&session->record.header->export_tables, 1, memory_order_relaxed);
}

void ct_seen_memory(int is_free, CUresult result)
{
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS) {
        struct ct_record_header *header = session->record.header;
        atomic_fetch_add_explicit(is_free ? &header->frees : &header->allocations, 1, memory_order_relaxed);
    }
}
