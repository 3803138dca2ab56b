/* The hook's thread: attaches the process to the node, maps the pages that arrive, and attaches again when the
 * connection has ended. */
#define _GNU_SOURCE
#include "hook/entry/membership.h"

#include "hook/entry/page.h"
#include "hook/entry/sealed_memory.h"
#include "hook/entry/session.h"
#include "hook/timing/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif

enum {
    DETAIL_BYTES = CT_REASON_BYTES - 64, /* leaves space for what precedes it */
    BACKOFF_MIN_NS = 50 * 1000 * 1000,
    BACKOFF_MAX_NS = 2000 * 1000 * 1000,
};

enum outcome { ATTACHED, RETRY, REFUSED };

static enum outcome fail(struct ct_membership *membership, enum outcome outcome, const char *what, const char *detail)
{
    snprintf(membership->reason, sizeof membership->reason, "%s%s%s", what, *detail ? ": " : "", detail);
    return outcome;
}

/* ---- mappings ----------------------------------------------------------------------------------------------------- */

/* Maps a memory file that no process can shorten, at this address unless it is NULL. A forked child does not inherit the
 * mapping. Returns NULL if it is not such a file. */
static void *map_sealed(int descriptor, int seals, size_t bytes, int protection, const void *address)
{
    struct stat status;
    const int present = fcntl(descriptor, F_GET_SEALS);
    if (present < 0 || (present & seals) != seals || fstat(descriptor, &status) < 0 || status.st_size != (off_t)bytes)
        return NULL;
    void *mapped = mmap((void *)(uintptr_t)address, bytes, protection, MAP_SHARED | (address ? MAP_FIXED : 0), descriptor,
                        0);
    if (mapped == MAP_FAILED)
        return NULL;
    madvise(mapped, bytes, MADV_DONTFORK);
    return mapped;
}

static int make_pages(struct ct_membership *membership)
{
    void *pages;
    const int descriptor = ct_sealed_memory_make("cotenant-process", CT_PROCESS_BYTES, CT_PROCESS_BYTES, &pages);
    if (descriptor < 0)
        return 0;
    membership->pages = pages;
    return ct_owned_file_take(&membership->pages_file, descriptor);
}

/* Reserves the region for the pages of other processes. */
static int reserve_region(struct ct_membership *membership)
{
    void *region = mmap(NULL, CT_PROCESSES_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED)
        return 0;
    madvise(region, CT_PROCESSES_BYTES, MADV_DONTFORK);
    membership->region = region;
    return 1;
}

static void unmap_all(struct ct_membership *membership)
{
    if (membership->pages)
        munmap(membership->pages, CT_PROCESS_BYTES);
    if (membership->region)
        munmap((void *)(uintptr_t)membership->region, CT_PROCESSES_BYTES);
}

/* ---- messages of the node ----------------------------------------------------------------------------------------- */

static int find_number(const struct ct_frame *frame, const char *key, uint64_t max, uint64_t *number)
{
    return ct_message_find_number(frame->bytes, frame->count, key, max, number);
}

/* Maps the pages of another process. A descriptor that is not valid is ignored: the pages that were mapped before stay. */
static void map_process(struct ct_membership *membership, const struct ct_frame *frame)
{
    uint64_t index, epoch;
    struct ct_gate_page *gate = &membership->pages->gate;
    if (!find_number(frame, "index", CT_PROCESSES - 1, &index) || !find_number(frame, "epoch", UINT64_MAX, &epoch) ||
        frame->descriptor_count != 1 || index == load_relaxed(&membership->index))
        return;
    if (!map_sealed(frame->descriptors[0], CT_ALL_SEALS, CT_PROCESS_BYTES, PROT_READ,
                    ct_process_pages_of(membership->region, (uint32_t)index)))
        return;
    if (epoch > load_relaxed(&gate->mapped_epoch))
        store_release(&gate->mapped_epoch, epoch);
}

/* Maps the page of the gang: the first time anywhere, and then over the earlier one. A descriptor that is not valid is
 * ignored. */
