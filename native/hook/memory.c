/* How does this process find its tenant's ledger, and when may it take memory? */
#define _GNU_SOURCE
#include "hook/memory.h"

#include "hook/given.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STAT_ROOM = 512, PID_BITS = 22, START_BITS = 20 };
enum { MOMENT_NS = 50 * 1000, LONGEST_NS = 4 * 1000 * 1000 };
enum { ROOM_EVERY_NS = 20 * 1000 * 1000 };
uint64_t ct_memory_patience_ns = 200 * 1000 * 1000;
#define ROOM_PATIENCE_NS (UINT64_C(12) * 1000 * 1000 * 1000)

/* ---- who we are -------------------------------------------------------------------------------------------------- */

/* The state and the start of a process; 0: there is none. */
static int look_at(const char *path, char *state, uint64_t *start_ticks)
{
    char text[STAT_ROOM];
    unsigned long long ticks;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = descriptor < 0 ? -1 : read(descriptor, text, sizeof text - 1);
    if (descriptor >= 0)
        close(descriptor);
    if (length <= 0)
        return 0;
    text[length] = 0;
    const char *after = strrchr(text, ')'); /* a program's name may hold anything */
    if (!after || sscanf(after, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", state,
                         &ticks) != 2)
        return 0;
    *start_ticks = ticks;
    return 1;
}

/* The same of one that this namespace knows by a number. */
static int look_up(uint64_t pid, char *state, uint64_t *start_ticks)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    return look_at(path, state, start_ticks);
}

/* By "self", and not by our number: a /proc that was mounted outside of our namespace has us under another. */
static uint64_t identity(void)
{
    struct stat space;
    char state;
    uint64_t pid = (uint64_t)getpid(), start_ticks = 0;
    uint64_t inode = stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
    look_at("/proc/self/stat", &state, &start_ticks);
    return ct_ledger_identity(pid, inode, start_ticks);
}

/* Whether this line's process is over. Of one in another namespace we cannot know, and believe that it lives. */
static int is_gone(uint64_t owner, uint64_t mine)
{
    const uint64_t space = ((UINT64_C(1) << PID_BITS) - 1) << START_BITS;
    uint64_t start_ticks;
    char state;
    if (!owner || ((owner ^ mine) & space))
        return 0;
    return !look_up(owner >> (PID_BITS + START_BITS), &state, &start_ticks) || state == 'Z' || state == 'X' ||
           ((start_ticks ^ owner) & ((UINT64_C(1) << START_BITS) - 1));
}

static int is_anybody_gone(const struct ct_ledger *ledger)
{
    for (int i = 0; i < CT_LEDGER_LINES; i++)
        if (is_gone(atomic_load(&ledger->account->line[i].owner), ledger->identity))
            return 1;
    return 0;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

struct ledger_file {
    void *file;
    size_t bytes;
    struct ct_ledger_account *account;
};

static void unmap(const struct ledger_file *found)
{
    if (found->file)
        munmap(found->file, found->bytes);
    if (found->account)
        munmap(found->account, CT_LEDGER_ACCOUNT_BYTES);
}

static int map_file(void *into, int reading, int writing, size_t bytes, uint64_t slot)
{
    struct ledger_file *found = into;
    *found = (struct ledger_file){.bytes = bytes};
    if (bytes < ct_ledger_offset((uint32_t)slot + 1))
        return 0;
    found->file = ct_given_part(reading, PROT_READ, 0, bytes);
    if (found->file && ct_ledger_check(found->file, bytes) == 0)
        found->account = ct_given_part(writing, PROT_READ | PROT_WRITE, (off_t)ct_ledger_offset((uint32_t)slot),
                                       CT_LEDGER_ACCOUNT_BYTES);
    if (found->account)
        return 1;
    unmap(found);
    return 0;
}

static struct ct_memory *make(void)
{
    const char *records = getenv("COTENANT_RECORD");
    struct ledger_file found;
    struct ct_beside beside;
    records = records && *records == '/' ? records : NULL;
    ct_beside_open(&beside, records);
    if (!beside.generation ||
        !ct_given_open("COTENANT_LEDGER_FD", records, "ledger", map_file, &found, beside.slot)) {
        ct_beside_close(&beside);
        return NULL;
    }
    struct ct_memory *memory = mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED && ct_ledger_open(&memory->ledger, found.file, found.bytes, found.account,
                                               (uint32_t)beside.slot, beside.generation, identity()) == 0) {
        madvise(memory, sizeof *memory, MADV_DONTFORK);
        memory->beside = beside;
        return memory;
    }
    if (memory != MAP_FAILED)
        munmap(memory, sizeof *memory);
    ct_beside_close(&beside);
    unmap(&found);
    return NULL;
}

