/* A device server for C tests: a child process with a socket in its own directory. */
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
        _exit(sg_serve(listener, ct_device_preset(preset), &(struct sg_costs){0}, 0, uuid, 0));
    }
    close(listener);
    setenv("COTENANT_SOFTGPU", server->directory, 1);
}

/* Shut the server down and check its exit code, which shows sanitizer errors. */
static inline void test_server_stop(struct test_server *server)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct sg_request request = {.kind = SG_SHUTDOWN};
    int status, fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strcpy(address.sun_path, server->path);
    EXPECT(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    EXPECT(send(fd, &request, sizeof request, 0) == (ssize_t)sizeof request);
    EXPECT(waitpid(server->pid, &status, 0) == server->pid);
    EXPECT_EQ(status, 0);
    close(fd);
    unlink(server->path);
    rmdir(server->directory);
}

/* A client that uses the protocol directly, without the driver. */
struct test_client {
    int socket;
    struct sg_ring *ring;
};

/* Connect as a member of an MPS group, or of none (0). A client that the group refuses has no ring. */
static inline struct test_client test_client_open_in(const char *path, uint64_t group)
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
    struct test_client client = {.socket = socket(AF_UNIX, SOCK_SEQPACKET, 0)};
    strcpy(address.sun_path, path);
    EXPECT(connect(client.socket, (struct sockaddr *)&address, sizeof address) == 0);
    EXPECT(send(client.socket, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request);
    EXPECT(recvmsg(client.socket, &message, 0) == (ssize_t)sizeof hello);
    if (group && hello.result == SG_REFUSED)
        return client;
    EXPECT_EQ(hello.result, CT_DEVICE_OK);
    memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptors);
    /* A client cannot truncate the server's memory. */
    EXPECT(ftruncate(descriptors[0], 0) < 0);
    client.ring = mmap(NULL, sizeof *client.ring, PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[0], 0);
    EXPECT(client.ring != MAP_FAILED);
    close(descriptors[0]);
    close(descriptors[1]);
    return client;
}

static inline struct test_client test_client_open(const char *path)
{
    return test_client_open_in(path, 0);
}

#endif
