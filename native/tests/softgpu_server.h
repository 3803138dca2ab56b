/* A device server for C tests: a child process over a socket in a directory of its own. */
#ifndef COTENANT_TESTS_SOFTGPU_SERVER_H
#define COTENANT_TESTS_SOFTGPU_SERVER_H

#include "expect.h"
#include "softgpu/server/server.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

struct test_server {
    char directory[64], path[96];
    pid_t pid;
};

static inline void test_server_start(struct test_server *server, const char *preset)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    static const uint8_t uuid[16] = {1, 2, 3};
    strcpy(server->directory, "/tmp/softgpu-test-XXXXXX");
    EXPECT(mkdtemp(server->directory) != NULL);
    snprintf(server->path, sizeof server->path, "%s/gpu0.sock", server->directory);
    strcpy(address.sun_path, server->path);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    EXPECT(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 64) == 0);
    server->pid = fork();
    if (server->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(sg_serve(listener, ct_device_preset(preset), 0, uuid, 0));
    }
    close(listener);
    setenv("COTENANT_SOFTGPU", server->directory, 1);
}

/* Tells it to stop and expects it to end well: a sanitizer's complaint would show in its exit code. */
static inline void test_server_stop(struct test_server *server)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct sg_request request = {.kind = SG_SHUTDOWN};
    int status, line = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, server->path);
    EXPECT(connect(line, (struct sockaddr *)&address, sizeof address) == 0);
    EXPECT(send(line, &request, sizeof request, 0) == (ssize_t)sizeof request);
    EXPECT(waitpid(server->pid, &status, 0) == server->pid);
    EXPECT_EQ(status, 0);
    close(line);
    unlink(server->path);
    rmdir(server->directory);
}

/* A bare client: what the face would have, without the face. */
struct test_line {
    int socket;
    struct sg_ring *ring;
};

/* In an MPS group, or 0; one that the group refuses has no ring. */
static inline struct test_line test_line_open_in(const char *path, uint64_t group)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct sg_request request = {.kind = SG_HELLO, .a = SG_WIRE_VERSION, .b = group};
    struct sg_hello hello;
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec words = {&hello, sizeof hello};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int descriptors[2];
    struct test_line line = {.socket = socket(AF_UNIX, SOCK_SEQPACKET, 0)};
    strcpy(address.sun_path, path);
    EXPECT(connect(line.socket, (struct sockaddr *)&address, sizeof address) == 0);
    EXPECT(send(line.socket, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recvmsg(line.socket, &message, 0) == (ssize_t)sizeof hello);
    if (group && hello.result == SG_REFUSED)
        return line;
    EXPECT_EQ(hello.result, CT_DEVICE_OK);
    memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptors);
    /* The server's memory cannot be cut away under it. */
    EXPECT(ftruncate(descriptors[0], 0) < 0);
    line.ring = mmap(NULL, sizeof *line.ring, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[0], 0);
    EXPECT(line.ring != MAP_FAILED);
    close(descriptors[0]);
    close(descriptors[1]);
    return line;
}

static inline struct test_line test_line_open(const char *path)
{
    return test_line_open_in(path, 0);
}

#endif