/* Under a lock: a second claim would find the line of the first, and empty it. */
struct ct_memory *ct_memory_open(void)
{
    int kept_errno = errno;
    struct ct_page *page = ct_page_open();
    if (page) {
        if (atomic_exchange_explicit(&page->memory_lock, 1, memory_order_acquire))
            ct_hold_late(&page->memory_lock);
        if (!atomic_load_explicit(&page->is_memory_tried, memory_order_relaxed)) {
            atomic_store_explicit(&page->memory, make(), memory_order_release);
            atomic_store_explicit(&page->is_memory_tried, 1, memory_order_release);
        }
        atomic_store_explicit(&page->memory_lock, 0, memory_order_release);
    }
    errno = kept_errno;
    return page ? atomic_load_explicit(&page->memory, memory_order_acquire) : NULL;
}

/* ---- the quota ----------------------------------------------------------------------------------------------------- */

/* Terms that are not ours any more say nothing: what was in force last stays. */
uint64_t ct_memory_quota(struct ct_memory *memory)
{
    struct ct_terms terms;
    if (!memory)
        return 0;
    const struct ct_beside *beside = &memory->beside;
    if (beside->page && ct_terms_read(beside->page, &terms) == CT_TERMS_OK && terms.state == CT_TERMS_GRANTED &&
        terms.slot == beside->slot && terms.generation == beside->generation) {
        if (atomic_load_explicit(&memory->quota_bytes, memory_order_relaxed) != terms.memory_bytes)
            atomic_store_explicit(&memory->quota_bytes, terms.memory_bytes, memory_order_relaxed);
        if (atomic_load_explicit(&memory->is_online, memory_order_relaxed) != (terms.online == 1))
            atomic_store_explicit(&memory->is_online, terms.online == 1, memory_order_relaxed);
    }
    return atomic_load_explicit(&memory->quota_bytes, memory_order_relaxed);
}

uint64_t ct_memory_held(struct ct_memory *memory)
{
    return memory ? ct_ledger_held(memory->ledger.file, memory->ledger.bytes, memory->ledger.account) : 0;
}

/* ---- reserving ----------------------------------------------------------------------------------------------------- */

void ct_memory_begin(struct ct_memory *memory)
{
    if (memory)
        ct_ledger_begin(&memory->ledger);
}

void ct_memory_end(struct ct_memory *memory)
{
    if (memory)
        ct_ledger_end(&memory->ledger);
}

void ct_memory_give(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    if (memory && bytes)
        ct_ledger_give(&memory->ledger, kind, bytes);
}

/* Not by nanosleep(), where a thread may be cancelled. */
static void doze(uint64_t ns)
{
    const struct timespec moment = {.tv_nsec = (long)ns};
    int kept_errno = errno;
    syscall(SYS_nanosleep, &moment, NULL);
    errno = kept_errno;
}

static int attempt(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    uint64_t quota = ct_memory_quota(memory);
    ct_ledger_begin(&memory->ledger);
    int result = ct_ledger_reserve(&memory->ledger, kind, bytes, quota);
    if (result == CT_LEDGER_NO_LINE && !quota)
        result = CT_LEDGER_OK; /* nobody counts us, and there is nothing that we could be past */
    if (result != CT_LEDGER_OK)
        ct_ledger_end(&memory->ledger);
    return result;
}

/* The node may have freed a line since. */
static void look_for_a_line(struct ct_memory *memory)
{
    if (atomic_exchange_explicit(&memory->claiming, 1, memory_order_acquire))
        return;
    if (!atomic_load(&memory->ledger.line))
        ct_ledger_claim(&memory->ledger);
    atomic_store_explicit(&memory->claiming, 0, memory_order_release);
}

