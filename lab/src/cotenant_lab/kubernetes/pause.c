// The first process of a pod's sandbox and of a node's namespaces: it waits, and reaps the processes whose parent has ended.

#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    for (;;) {
        int received = 0;
        sigwait(&signals, &received);
        if (received != SIGCHLD)
            return 0;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
}
