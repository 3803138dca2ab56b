/* When has the device come to a free that waits its turn in a stream? When the stream is seen idle after it. */
#define _GNU_SOURCE
#include "hook/memory.h"

#include <errno.h>
#include <sys/mman.h>

enum { FIRST_ROOM = 64 };

/* Only where nothing is captured: the question would spoil a capture. A stream is asked after in its own context. */
static int is_idle(const struct ct_late *late, CUcontext current)
{
    struct ct_session *session = ct_session();
    if (!late->has_stream || late->context != current ||
        (session && atomic_load_explicit(&session->captures, memory_order_relaxed)))
        return 0;
    return (late->is_twin ? CT_NEXT(cuStreamQuery_ptsz)(late->stream) : CT_NEXT(cuStreamQuery)(late->stream)) ==
           CUDA_SUCCESS;
}

static CUcontext current_context(void)
{
    CUcontext current = NULL;
    return CT_NEXT(cuCtxGetCurrent)(&current) == CUDA_SUCCESS ? current : NULL;
}

static void gone(struct ct_memory *memory, const struct ct_late *late)
{
    if (!late->supply) {
        ct_ledger_unsure(&memory->ledger);
        ct_share_freed(memory, late->kind, late->bytes, late->key);
        return;
    }
    ct_beyond_hold(&memory->beyond);
    ct_supply_left(memory, late->supply, 1);
    ct_beyond_let_go(&memory->beyond);
}

static int grow(struct ct_beyond *beyond)
{
    const int kept_errno = errno;
    const size_t more = beyond->late_room ? 2 * beyond->late_room : FIRST_ROOM;
    void *larger =
        beyond->late_room
            ? mremap(beyond->late, beyond->late_room * sizeof *beyond->late, more * sizeof *beyond->late, MREMAP_MAYMOVE)
            : mmap(NULL, more * sizeof *beyond->late, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = kept_errno;
    if (larger == MAP_FAILED)
        return 0;
    beyond->late = larger;
    beyond->late_room = more;
    return 1;
}

static void add(struct ct_beyond *beyond, const struct ct_late *late)
{
    if (beyond->late_count == beyond->late_room) {
        if (!grow(beyond))
            return; /* it counts until the process ends */
    }
    struct ct_late *added = &beyond->late[beyond->late_count++];
    *added = *late;
    added->serial = ++beyond->late_serial;
    atomic_store_explicit(&beyond->is_busy, 1, memory_order_relaxed);
}

void ct_late_free(struct ct_memory *memory, const struct ct_late *late)
{
    if (is_idle(late, late->context)) {
        gone(memory, late);
        return;
    }
    ct_beyond_hold(&memory->beyond);
    add(&memory->beyond, late);
    ct_beyond_let_go(&memory->beyond);
}

/* Under the lock: takes out the one at this place, if it still is that one. */
static int take(struct ct_beyond *beyond, size_t at, uint64_t serial)
{
    if (at >= beyond->late_count || beyond->late[at].serial != serial)
        return 0;
    beyond->late[at] = beyond->late[--beyond->late_count];
    return 1;
}

/* The driver is asked without the lock; who finds the list changed by then leaves the rest for the next time. */
void ct_late_settle(struct ct_memory *memory, int is_all)
{
    struct ct_beyond *beyond = &memory->beyond;
    const CUcontext current = current_context();
    struct ct_late late, last = {0};
    int was_idle = 0;
    for (size_t at = 0;;) {
        ct_beyond_hold(beyond);
        int is_there = at < beyond->late_count;
        if (is_there)
            late = beyond->late[at];
        ct_beyond_let_go(beyond);
        if (!is_there)
            return;
        int is_same = last.has_stream && late.has_stream && last.context == late.context &&
                      last.stream == late.stream && last.is_twin == late.is_twin;
        int is_gone = (is_all && late.context == current) || (is_same ? was_idle : is_idle(&late, current));
        last = late;
        was_idle = is_gone;
        if (is_gone) {
            ct_beyond_hold(beyond);
            is_gone = take(beyond, at, late.serial);
            ct_beyond_let_go(beyond);
        }
        if (is_gone)
            gone(memory, &late);
        else
            at++;
    }
}

void ct_late_move(struct ct_memory *memory, uint64_t home, uint64_t to)
{
    struct ct_beyond *beyond = &memory->beyond;
    ct_beyond_hold(beyond);
    for (size_t i = 0; i < beyond->late_count; i++)
        if (beyond->late[i].home == home)
            beyond->late[i].home = to;
    ct_beyond_let_go(beyond);
}

void ct_late_ended(struct ct_memory *memory, uint64_t home)
{
    struct ct_beyond *beyond = &memory->beyond;
    for (size_t at = 0;;) {
        struct ct_late late;
        ct_beyond_hold(beyond);
        while (at < beyond->late_count && beyond->late[at].home != home)
            at++;
        int is_there = at < beyond->late_count;
        if (is_there) {
            late = beyond->late[at];
            take(beyond, at, late.serial);
        }
        ct_beyond_let_go(beyond);
        if (!is_there)
            return;
        gone(memory, &late);
    }
}

/* Its handle may come to mean another one: only a wait for all of the context shows the end now. */
void ct_late_stream_ends(struct ct_memory *memory, CUstream stream)
{
    struct ct_beyond *beyond = &memory->beyond;
    if (!atomic_load_explicit(&beyond->is_busy, memory_order_relaxed))
        return;
    ct_beyond_hold(beyond);
    for (size_t i = 0; i < beyond->late_count; i++)
        if (beyond->late[i].stream == stream)
            beyond->late[i].has_stream = 0;
    ct_beyond_let_go(beyond);
}
