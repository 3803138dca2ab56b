/* Start the program that the arguments name with vfork and exec, and end as it ends. */
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    pid_t child = vfork();
    if (child == 0) {
        execv(arguments[1], arguments + 1);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
