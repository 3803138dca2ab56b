/* Opens the ledger of this process's tenant, and reserves memory in it within the quota. */
#define _GNU_SOURCE
#include "hook/memory/memory.h"

#include "hook/entry/node_files.h"

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

enum { STAT_BYTES = 512, PID_BITS = 22, START_BITS = 20 };
enum { WAIT_FIRST_NS = 50 * 1000, WAIT_MAX_NS = 4 * 1000 * 1000 };
enum { RETRY_NS = 20 * 1000 * 1000 };
uint64_t ct_memory_wait_max_ns = 200 * 1000 * 1000;
#define RETRY_MAX_NS (UINT64_C(12) * 1000 * 1000 * 1000)

/* ---- the identity of processes ------------------------------------------------------------------------------------ */

/* Reads the state and the start time of a process; returns 0 if it does not exist. */
static int read_stat(const char *path, char *state, uint64_t *start_ticks)
{
    char text[STAT_BYTES];
    unsigned long long ticks;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = descriptor < 0 ? -1 : read(descriptor, text, sizeof text - 1);
    if (descriptor >= 0)
        close(descriptor);
    if (length <= 0)
        return 0;
    text[length] = 0;
    const char *after = strrchr(text, ')'); /* a program's name may contain any character */
    if (!after || sscanf(after, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                         state,
                         &ticks) != 2)
        return 0;
    *start_ticks = ticks;
    return 1;
}

/* The same for a process of this PID namespace. */
static int read_process_stat(uint64_t pid, char *state, uint64_t *start_ticks)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    return read_stat(path, state, start_ticks);
}

/* Returns the identity of this process. Uses "self" instead of the PID: a /proc that was mounted outside of our
 * namespace has other numbers. */
static uint64_t identity(void)
{
    struct stat status;
    char state;
    uint64_t pid = (uint64_t)getpid(), start_ticks = 0;
    uint64_t inode = stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
    read_stat("/proc/self/stat", &state, &start_ticks);
    return ct_ledger_identity(pid, inode, start_ticks);
}

/* Returns whether the process of a line has ended. A process of another namespace is assumed to be alive. */
static int is_dead(uint64_t owner, uint64_t own)
{
    const uint64_t namespace_mask = ((UINT64_C(1) << PID_BITS) - 1) << START_BITS;
    uint64_t start_ticks;
    char state;
    if (!owner || ((owner ^ own) & namespace_mask))
        return 0;
    return !read_process_stat(owner >> (PID_BITS + START_BITS), &state, &start_ticks) || state == 'Z' || state == 'X' ||
           ((start_ticks ^ owner) & ((UINT64_C(1) << START_BITS) - 1));
}

static int has_dead_process(const struct ct_ledger *ledger)
{
    for (int i = 0; i < CT_LEDGER_LINES; i++)
        if (is_dead(load_seq_cst(&ledger->account->line[i].owner), ledger->identity))
            return 1;
    return 0;
}

/* ---- opening the ledger ------------------------------------------------------------------------------------------- */

struct ledger_file {
    void *file;
    size_t bytes;
    struct ct_ledger_account *account;
};

static void unmap(const struct ledger_file *ledger_file)
{
    if (ledger_file->file)
        munmap(ledger_file->file, ledger_file->bytes);
    if (ledger_file->account)
        munmap(ledger_file->account, CT_LEDGER_ACCOUNT_BYTES);
}

static int map_file(void *into, int reading, int writing, size_t bytes, uint64_t slot)
{
    struct ledger_file *ledger_file = into;
    *ledger_file = (struct ledger_file){.bytes = bytes};
    if (bytes < ct_ledger_offset((uint32_t)slot + 1))
        return 0;
    ledger_file->file = ct_node_file_map_part(reading, PROT_READ, 0, bytes);
    if (ledger_file->file && ct_ledger_check(ledger_file->file, bytes) == 0)
        ledger_file->account =
            ct_node_file_map_part(writing, PROT_READ | PROT_WRITE, (off_t)ct_ledger_offset((uint32_t)slot),
                                       CT_LEDGER_ACCOUNT_BYTES);
    if (ledger_file->account)
        return 1;
    unmap(ledger_file);
    return 0;
}

