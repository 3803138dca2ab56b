/* The trace: the model's records of recent ops, sent on request. */
#define _GNU_SOURCE
#include "softgpu/server/server.h"

#include <sys/mman.h>
#include <unistd.h>

void sg_trace_start(struct sg_server *server)
{
    ct_device_record_kinds(server->device, ((1u << CT_OP_KINDS) - 1) | CT_RECORD_TURNS);
}

/* Copy the records to a memory file, so that the requester can read it while recording continues. */
static int copy_records(struct sg_server *server, uint64_t from, struct sg_reply *reply)
{
    int file = memfd_create("softgpu-trace", MFD_CLOEXEC);
    const struct ct_device_record *records;
    size_t count = ct_device_records(server->device, from, &records, &reply->b);
    reply->c = reply->b;
    while (file >= 0 && count) {
        ssize_t bytes = (ssize_t)(count * sizeof *records);
        if (write(file, records, (size_t)bytes) != bytes) {
            close(file);
            return -1;
        }
        reply->a += (uint64_t)bytes;
        count = ct_device_records(server->device, reply->c + count, &records, &reply->c);
    }
    return file;
}

int sg_trace_send(struct sg_server *server, int index, uint64_t from)
{
    struct sg_reply reply = {0};
    sg_pump(server, sg_now_ns());
    int file = copy_records(server, from, &reply);
    int failed = file < 0 || sg_send_reply_with_fds(server->clients[index], &reply, sizeof reply, &file, 1) < 0;
    if (file >= 0)
        close(file);
    return failed ? -1 : 0;
}
