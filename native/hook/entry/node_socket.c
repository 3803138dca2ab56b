/* Sends and receives frames with descriptors over a Unix socket. */
#define _GNU_SOURCE
#include "hook/entry/node_socket.h"

#include "hook/timing/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_DESCRIPTOR = 100, NS_PER_MS = 1000 * 1000, NS_PER_S = 1000 * 1000 * 1000 };

void ct_node_sleep(uint64_t ns)
{
    const struct timespec duration = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    syscall(SYS_nanosleep, &duration, NULL);
}

/* ---- descriptors -------------------------------------------------------------------------------------------------- */

int ct_owned_file_take(struct ct_owned_file *file, int descriptor)
{
    struct stat status;
    const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);
    if (moved >= 0) { /* otherwise the process may not have such a number */
        close(descriptor);
        descriptor = moved;
    }
    file->descriptor = -1;
    if (fstat(descriptor, &status) < 0) {
        close(descriptor);
        return 0;
    }
    *file = (struct ct_owned_file){descriptor, status.st_dev, status.st_ino};
    return 1;
}

int ct_owned_file_is_valid(const struct ct_owned_file *file)
{
    struct stat status;
    return file->descriptor >= 0 && fstat(file->descriptor, &status) == 0 && status.st_dev == file->device &&
           status.st_ino == file->inode;
}

void ct_owned_file_close(struct ct_owned_file *file)
{
    if (ct_owned_file_is_valid(file))
        close(file->descriptor);
    file->descriptor = -1;
}

void ct_frame_close(struct ct_frame *frame)
{
    for (int i = 0; i < frame->descriptor_count; i++)
        if (frame->descriptors[i] >= 0)
            close(frame->descriptors[i]);
    frame->descriptor_count = 0;
}

/* ---- the connection ----------------------------------------------------------------------------------------------- */

int ct_node_connect(struct ct_owned_file *owned, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    owned->descriptor = -1;
    if (strlen(path) >= sizeof address.sun_path)
        return ENAMETOOLONG;
    strcpy(address.sun_path, path);
    int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0)
        return errno;
    if (connect(descriptor, (const struct sockaddr *)&address, sizeof address) < 0) {
        const int error = errno;
        close(descriptor);
        return error;
    }
    return ct_owned_file_take(owned, descriptor) ? 0 : EBADF;
}

/* Waits until the socket is ready. */
static int wait_for(const struct ct_owned_file *owned, short events, uint64_t until_ns)
{
    struct pollfd waiting = {.fd = owned->descriptor, .events = events};
    const uint64_t now_ns = ct_clock_monotonic_ns();
    int timeout_ms = -1;
    if (until_ns != CT_NODE_NO_LIMIT) {
        if (now_ns >= until_ns)
            return ETIMEDOUT;
        const uint64_t left_ms = (until_ns - now_ns) / NS_PER_MS + 1;
        timeout_ms = left_ms > INT_MAX ? INT_MAX : (int)left_ms;
    }
    const int count = poll(&waiting, 1, timeout_ms);
    return count < 0 && errno != EINTR ? errno : 0;
}

/* Returns whether a call is to be repeated once the socket is ready. */
static int is_temporary(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* Sends a part of a frame; returns how much, or a negative errno value. */
static ssize_t send_part(const struct ct_owned_file *owned, struct iovec *part, int descriptor)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.space = {0}};
    struct msghdr message = {.msg_iov = part, .msg_iovlen = 1};
    if (descriptor >= 0) {
        control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                          .cmsg_len = CMSG_LEN(sizeof descriptor)};
        memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    if (!ct_owned_file_is_valid(owned))
        return -EBADF;
    const ssize_t sent = sendmsg(owned->descriptor, &message, MSG_NOSIGNAL);
    return sent < 0 ? -errno : sent;
}

int ct_node_send(const struct ct_owned_file *owned, unsigned char *bytes, size_t count, int descriptor,
                 uint64_t until_ns)
{
    const size_t length = count - CT_FRAME_LENGTH_BYTES;
    for (int i = 0; i < CT_FRAME_LENGTH_BYTES; i++)
        bytes[i] = (unsigned char)(length >> 8 * i);
    while (count) {
        struct iovec part = {bytes, count};
        const ssize_t sent = send_part(owned, &part, descriptor);
        if (sent < 0 && !is_temporary((int)-sent))
            return (int)-sent;
        if (sent > 0) {
            bytes += sent;
            count -= (size_t)sent;
            descriptor = -1; /* it accompanies the first bytes */
        } else {
            const int error = wait_for(owned, POLLOUT, until_ns);
            if (error)
                return error;
        }
    }
    return 0;
}

/* Adds the received descriptors to the frame; closes those for which it has no space. */
static int take_descriptors(struct msghdr *message, struct ct_frame *frame)
{
    int is_complete = !(message->msg_flags & MSG_CTRUNC);
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int descriptor;
            memcpy(&descriptor, CMSG_DATA(header) + i * sizeof descriptor, sizeof descriptor);
            if (frame->descriptor_count < CT_FRAME_DESCRIPTORS) {
                frame->descriptors[frame->descriptor_count++] = descriptor;
            } else {
                close(descriptor);
                is_complete = 0;
            }
        }
    }
    return is_complete ? 0 : EPROTO;
}

/* Reads no more than asked for: then the descriptors that arrive with these bytes belong to this frame. */
static int receive_all(const struct ct_owned_file *owned, unsigned char *bytes, size_t count, struct ct_frame *frame,
                       uint64_t until_ns)
{
    while (count) {
        union {
            struct cmsghdr header;
            char space[CMSG_SPACE(CT_FRAME_DESCRIPTORS * sizeof(int))];
        } control;
        struct iovec part = {bytes, count};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                                 .msg_controllen = sizeof control};
        if (!ct_owned_file_is_valid(owned))
            return EBADF;
        const ssize_t received = recvmsg(owned->descriptor, &message, MSG_CMSG_CLOEXEC);
        int error = received < 0 ? errno : received == 0 ? EPIPE : take_descriptors(&message, frame);
        if (is_temporary(error))
            error = wait_for(owned, POLLIN, until_ns);
        if (error)
            return error;
        if (received > 0) {
            bytes += received;
            count -= (size_t)received;
        }
    }
    return 0;
}

int ct_node_receive(const struct ct_owned_file *owned, struct ct_frame *frame, uint64_t until_ns)
{
    unsigned char length[CT_FRAME_LENGTH_BYTES];
    frame->count = 0;
    frame->descriptor_count = 0;
    const int error = receive_all(owned, length, sizeof length, frame, until_ns);
    if (error)
        return error;
    frame->count = (size_t)length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16 | (size_t)length[3] << 24;
    if (!frame->count || frame->count > sizeof frame->bytes)
        return EPROTO;
    return receive_all(owned, frame->bytes, frame->count, frame, until_ns);
}
