/* One frame per record: the first part of its name, and its descriptor. The receiver completes the name. */
#define _GNU_SOURCE
#include "hook/entry/record_socket.h"

#include "hook/entry/node_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, NAME_BYTES = 32 };

static const char SOCKET_NAME[] = "records.sock";

static int connect_in(const char *directory, struct ct_owned_file *connection)
{
    char path[PATH_BYTES];
    const int length = snprintf(path, sizeof path, "%s/%s", directory, SOCKET_NAME);
    if (length < 0 || (size_t)length >= sizeof path)
        return ENAMETOOLONG;
    const int error = ct_node_connect(connection, path);
    if (error != ENAMETOOLONG)
        return error;
    /* The address of a socket is shorter than a path may be. */
    const int opened = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0)
        return errno;
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", opened, SOCKET_NAME);
    const int second_error = ct_node_connect(connection, path);
    close(opened);
    return second_error;
}

int ct_record_send(const char *directory, int descriptor)
{
    unsigned char frame[CT_FRAME_LENGTH_BYTES + NAME_BYTES];
    struct ct_owned_file connection;
    int cancelled;
    const int length = snprintf((char *)frame + CT_FRAME_LENGTH_BYTES, NAME_BYTES, "record-%ld", (long)getpid());
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
    int error = connect_in(directory, &connection);
    if (!error) {
        error = ct_node_send(&connection, frame, CT_FRAME_LENGTH_BYTES + (size_t)length, descriptor, 0);
        ct_owned_file_close(&connection);
    }
    pthread_setcancelstate(cancelled, &cancelled);
    return !error;
}