static void map_gang(struct ct_membership *membership, const struct ct_frame *frame)
{
    uint64_t ranks;
    if (!find_number(frame, "ranks", CT_GANG_RANKS, &ranks) || frame->descriptor_count != 1)
        return;
    struct ct_gang_page *page = map_sealed(frame->descriptors[0], CT_SIZE_SEALS, CT_GANG_BYTES, PROT_READ | PROT_WRITE,
                                           load_relaxed(&membership->gang));
    if (!page)
        return;
    store_relaxed(&membership->gang_ranks, (uint32_t)ranks);
    store_release(&membership->gang, page);
}

struct node_pages {
    const struct ct_grant_page *grant;
    const struct ct_tenant_table *table;
    struct ct_arbitration_page *arbitration;
};

static void unmap_pages(const struct node_pages *pages)
{
    if (pages->grant)
        munmap((void *)(uintptr_t)pages->grant, CT_GRANT_BYTES);
    if (pages->table)
        munmap((void *)(uintptr_t)pages->table, CT_TABLE_BYTES);
    if (pages->arbitration)
        munmap(pages->arbitration, CT_GATE_PAGE_BYTES);
}

/* Maps the pages that accompany an answer, at these addresses where they are not NULL. */
static void map_pages(const struct ct_frame *frame, const struct node_pages *at, struct node_pages *pages)
{
    const int *descriptors = frame->descriptors;
    *pages = (struct node_pages){0};
    pages->grant = map_sealed(descriptors[0], CT_ALL_SEALS, CT_GRANT_BYTES, PROT_READ, at->grant);
    if (frame->descriptor_count < 3)
        return;
    pages->table = map_sealed(descriptors[1], CT_ALL_SEALS, CT_TABLE_BYTES, PROT_READ, at->table);
    pages->arbitration =
        map_sealed(descriptors[2], CT_SIZE_SEALS, CT_GATE_PAGE_BYTES, PROT_READ | PROT_WRITE, at->arbitration);
}

static int are_valid(const struct ct_frame *frame, const struct node_pages *pages)
{
    return pages->grant && ct_grant_check(pages->grant, CT_GRANT_BYTES) == CT_GRANT_OK &&
           (frame->descriptor_count == 1 ||
            (pages->table && ct_tenant_table_check(pages->table, CT_TABLE_BYTES) == 0 && pages->arbitration));
}

/* Maps the node's pages: the first time anywhere, and then over the earlier ones. They are checked before they replace
 * any. Returns 0 if they are not valid. */
static int take_pages(struct ct_membership *membership, const struct ct_frame *frame)
{
    static const struct node_pages anywhere;
    struct node_pages checked, replaced;
    if (frame->descriptor_count != 1 && frame->descriptor_count != 3)
        return 0;
    map_pages(frame, &anywhere, &checked);
    if (!are_valid(frame, &checked)) {
        unmap_pages(&checked);
        return 0;
    }
    if (!membership->grant) {
        membership->grant = checked.grant;
        membership->account = (const void *)((const char *)checked.grant + CT_GRANT_ACCOUNT_OFFSET);
        membership->table = checked.table;
        membership->arbitration = checked.arbitration;
        return 1;
    }
    /* A process that began without a device stays without, and one that has lost it keeps the last rules. */
    if (membership->table || frame->descriptor_count == 1)
        map_pages(frame, &(struct node_pages){membership->grant, membership->table, membership->arbitration}, &replaced);
    unmap_pages(&checked);
    return 1;
}