static struct ct_memory *open_memory(void)
{
    const char *records = getenv("COTENANT_RECORD");
    struct ledger_file ledger_file;
    struct ct_tenancy tenancy;
    records = records && *records == '/' ? records : NULL;
    ct_tenancy_open(&tenancy, records);
    if (!tenancy.generation ||
        !ct_node_file_open("COTENANT_LEDGER_FD", records, "ledger", map_file, &ledger_file, tenancy.slot)) {
        ct_tenancy_close(&tenancy);
        return NULL;
    }
    struct ct_memory *memory = mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED &&
        ct_ledger_open(&memory->ledger, ledger_file.file, ledger_file.bytes, ledger_file.account,
                       (uint32_t)tenancy.slot, tenancy.generation, identity()) == 0) {
        madvise(memory, sizeof *memory, MADV_DONTFORK);
        memory->tenancy = tenancy;
        return memory;
    }
    if (memory != MAP_FAILED)
        munmap(memory, sizeof *memory);
    ct_tenancy_close(&tenancy);
    unmap(&ledger_file);
    return NULL;
}

/* Opens the ledger under a lock: a second claim would find the line of the first, and clear it. */
struct ct_memory *ct_memory_open(void)
{
    int saved_errno = errno;
    struct ct_page *page = ct_page_open();
    if (page) {
        if (exchange_acquire(&page->memory_lock, 1))
            ct_lock_slow(&page->memory_lock);
        if (!load_relaxed(&page->is_memory_tried)) {
            store_release(&page->memory, open_memory());
            store_release(&page->is_memory_tried, 1);
        }
        store_release(&page->memory_lock, 0);
    }
    errno = saved_errno;
    return page ? load_acquire(&page->memory) : NULL;
}

/* ---- the quota ---------------------------------------------------------------------------------------------------- */

/* A grant of another tenant is ignored: the last quota stays in force. */
uint64_t ct_memory_quota(struct ct_memory *memory)
{
    struct ct_grant grant;
    if (!memory)
        return 0;
    const struct ct_tenancy *tenancy = &memory->tenancy;
    if (tenancy->page && ct_grant_read(tenancy->page, &grant) == CT_GRANT_OK && grant.state == CT_GRANT_ACTIVE &&
        grant.slot == tenancy->slot && grant.generation == tenancy->generation) {
        if (load_relaxed(&memory->quota_bytes) != grant.memory_bytes)
            store_relaxed(&memory->quota_bytes, grant.memory_bytes);
        if (load_relaxed(&memory->is_online) != (grant.online == 1))
            store_relaxed(&memory->is_online, grant.online == 1);
    }
    return load_relaxed(&memory->quota_bytes);
}

uint64_t ct_memory_held(struct ct_memory *memory)
{
    return memory ? ct_ledger_held(memory->ledger.file, memory->ledger.bytes, memory->ledger.account) : 0;
}

/* ---- reservations ------------------------------------------------------------------------------------------------- */

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

void ct_memory_release(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    if (memory && bytes)
        ct_ledger_release(&memory->ledger, kind, bytes);
}

/* Uses the system call, because nanosleep() is a cancellation point. */
static void sleep_briefly(uint64_t ns)
{
    const struct timespec duration = {.tv_nsec = (long)ns};
    int saved_errno = errno;
    syscall(SYS_nanosleep, &duration, NULL);
    errno = saved_errno;
}

static int reserve_once(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    uint64_t quota = ct_memory_quota(memory);
    ct_ledger_begin(&memory->ledger);
    int result = ct_ledger_reserve(&memory->ledger, kind, bytes, quota);
    if (result == CT_LEDGER_NO_LINE && !quota)
        result = CT_LEDGER_OK; /* the process is not counted, and there is no quota to exceed */
    if (result != CT_LEDGER_OK)
        ct_ledger_end(&memory->ledger);
    return result;
}

/* Tries to claim a line again: the node may have cleared one. */
static void claim_line(struct ct_memory *memory)
{
    if (exchange_acquire(&memory->claiming, 1))
        return;
    if (!load_seq_cst(&memory->ledger.line))
        ct_ledger_claim(&memory->ledger);
    store_release(&memory->claiming, 0);
}

