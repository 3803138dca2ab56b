/* Refuses a container whose image cannot load the hook. A container runtime runs it as an OCI hook (createRuntime) before
 * the program of the container: its standard input is the state of the container, and its standard error becomes part of
 * the reason why the container was not started.
 *
 * The hook is loaded through /etc/ld.so.preload, which only glibc reads; a glibc that is too old ignores the hook with a
 * warning. Both would leave the program without limits, silently. The argument is the newest symbol version that the hook
 * needs, such as GLIBC_2.34. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATE_MAX_BYTES = 1 << 20, CONFIG_MAX_BYTES = 16 << 20, REFUSED = 1 };

static const char *const LIBRARIES[] = {
    "/lib/x86_64-linux-gnu/libc.so.6",  "/usr/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6",
    "/usr/lib/aarch64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib64/libc.so.6", "/lib/libc.so.6",
    "/usr/lib/libc.so.6",
};

static int refuse(const char *reason, const char *detail)
{
    fprintf(stderr, "cotenant: %s%s%s\n", reason, *detail ? ": " : "", detail);
    return REFUSED;
}

/* Reads a descriptor to its end, with a zero byte after it; returns NULL if it is larger than the limit. */
static char *read_all(int descriptor, size_t limit)
{
    size_t count = 0, capacity = 64 << 10;
    char *text = malloc(capacity + 1);
    while (text) {
        const ssize_t added = read(descriptor, text + count, capacity - count);
        if (added < 0 && errno == EINTR)
            continue;
        if (added < 0)
            break;
        count += (size_t)added;
        text[count] = 0;
        if (!added)
            return text;
        if (count < capacity)
            continue;
        char *larger = capacity < limit ? realloc(text, 2 * capacity + 1) : NULL;
        if (!larger)
            break;
        text = larger;
        capacity *= 2;
    }
    free(text);
    return NULL;
}

static const char *skip_spaces(const char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

/* Returns what follows a key and its colon; NULL if the text has no such key. Quotes within JSON texts are escaped, so a
 * quoted word before a colon is a key. */
static const char *value_of(const char *json, const char *key)
{
    char quoted[32];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    for (const char *found = json; (found = strstr(found, quoted)); found++) {
        const char *value = skip_spaces(found + strlen(quoted));
        if (*value == ':' && (found == json || found[-1] != '\\'))
            return skip_spaces(value + 1);
    }
    return NULL;
}

/* Copies the text value of a key; returns 0 if it has none, or one with escapes. */
static int text_of(const char *json, const char *key, char *into, size_t capacity)
{
    const char *value = json ? value_of(json, key) : NULL;
    const size_t length = value && *value == '"' ? strcspn(value + 1, "\"\\") : 0;
    if (!length || value[1 + length] != '"' || length >= capacity)
        return 0;
    memcpy(into, value + 1, length);
    into[length] = 0;
    return 1;
}

/* Makes the root file system of the container the current directory; returns 0 if it cannot be found. */
static int enter_root(void)
{
    char bundle[PATH_MAX], root[PATH_MAX];
    char *state = read_all(STDIN_FILENO, STATE_MAX_BYTES);
    const int has_bundle = text_of(state, "bundle", bundle, sizeof bundle);
    free(state);
    if (!has_bundle || chdir(bundle) < 0)
        return 0;
    const int descriptor = open("config.json", O_RDONLY | O_CLOEXEC);
    char *config = descriptor >= 0 ? read_all(descriptor, CONFIG_MAX_BYTES) : NULL;
    if (descriptor >= 0)
        close(descriptor);
    const char *section = config ? value_of(config, "root") : NULL;
    const int has_root = section && *section == '{' && text_of(section, "path", root, sizeof root);
    free(config);
    return has_root && chdir(root) == 0;
}

/* Returns whether a file contains a text with its terminating zero. */
static int contains(int descriptor, const char *text)
{
    struct stat status;
    if (fstat(descriptor, &status) < 0 || !S_ISREG(status.st_mode) || !status.st_size)
        return 0;
    void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED)
        return 0;
    const int is_found = memmem(bytes, (size_t)status.st_size, text, strlen(text) + 1) != NULL;
    munmap(bytes, (size_t)status.st_size);
    return is_found;
}

int main(int count, char **arguments)
{
    const char *needed = count > 1 ? arguments[1] : "GLIBC_2.17";
    int has_glibc = 0;
    if (!enter_root())
        return refuse("the root file system of the container cannot be found", strerror(errno));
    /* Links in the image must not lead out of it. */
    if (chroot(".") < 0 || chdir("/") < 0)
        return refuse("the image cannot be examined", strerror(errno));
    for (size_t i = 0; i < sizeof LIBRARIES / sizeof LIBRARIES[0]; i++) {
        const int descriptor = open(LIBRARIES[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (descriptor < 0)
            continue;
        const int is_glibc = contains(descriptor, "GLIBC_PRIVATE"), is_new = contains(descriptor, needed);
        close(descriptor);
        if (is_glibc && is_new)
            return 0;
        has_glibc |= is_glibc;
    }
    if (has_glibc)
        return refuse("the glibc of this image is too old for the hook of cotenant, which needs", needed);
    return refuse("this image has no glibc (it may use musl, as Alpine does, or have no C library), so the hook of "
                  "cotenant cannot be loaded; use an image with glibc, such as Debian, Ubuntu or Red Hat UBI",
                  "");
}