/* Takes the answer to a request to attach. Returns 0 if it is not valid. */
static int take_answer(struct ct_membership *membership, const struct ct_frame *frame)
{
    struct ct_message_value environment;
    uint64_t slot, generation, index, process_generation, epoch;
    if (!find_number(frame, "slot", UINT32_MAX, &slot) || !find_number(frame, "generation", UINT64_MAX, &generation) ||
        !find_number(frame, "index", CT_PROCESSES - 1, &index) ||
        !find_number(frame, "process_generation", UINT32_MAX, &process_generation) || !process_generation ||
        !find_number(frame, "epoch", UINT64_MAX, &epoch) || !take_pages(membership, frame))
        return 0;
    store_relaxed(&membership->slot, slot);
    store_relaxed(&membership->generation, generation);
    store_relaxed(&membership->index, (uint32_t)index);
    store_relaxed(&membership->process_generation, (uint32_t)process_generation);
    store_relaxed(&membership->epoch, epoch);
    store_relaxed(&membership->pages->gate.mapped_epoch, 0); /* another node may count from the beginning */
    store_release(&membership->pages->gate.generation, process_generation);
    atomic_fetch_add(&membership->attachments, 1);
    if (load_relaxed(&membership->state) == CT_MEMBERSHIP_JOINING &&
        ct_message_find(frame->bytes, frame->count, "environment", &environment) &&
        environment.kind == CT_MESSAGE_MAP) {
        memcpy(membership->environment, environment.bytes, environment.count);
        membership->environment_bytes = environment.count;
    }
    /* A node of an earlier version does not state it. */
    if (!membership->device_count && !find_number(frame, "devices", CT_DEVICES, &membership->device_count))
        membership->device_count = 1;
    return 1;
}

/* Reads one message while the answer is awaited; `is_done` is set once it has arrived. */
static enum outcome read_answer(struct ct_membership *membership, const struct ct_frame *frame, int *is_done)
{
    struct ct_message_value type, reject, detail = {0};
    char text[DETAIL_BYTES];
    uint64_t version = CT_MESSAGE_VERSION;
    ct_message_find(frame->bytes, frame->count, "type", &type);
    *is_done = 1;
    if (ct_message_is(&type, "page")) {
        map_process(membership, frame);
        *is_done = 0;
        return RETRY;
    }
    if (ct_message_is(&type, "gang")) { /* it precedes the answer */
        map_gang(membership, frame);
        *is_done = 0;
        return RETRY;
    }
    if (ct_message_is(&type, "refusal")) {
        if (ct_message_find(frame->bytes, frame->count, "reject", &reject) && reject.kind == CT_MESSAGE_MAP)
            ct_message_find(reject.bytes, reject.count, "detail", &detail);
        ct_message_copy_text(&detail, text, sizeof text);
        return fail(membership, REFUSED, "the node refused it", text);
    }
    if (ct_message_is(&type, "protocol-violation")) {
        ct_message_find(frame->bytes, frame->count, "detail", &detail);
        ct_message_copy_text(&detail, text, sizeof text);
        return fail(membership, REFUSED, "the node refused the request", text);
    }
    find_number(frame, "version", UINT64_MAX, &version);
    if (version != CT_MESSAGE_VERSION)
        return fail(membership, REFUSED, "the node speaks another version of the protocol; update cotenant", "");
    if (!ct_message_is(&type, "attached") || !take_answer(membership, frame))
        return fail(membership, REFUSED, "the node's answer cannot be read", membership->request.socket_path);
    return ATTACHED;
}

/* ---- attaching ---------------------------------------------------------------------------------------------------- */

static const char *text_of(int error, char *buffer, size_t bytes)
{
    if (error == EPIPE || error == ECONNRESET)
        return "the node closed the connection";
    if (error == ETIMEDOUT)
        return "the node did not answer in time";
    if (error == EPROTO)
        return "the node's answer cannot be read";
    return strerror_r(error, buffer, bytes);
}

/* Connects and attaches once. */
static enum outcome attach(struct ct_membership *membership, uint64_t until_ns)
{
    struct ct_owned_file *owned = &membership->socket;
    const char *path = membership->request.socket_path;
    const int is_first = !load_relaxed(&membership->attachments);
    char buffer[128];
    if (!ct_owned_file_is_valid(&membership->pages_file))
        return fail(membership, REFUSED, "the program has closed the descriptor of its pages", "");
    int error = ct_node_connect(owned, path);
    const size_t count = ct_join_request_complete(&membership->request, is_first ? -1 : (int64_t)membership->index,
                                                  membership->process_generation, membership->request_bytes);
    if (!error)
        error = ct_node_send(owned, membership->request_bytes, count, membership->pages_file.descriptor, until_ns);
    enum outcome outcome = RETRY;
    for (int is_done = 0; !error && !is_done;) {
        error = ct_node_receive(owned, &membership->frame, until_ns);
        if (!error)
            outcome = read_answer(membership, &membership->frame, &is_done);
        ct_frame_close(&membership->frame);
    }
    if (!error && outcome == ATTACHED)
        return ATTACHED;
    ct_owned_file_close(owned);
    if (!error)
        return outcome;
    const int is_temporary = error == ENOENT || error == ECONNREFUSED || error == EAGAIN || error == EPIPE ||
                             error == ECONNRESET || error == ETIMEDOUT;
    return fail(membership, is_temporary ? RETRY : REFUSED, path, text_of(error, buffer, sizeof buffer));
}

