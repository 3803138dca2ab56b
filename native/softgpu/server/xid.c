/* The Xid log: a bounded list of faults, as in a kernel log, for NVML, the report and the server's standard error. */
#define _GNU_SOURCE
#include "softgpu/server/server.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { COMM_BYTES = 16 };
/* Xids of NVIDIA's catalogue that NVML counts. */
enum { XID_ECC = 48, XID_ROW = 63, XID_ECC_CONTAINED = 94 };

/* Replace characters of process names that would break the JSON report. */
static void name_of(int32_t pid, char *name)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%" PRId32 "/comm", pid);
    int file = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t got = file < 0 ? 0 : read(file, name, COMM_BYTES);
    if (file >= 0)
        close(file);
    name[got < 0 ? 0 : got] = 0;
    name[strcspn(name, "\n")] = 0;
    for (char *c = name; *c; c++)
        if (*c < ' ' || *c > '~' || *c == '"' || *c == '\\')
            *c = '?';
    if (!*name)
        strcpy(name, "<unknown>");
}

void sg_xid_add(struct sg_server *server, uint32_t xid, int32_t pid, const char *text)
{
    char name[COMM_BYTES + 1];
    uint64_t sequence = ++server->faults.xid_count;
    struct sg_xid *entry = &server->faults.xids[sequence % SG_XIDS];
    server->faults.ecc_errors += xid == XID_ECC || xid == XID_ECC_CONTAINED;
    server->faults.rows += xid == XID_ROW;
    *entry = (struct sg_xid){.sequence = sequence, .at_ns = sg_now_ns(), .xid = xid, .pid = pid};
    name_of(pid, name);
    if (pid > 0)
        snprintf(entry->text, sizeof entry->text, "pid=%" PRId32 ", name=%s, %s", pid, name, text);
    else
        snprintf(entry->text, sizeof entry->text, "%s", text);
    if (sequence <= SG_XID_LOG_LINES) /* bounds the log on disk if faults are injected without end */
        fprintf(stderr, "[%5" PRIu64 ".%06" PRIu64 "] NVRM: Xid (PCI:0000:%02x:00): %" PRIu32 ", %s\n",
                entry->at_ns / 1000000000, entry->at_ns / 1000 % 1000000,
                (SG_PCI_BUS_FIRST + server->ordinal) & 0xff, xid, entry->text);
    atomic_fetch_add(&server->bulletin->xids, 1);
    syscall(SYS_futex, &server->bulletin->xids, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int sg_xid_next(const struct sg_server *server, uint64_t seen, struct sg_reply *reply)
{
    uint64_t last = server->faults.xid_count;
    if (seen >= last)
        return CT_DEVICE_NOT_READY;
    uint64_t kept = last < SG_XIDS ? last : SG_XIDS, next = seen < last - kept ? last - kept + 1 : seen + 1;
    const struct sg_xid *entry = &server->faults.xids[next % SG_XIDS];
    reply->a = entry->xid;
    reply->b = entry->sequence;
    reply->c = (uint64_t)(uint32_t)entry->pid;
    return CT_DEVICE_OK;
}
