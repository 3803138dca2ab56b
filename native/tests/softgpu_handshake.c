/* Test of invalid hello replies: the driver rejects the server without leaking a descriptor or a mapping. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"
#include "expect.h"

#include <dirent.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct hello_case {
    uint32_t version;
    int result, descriptors;
    int is_short, is_unmappable; /* a truncated hello; a second descriptor that cannot be mapped */
};

static int listener;

static void send_hello(int fd, const struct hello_case *hello_case)
{
    struct sg_hello hello = {.result = hello_case->result, .version = hello_case->version};
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    int memory = memfd_create("test-hello", MFD_CLOEXEC), ends[2], sent[2];
    EXPECT(memory >= 0 && ftruncate(memory, sizeof(struct sg_ring)) == 0 && pipe(ends) == 0);
    sent[0] = memory;
    sent[1] = hello_case->is_unmappable ? ends[0] : memory;
    struct iovec words = {&hello, hello_case->is_short ? sizeof hello / 2 : sizeof hello};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1};
    if (hello_case->descriptors) {
        size_t bytes = (size_t)hello_case->descriptors * sizeof(int);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(bytes);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(bytes);
        memcpy(CMSG_DATA(rights), sent, bytes);
    }
    EXPECT(sendmsg(fd, &message, 0) > 0);
    close(memory);
    close(ends[0]);
    close(ends[1]);
}

static void *send_one_hello(void *argument)
{
    struct sg_request request;
    int fd = accept(listener, NULL, NULL);
    EXPECT(recv(fd, &request, sizeof request, 0) == (ssize_t)sizeof request);
    send_hello(fd, argument);
    close(fd);
    return NULL;
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    EXPECT(directory != NULL);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static int count_hello_mappings(void)
{
    char text[1024];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    EXPECT(maps != NULL);
    while (fgets(text, sizeof text, maps))
        count += strstr(text, "memfd:test-hello") != NULL;
    fclose(maps);
    return count;
}

int main(void)
{
    static const struct hello_case bad[] = {
        {SG_WIRE_VERSION + 1, CT_DEVICE_OK, 2, 0, 0}, {SG_WIRE_VERSION, CT_DEVICE_FULL, 2, 0, 0},
        {SG_WIRE_VERSION, CT_DEVICE_OK, 2, 1, 0},     {SG_WIRE_VERSION, CT_DEVICE_OK, 1, 0, 0},
        {SG_WIRE_VERSION, CT_DEVICE_OK, 0, 0, 0},     {SG_WIRE_VERSION, CT_DEVICE_OK, 2, 0, 1},
    };
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char directory[] = "/tmp/softgpu-test-XXXXXX";
    static struct sg_device device;
    EXPECT(mkdtemp(directory) != NULL);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/gpu0.sock", directory);
    listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    EXPECT(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 4) == 0);
    int before = open_descriptors();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hello_case hello_case = bad[i];
        pthread_t server;
        EXPECT_EQ(pthread_create(&server, NULL, send_one_hello, &hello_case), 0);
        EXPECT(sg_connection_open(address.sun_path, 0, &device) < 0);
        pthread_join(server, NULL);
        EXPECT_EQ(open_descriptors(), before);
        EXPECT_EQ(count_hello_mappings(), 0);
    }
    close(listener);
    unlink(address.sun_path);
    rmdir(directory);
    return 0;
}