/* Attaches for the first time, until the deadline. */
static enum outcome attach_first(struct ct_membership *membership)
{
    const uint64_t until_ns = ct_clock_monotonic_ns() + CT_JOIN_MAX_NS;
    uint64_t backoff_ns = BACKOFF_MIN_NS;
    if (!make_pages(membership) || !reserve_region(membership))
        return fail(membership, REFUSED, "the pages of this process cannot be created", "");
    for (;;) {
        const enum outcome outcome = attach(membership, until_ns);
        if (outcome != RETRY || ct_clock_monotonic_ns() + backoff_ns >= until_ns)
            return outcome;
        ct_node_sleep(backoff_ns);
        backoff_ns = backoff_ns * 2 < BACKOFF_MAX_NS ? backoff_ns * 2 : BACKOFF_MAX_NS;
    }
}

/* Attaches again after the connection has ended, however long that takes; the last rules stay in force meanwhile. Returns
 * 0 if it cannot succeed any more. */
static int attach_again(struct ct_membership *membership)
{
    for (uint64_t backoff_ns = BACKOFF_MIN_NS;;) {
        ct_node_sleep(backoff_ns);
        backoff_ns = backoff_ns * 2 < BACKOFF_MAX_NS ? backoff_ns * 2 : BACKOFF_MAX_NS;
        if (!ct_owned_file_is_valid(&membership->pages_file))
            return 0;
        if (attach(membership, ct_clock_monotonic_ns() + CT_JOIN_MAX_NS) == ATTACHED) {
            ct_session_reattached(membership);
            return 1;
        }
    }
}

/* Maps the pages of other processes until the connection ends. */
static void serve(struct ct_membership *membership)
{
    struct ct_frame *frame = &membership->frame;
    struct ct_message_value type;
    int error;
    do {
        error = ct_node_receive(&membership->socket, frame, CT_NODE_NO_LIMIT);
        if (!error && ct_message_find(frame->bytes, frame->count, "type", &type) && ct_message_is(&type, "page"))
            map_process(membership, frame);
        ct_frame_close(frame);
    } while (!error);
    ct_owned_file_close(&membership->socket);
}

/* Gives this thread a descriptor table of its own, which is empty. The program can then neither close the thread's
 * descriptors nor pass them on to its children. Systems that do not permit this are rare; there the table remains shared,
 * and every descriptor is checked before it is used. */
static void leave_descriptor_table(void)
{
    syscall(SYS_close_range, 0u, ~0u, CLOSE_RANGE_UNSHARE);
}

static void set_state(struct ct_membership *membership, enum ct_membership_state state)
{
    store_release(&membership->state, state);
    syscall(SYS_futex, &membership->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void *ct_attachment_run(void *argument)
{
    struct ct_membership *membership = argument;
    membership->socket.descriptor = membership->pages_file.descriptor = -1;
    prctl(PR_SET_NAME, "cotenant");
    leave_descriptor_table();
    if (attach_first(membership) != ATTACHED) {
        ct_owned_file_close(&membership->pages_file);
        unmap_all(membership);
        set_state(membership, CT_MEMBERSHIP_FAILED);
        return NULL;
    }
    set_state(membership, CT_MEMBERSHIP_JOINED);
    do
        serve(membership);
    while (attach_again(membership));
    ct_owned_file_close(&membership->pages_file);
    return NULL;
}