/* Returns whether waiting may help: other processes are allocating, or dead ones will be cleared. */
static int may_change(struct ct_memory *memory, int result)
{
    return result == CT_LEDGER_CONTENDED ||
           ((result == CT_LEDGER_OVER || result == CT_LEDGER_NO_LINE) && has_dead_process(&memory->ledger));
}

int ct_memory_try(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    if (!memory)
        return 1;
    int result = reserve_once(memory, kind, bytes), saved_errno = errno;
    /* spread over time between processes */
    uint64_t waited_ns = 0, next_ns = WAIT_FIRST_NS + memory->ledger.identity % WAIT_FIRST_NS;
    for (int is_last = 0; CT_UNLIKELY(result != CT_LEDGER_OK) && !is_last;) {
        /* If there is nothing to wait for, try once more: dead processes may have been cleared between the attempt and
         * the check. */
        is_last = waited_ns >= ct_memory_wait_max_ns || !may_change(memory, result);
        if (!is_last)
            sleep_briefly(next_ns);
        waited_ns += next_ns;
        next_ns = next_ns * 2 < WAIT_MAX_NS ? next_ns * 2 : WAIT_MAX_NS;
        if (result == CT_LEDGER_NO_LINE)
            claim_line(memory);
        result = reserve_once(memory, kind, bytes);
    }
    errno = saved_errno;
    return result == CT_LEDGER_OK;
}

void ct_memory_deny(struct ct_memory *memory, uint64_t bytes)
{
    ct_ledger_denied(&memory->ledger, bytes);
}

CUresult ct_memory_reserve(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes)
{
    if (ct_memory_try(memory, kind, bytes) || (ct_supplies_trim(memory) && ct_memory_try(memory, kind, bytes)))
        return CUDA_SUCCESS;
    ct_memory_deny(memory, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void publish_wanted(struct ct_memory *memory, uint64_t bytes)
{
    struct ct_ledger_line *line = load_seq_cst(&memory->ledger.line);
    if (line)
        store_seq_cst(&line->wanted_bytes, bytes);
}

/* Returns whether other tenants hold the missing memory. Otherwise none can be freed, and the program should get the
 * error at once, so that it can use memory that it has cached. */
static int others_hold_enough(const struct ct_ledger *ledger, uint64_t bytes)
{
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t sum = CT_NEXT(cuMemGetInfo_v2)(&free_bytes, &total_bytes) == CUDA_SUCCESS ? free_bytes : 0;
    uint64_t capacity = (ledger->bytes - CT_LEDGER_HEADER_BYTES) / CT_LEDGER_ACCOUNT_BYTES;
    uint64_t slots = load_relaxed(&ledger->file->slots);
    for (uint64_t slot = 0; slot < (slots < capacity ? slots : capacity) && sum < bytes; slot++) {
        const void *account = (const unsigned char *)ledger->file + ct_ledger_offset((uint32_t)slot);
        uint64_t held = slot == ledger->slot ? 0 : ct_ledger_held(ledger->file, ledger->bytes, account);
        sum = held > UINT64_MAX - sum ? UINT64_MAX : sum + held;
    }
    return sum >= bytes;
}

/* Ends the change during the wait: the reservation stays, and other processes need not wait for this one to settle. */
int ct_memory_should_retry(struct ct_memory *memory, struct ct_memory_wait *wait, uint64_t bytes, CUresult result)
{
    size_t free_bytes = 0, total_bytes = 0;
    int should_retry = 0;
    if (!memory || !bytes || (result != CUDA_ERROR_OUT_OF_MEMORY && !wait->waited_ns))
        return 0;
    if (result == CUDA_ERROR_OUT_OF_MEMORY && load_relaxed(&memory->is_online) &&
        others_hold_enough(&memory->ledger, bytes)) {
        ct_memory_end(memory);
        publish_wanted(memory, bytes);
        while (!should_retry && wait->waited_ns < RETRY_MAX_NS) {
            sleep_briefly(RETRY_NS);
            wait->waited_ns += RETRY_NS;
            should_retry = CT_NEXT(cuMemGetInfo_v2)(&free_bytes, &total_bytes) != CUDA_SUCCESS || free_bytes >= bytes;
        }
        ct_memory_begin(memory);
    }
    if (!should_retry)
        publish_wanted(memory, 0);
    return should_retry;
}
