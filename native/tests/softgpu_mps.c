/* Test of cuInit with arbitrary replies of a control daemon: refusals are passed on, invalid replies are errors, and a
 * missing daemon is ignored. */
#include "softgpu_server.h"

#include "softgpu/abi/cuda.h"

CUresult cuInit(unsigned flags);

struct reply {
    const char *text; /* NULL: close the connection */
    CUresult expected;
};

static const struct reply replies[] = {
    {NULL, CUDA_ERROR_MPS_CONNECTION_FAILED},
    {"nonsense", CUDA_ERROR_MPS_CONNECTION_FAILED},
    {"welcom", CUDA_ERROR_MPS_CONNECTION_FAILED},
    {"refused", CUDA_ERROR_MPS_CONNECTION_FAILED},
    {"refused -7\n", CUDA_ERROR_MPS_CONNECTION_FAILED},
    {"refused 0\n", CUDA_ERROR_MPS_CONNECTION_FAILED},
    {"refused 807\n", CUDA_ERROR_MPS_SERVER_NOT_READY},
    {"welcome 1\n", CUDA_ERROR_NO_DEVICE},
    {"welcome 1\ngpu -1 0\ngpu 99 4\ngpu 2147483647 1\n\n\ngpu", CUDA_ERROR_NO_DEVICE},
    {"welcome 1\ngpu 0 4294967295\n", CUDA_ERROR_MPS_CONNECTION_FAILED}, /* no such group */
    {"welcome 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\n"
     "gpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\ngpu 9 1\n",
     CUDA_ERROR_NO_DEVICE},
};
enum { REPLIES = sizeof replies / sizeof replies[0] };

static void run_daemon(int listener)
{
    char received[4096];
    for (size_t i = 0; i < REPLIES; i++) {
        int fd = accept(listener, NULL, NULL);
        EXPECT(recv(fd, received, sizeof received, 0) > 0);
        EXPECT(strncmp(received, "client\n", 7) == 0);
        if (replies[i].text)
            EXPECT(send(fd, replies[i].text, strlen(replies[i].text), 0) > 0);
        close(fd);
    }
    _exit(0);
}

int main(void)
{
    struct test_server server;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int status;
    test_server_start(&server, "t4");
    snprintf(address.sun_path, sizeof address.sun_path, "%s/control", server.directory);
    setenv("CUDA_MPS_PIPE_DIRECTORY", server.directory, 1);
    setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "a\nb", 1);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    EXPECT(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 8) == 0);
    pid_t daemon = fork();
    if (daemon == 0)
        run_daemon(listener);
    for (size_t i = 0; i < REPLIES; i++)
        EXPECT_EQ(cuInit(0), replies[i].expected);
    EXPECT(waitpid(daemon, &status, 0) == daemon);
    EXPECT_EQ(status, 0);
    close(listener);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS); /* a socket without a daemon is ignored */
    unlink(address.sun_path);
    test_server_stop(&server);
    return 0;
}
