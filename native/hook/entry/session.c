/* Creates the session of a process at its first GPU call, if the process is managed or the environment names a directory
 * for records. */
#define _GNU_SOURCE
#include "hook/launch/gateway.h"
#include "hook/entry/record_socket.h"
#include "hook/entry/session.h"
#include "hook/memory/memory.h"
#include "hook/timing/timing.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_SAMPLE = 64, SPINS_BEFORE_YIELD = 100, YIELDS_BEFORE_SLEEP = 1000, SLEEP_NS = 50 * 1000 };

/* Sleeps so that a lock holder of lower scheduling priority can run. Uses the system call, because nanosleep() is a
 * cancellation point. */
static void sleep_briefly(void)
{
    const struct timespec duration = {.tv_nsec = SLEEP_NS};
    int saved_errno = errno;
    syscall(SYS_nanosleep, &duration, NULL);
    errno = saved_errno;
}

void ct_lock_slow(_Atomic int *lock)
{
    for (int tries = 0; exchange_acquire(lock, 1); tries++)
        if (tries >= YIELDS_BEFORE_SLEEP)
            sleep_briefly();
        else if (tries >= SPINS_BEFORE_YIELD)
            sched_yield();
}

static unsigned parse_number(const char *text, unsigned default_value)
{
    char *end;
    unsigned long number = text && *text ? strtoul(text, &end, 10) : default_value;
    return number <= UINT32_MAX ? (unsigned)number : default_value;
}

static void destroy_session(struct ct_session *session)
{
    ct_timing_destroy(session->timing);
    ct_gateway_close(session->gateway);
    munmap(session, sizeof *session);
}

/* Creates a record that others can read. Whether it is sealed is not derived from the content of the directory, because
 * other processes of the same user can change that. */
static int open_record(struct ct_session *session, const char *directory)
{
    const char *is_sealed = getenv("COTENANT_RECORD_SEALED");
    if (!is_sealed || strcmp(is_sealed, "1") != 0)
        return ct_record_open(&session->record, directory, session->is_measuring);
    const int descriptor = ct_record_in_sealed_memory(&session->record, session->is_measuring);
    if (descriptor < 0)
        return 0;
    const int is_sent = ct_record_send(directory, descriptor);
    close(descriptor);
    if (!is_sent)
        ct_record_discard(&session->record);
    return is_sent;
}

/* `directory` is NULL if there is none for records. */
static struct ct_session *make_session(const struct ct_membership *membership, const char *directory)
{
    struct ct_session *session =
        mmap(NULL, sizeof *session, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (session == MAP_FAILED)
        return NULL;
    madvise(session, sizeof *session, MADV_DONTFORK); /* a forked child does not need it */
    const char *measure = getenv("COTENANT_MEASURE");
    session->is_measuring = measure && strcmp(measure, "1") == 0;
    session->sample_every = parse_number(getenv("COTENANT_SAMPLE"), DEFAULT_SAMPLE);
    session->until_sample = session->sample_every;
    session->step = &session->step_storage[0];
    session->step_count = 1;
    session->timing = ct_timing_make();
    session->membership = membership;
    /* A tenant in a container, or one that has changed its root directory, still needs its gate, which works without a
     * record file. */
    if (!session->timing || !((directory && open_record(session, directory)) ||
                              (membership && ct_record_in_memory(&session->record, session->is_measuring)))) {
        destroy_session(session);
        return NULL;
    }
    ct_clock_open(&session->clock);
    ct_trace_open(&session->trace, &session->record, &session->clock);
    if (directory)
        ct_kernel_time_file_read(&session->kernel_time_file, directory);
    session->attachments = membership ? load_acquire(&membership->attachments) : 0;
    session->gateway = ct_gateway_open(membership, &session->clock);
    store_relaxed(&session->time_next, session->is_measuring);
    return session;
}

struct ct_session *ct_session_open(void)
{
    int saved_errno = errno; /* driver calls do not change errno; the hook must not either */
    struct ct_page *page = ct_page_open();
    const struct ct_membership *membership = ct_membership(); /* the node may name the directory */
    const char *directory = getenv("COTENANT_RECORD");
    struct ct_session *session = NULL;
    struct ct_device *device = page ? ct_device_of(page) : NULL; /* the first attachment states how many there are */
    directory = directory && *directory == '/' ? directory : NULL;
    if (device && (directory || membership) && !load_seq_cst(&device->is_tried)) {
        /* Two threads may both create a session; the second one uses the first one's. */
        struct ct_session *expected = NULL;
        session = make_session(membership, directory);
        if (session && !atomic_compare_exchange_strong(&device->session, &expected, session)) {
            ct_record_discard(&session->record);
            destroy_session(session);
        }
    }
    if (device) {
        store_relaxed(&device->is_tried, 1);
        session = load_acquire(&device->session);
    }
    /* The hook's thread adapts only a session that it finds. */
    if (session && membership && load_seq_cst(&membership->attachments) != session->attachments)
        ct_session_reattached(membership);
    errno = saved_errno;
    return session;
}

void ct_session_reattached(const struct ct_membership *membership)
{
    struct ct_page *page = load_acquire(&ct_page);
    for (uint32_t i = 0; page && i < CT_DEVICES; i++) {
        struct ct_session *session = load_seq_cst(&page->devices[i].session);
        struct ct_memory *memory = load_seq_cst(&page->devices[i].memory);
        if (session && session->gateway && session->membership == membership) {
            ct_lock(session);
            ct_gateway_reattached(session);
            ct_unlock(session);
        }
        if (memory && memory->membership == membership)
            ct_memory_reattached(memory);
    }
}

void ct_count_unknown_address(const char *name)
{
    struct ct_session *session = ct_session();
    if (!session)
        return;
    struct ct_record_header *header = session->record.header;
    ct_lock(session);
    uint64_t number = fetch_add_relaxed(&header->unknown, 1);
    if (number < CT_RECORD_UNKNOWN)
        memcpy(header->unknown_names[number], name, strnlen(name, CT_RECORD_UNKNOWN_BYTES - 1));
    ct_unlock(session);
}

int ct_unknown_is_refused(void)
{
    const char *setting = getenv("COTENANT_UNKNOWN");
    return setting && strcmp(setting, "refuse") == 0;
}

void ct_count_export_table(void)
{
    struct ct_session *session = ct_session();
    if (session)
        fetch_add_relaxed(&session->record.header->export_tables, 1);
}

void ct_count_memory_call(int is_free, CUresult result)
{
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS) {
        struct ct_record_header *header = session->record.header;
        fetch_add_relaxed(is_free ? &header->frees : &header->allocations, 1);
    }
}
