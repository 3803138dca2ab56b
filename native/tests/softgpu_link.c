/* A server that greets badly: the face gives up on it without keeping a descriptor or a mapping. */
#define _GNU_SOURCE
#include "softgpu/face.h"
#include "expect.h"

#include <dirent.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct greeting {
    uint32_t version;
    int result, descriptors;
    int is_short, is_unmappable; /* half a hello; a second descriptor that is no memory */
};

static int listener;

static void send_hello(int line, const struct greeting *greeting)
{
    struct sg_hello hello = {.result = greeting->result, .version = greeting->version};
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    int memory = memfd_create("greeting", MFD_CLOEXEC), ends[2], sent[2];
    EXPECT(memory >= 0 && ftruncate(memory, sizeof(struct sg_ring)) == 0 && pipe(ends) == 0);
    sent[0] = memory;
    sent[1] = greeting->is_unmappable ? ends[0] : memory;
    struct iovec words = {&hello, greeting->is_short ? sizeof hello / 2 : sizeof hello};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1};
    if (greeting->descriptors) {
        size_t bytes = (size_t)greeting->descriptors * sizeof(int);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(bytes);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(bytes);
        memcpy(CMSG_DATA(rights), sent, bytes);
    }
    EXPECT(sendmsg(line, &message, 0) > 0);
    close(memory);
    close(ends[0]);
    close(ends[1]);
}

static void *greet_one(void *argument)
{
    struct sg_request request;
    int line = accept(listener, NULL, NULL);
    EXPECT(recv(line, &request, sizeof request, 0) == (ssize_t)sizeof request);
    send_hello(line, argument);
    close(line);
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

static int greeting_mappings(void)
{
    char text[1024];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    EXPECT(maps != NULL);
    while (fgets(text, sizeof text, maps))
        count += strstr(text, "memfd:greeting") != NULL;
    fclose(maps);
    return count;
}

int main(void)
{
    static const struct greeting bad[] = {
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
        struct greeting greeting = bad[i];
        pthread_t server;
        EXPECT_EQ(pthread_create(&server, NULL, greet_one, &greeting), 0);
        EXPECT(sg_link_open(address.sun_path, 0, &device) < 0);
        pthread_join(server, NULL);
        EXPECT_EQ(open_descriptors(), before);
        EXPECT_EQ(greeting_mappings(), 0);
    }
    close(listener);
    unlink(address.sun_path);
    rmdir(directory);
    return 0;
}