static int may_settle(struct ct_memory *memory, int result)
{
    return result == CT_LEDGER_CONTENDED ||
           ((result == CT_LEDGER_OVER || result == CT_LEDGER_NO_LINE) && is_anybody_gone(&memory->ledger));
}

int ct_memory_try(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    if (!memory)
        return 1;
    int result = attempt(memory, kind, bytes), kept_errno = errno;
    uint64_t waited_ns = 0, next_ns = MOMENT_NS + memory->ledger.identity % MOMENT_NS; /* not all in step */
    for (int is_last = 0; CT_UNLIKELY(result != CT_LEDGER_OK) && !is_last;) {
        /* When there is nothing to wait for, once more: the dead may have been cleared between the attempt and the look. */
        is_last = waited_ns >= ct_memory_patience_ns || !may_settle(memory, result);
        if (!is_last)
            doze(next_ns);
        waited_ns += next_ns;
        next_ns = next_ns * 2 < LONGEST_NS ? next_ns * 2 : LONGEST_NS;
        if (result == CT_LEDGER_NO_LINE)
            look_for_a_line(memory);
        result = attempt(memory, kind, bytes);
    }
    errno = kept_errno;
    return result == CT_LEDGER_OK;
}

void ct_memory_deny(struct ct_memory *memory, uint64_t bytes)
{
    ct_ledger_denied(&memory->ledger, bytes);
}

CUresult ct_memory_reserve(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    if (ct_memory_try(memory, kind, bytes) || (ct_beyond_squeeze(memory) && ct_memory_try(memory, kind, bytes)))
        return CUDA_SUCCESS;
    ct_memory_deny(memory, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void want(struct ct_memory *memory, uint64_t bytes)
{
    struct ct_ledger_line *line = atomic_load(&memory->ledger.line);
    if (line)
        atomic_store(&line->wanted_bytes, bytes);
}

/* Whether the other tenants of the device hold what is missing: else nobody can make room, and a program that keeps memory
 * in reserve should hear so at once and use that. */
static int can_be_had(const struct ct_ledger *ledger, uint64_t bytes)
{
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t sum = CT_NEXT(cuMemGetInfo_v2)(&free_bytes, &total_bytes) == CUDA_SUCCESS ? free_bytes : 0;
    uint64_t room = (ledger->bytes - CT_LEDGER_HEADER_BYTES) / CT_LEDGER_ACCOUNT_BYTES;
    uint64_t slots = atomic_load_explicit(&ledger->file->slots, memory_order_relaxed);
    for (uint64_t slot = 0; slot < (slots < room ? slots : room) && sum < bytes; slot++) {
        const void *account = (const unsigned char *)ledger->file + ct_ledger_offset((uint32_t)slot);
        uint64_t held = slot == ledger->slot ? 0 : ct_ledger_held(ledger->file, ledger->bytes, account);
        sum = held > UINT64_MAX - sum ? UINT64_MAX : sum + held;
    }
    return sum >= bytes;
}

/* Not begun meanwhile: what is reserved stays so, and the others need not wait for us to settle. */
int ct_memory_wants(struct ct_memory *memory, struct ct_wanting *wanting, uint64_t bytes, CUresult result)
{
    size_t free_bytes = 0, total_bytes = 0;
    int is_again = 0;
    if (!memory || !bytes || (result != CUDA_ERROR_OUT_OF_MEMORY && !wanting->waited_ns))
        return 0;
    if (result == CUDA_ERROR_OUT_OF_MEMORY && atomic_load_explicit(&memory->is_online, memory_order_relaxed) &&
        can_be_had(&memory->ledger, bytes)) {
        ct_memory_end(memory);
        want(memory, bytes);
        while (!is_again && wanting->waited_ns < ROOM_PATIENCE_NS) {
            doze(ROOM_EVERY_NS);
            wanting->waited_ns += ROOM_EVERY_NS;
            is_again = CT_NEXT(cuMemGetInfo_v2)(&free_bytes, &total_bytes) != CUDA_SUCCESS || free_bytes >= bytes;
        }
        ct_memory_begin(memory);
    }
    if (!is_again)
        want(memory, 0);
    return is_again;
}
