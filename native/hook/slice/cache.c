/* A file of the cache: a header, the kernels, and what the rewriting appended to the text. Its name is a hash of the text.
 * A file that is damaged, or of another version, is ignored and replaced. */
#define _GNU_SOURCE
#include "hook/slice/cache.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 512 * 1024 * 1024, KERNELS_MAX = 1 << 16 };

static const uint64_t MAGIC = UINT64_C(0x3152505843544f43); /* "COTCXPR1" in little-endian bytes */

struct header {
    uint64_t magic, version; /* version: a hash of the sources that rewrite texts */
    uint64_t hash[2], text_bytes; /* of the program's text */
    uint64_t kernel_count, appended_bytes;
    uint64_t checksum[2]; /* of what follows */
};

struct file_kernel {
    uint32_t reason, parameter_count, parameter_bytes, name_bytes;
    char variant[sizeof ((struct ct_ptx_kernel *)0)->variant];
};

void ct_slice_hash(const void *content, size_t count, uint64_t hash[2])
{
    const char *bytes = content;
    hash[0] = UINT64_C(0xcbf29ce484222325) ^ count;
    hash[1] = UINT64_C(0x9e3779b97f4a7c15) + count;
    for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, count - at < sizeof word ? count - at : sizeof word);
        hash[0] = (hash[0] ^ word) * UINT64_C(0x100000001b3);
        hash[0] ^= hash[0] >> 29;
        hash[1] = (hash[1] + word) * UINT64_C(0xd6e8feb86659fd93);
        hash[1] ^= hash[1] >> 32;
    }
}

/* ---- the directory ------------------------------------------------------------------------------------------------ */

static int is_own_directory(int descriptor)
{
    struct stat status;
    return fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
           !(status.st_mode & (S_IWGRP | S_IWOTH));
}

/* Opens a directory within another one, and creates it if it is missing; closes the other one. */
static int open_within(int parent, const char *name)
{
    if (parent < 0)
        return -1;
    mkdirat(parent, name, S_IRWXU);
    const int descriptor = openat(parent, name, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    close(parent);
    return descriptor;
}

static int open_root(const char *variable)
{
    const char *path = secure_getenv(variable);
    return path && *path == '/' ? open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC) : -1;
}

static int open_directory(void)
{
    int directory = open_root("COTENANT_CACHE");
    if (directory < 0)
        directory = open_within(open_root("XDG_CACHE_HOME"), "cotenant");
    if (directory < 0)
        directory = open_within(open_within(open_root("HOME"), ".cache"), "cotenant");
    directory = open_within(directory, "ptx");
    if (directory >= 0 && !is_own_directory(directory)) {
        close(directory);
        return -1;
    }
    return directory;
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

/* Returns the content of the file; NULL: there is none. */
static char *read_file(int directory, const char *name, size_t *bytes)
{
    struct stat status;
    char *content = NULL;
    const int descriptor = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0)
        return NULL;
    *bytes = 0;
    if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
        status.st_size >= (off_t)sizeof(struct header) && status.st_size < FILE_BYTES_MAX)
        content = malloc((size_t)status.st_size);
    while (content && *bytes < (size_t)status.st_size) {
        const ssize_t got = read(descriptor, content + *bytes, (size_t)status.st_size - *bytes);
        if (got <= 0)
            break;
        *bytes += (size_t)got;
    }
    close(descriptor);
    if (content && *bytes < (size_t)status.st_size) {
        free(content);
        return NULL;
    }
    return content;
}

/* Reads the kernels; returns the bytes that they take, or 0. */
static size_t read_kernels(const char *at, size_t bytes, size_t count, struct ct_ptx_module *module)
{
    size_t taken = 0;
    module->kernels = calloc(count + 1, sizeof *module->kernels);
    while (module->kernels && module->count < count) {
        struct ct_ptx_kernel *kernel = &module->kernels[module->count];
        struct file_kernel read;
        if (bytes - taken < sizeof read)
            return 0;
        memcpy(&read, at + taken, sizeof read);
        taken += sizeof read;
        if (bytes - taken < read.name_bytes || read.reason >= CT_PTX_REASONS ||
            !memchr(read.variant, 0, sizeof read.variant) || !(kernel->name = ct_ptx_copy(at + taken, read.name_bytes)))
            return 0;
        taken += read.name_bytes;
        kernel->reason = read.reason;
        kernel->parameter_count = read.parameter_count;
        kernel->parameter_bytes = read.parameter_bytes;
        memcpy(kernel->variant, read.variant, sizeof read.variant);
        module->count++;
    }
    return module->kernels ? taken : 0;
}

/* Returns whether the file describes this text. */
static int parse_file(const char *file, size_t file_bytes, const struct header *expected, const char *text,
                      struct ct_ptx_module *module)
{
    struct header header;
    uint64_t checksum[2];
    memcpy(&header, file, sizeof header);
    file += sizeof header;
    file_bytes -= sizeof header;
    ct_slice_hash(file, file_bytes, checksum);
    if (header.magic != expected->magic || header.version != expected->version ||
        memcmp(header.hash, expected->hash, sizeof header.hash) != 0 || header.text_bytes != expected->text_bytes ||
        header.kernel_count > KERNELS_MAX || header.appended_bytes > file_bytes ||
        memcmp(header.checksum, checksum, sizeof checksum) != 0)
        return 0;
    const size_t taken = read_kernels(file, file_bytes, header.kernel_count, module);
    if ((!taken && header.kernel_count) || file_bytes - taken != header.appended_bytes)
        return 0;
    if (!header.appended_bytes)
        return 1;
    module->bytes = header.text_bytes + header.appended_bytes;
    module->text = malloc(module->bytes + 1);
    if (!module->text)
        return 0;
    memcpy(module->text, text, header.text_bytes);
    memcpy(module->text + header.text_bytes, file + taken, header.appended_bytes);
    module->text[module->bytes] = 0;
    return 1;
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

/* Returns the content of the file for the module. */
static char *format_file(struct header *header, const struct ct_ptx_module *module, size_t *bytes)
{
    char *content = NULL;
    FILE *stream = open_memstream(&content, bytes);
    if (!stream)
        return NULL;
    fwrite(header, sizeof *header, 1, stream);
    for (size_t i = 0; i < module->count; i++) {
        const struct ct_ptx_kernel *kernel = &module->kernels[i];
        struct file_kernel written = {.reason = kernel->reason, .parameter_count = kernel->parameter_count,
                                      .parameter_bytes = kernel->parameter_bytes,
                                      .name_bytes = (uint32_t)strlen(kernel->name)};
        memcpy(written.variant, kernel->variant, sizeof written.variant);
        fwrite(&written, sizeof written, 1, stream);
        fwrite(kernel->name, written.name_bytes, 1, stream);
    }
    if (module->text)
        fwrite(module->text + header->text_bytes, header->appended_bytes, 1, stream);
    if (fclose(stream) != 0) {
        free(content);
        return NULL;
    }
    ct_slice_hash(content + sizeof *header, *bytes - sizeof *header, header->checksum);
    memcpy(content, header, sizeof *header);
    return content;
}

/* A reader finds the whole file or none. */
static void write_file(int directory, const char *name, const char *content, size_t bytes)
{
    char temporary[NAME_MAX];
    snprintf(temporary, sizeof temporary, ".%s-%ld", name, (long)getpid());
    unlinkat(directory, temporary, 0); /* of an earlier process of this number, which died */
    const int descriptor = openat(directory, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                                  S_IRUSR | S_IWUSR);
    size_t written = 0;
    if (descriptor < 0)
        return;
    while (written < bytes) {
        const ssize_t put = write(descriptor, content + written, bytes - written);
        if (put <= 0)
            break;
        written += (size_t)put;
    }
    if (close(descriptor) != 0 || written < bytes || renameat(directory, temporary, directory, name) != 0)
        unlinkat(directory, temporary, 0);
}

int ct_slice_cached(const char *text, size_t bytes, struct ct_ptx_module *module)
{
    struct header header = {.magic = MAGIC, .version = CT_PTX_SOURCES, .text_bytes = bytes};
    char name[48];
    size_t file_bytes = 0;
    *module = (struct ct_ptx_module){0};
    ct_slice_hash(text, bytes, header.hash);
    snprintf(name, sizeof name, "%016llx%016llx", (unsigned long long)header.hash[0],
             (unsigned long long)header.hash[1]);
    const int directory = open_directory();
    char *file = directory < 0 ? NULL : read_file(directory, name, &file_bytes);
    int is_done = file && parse_file(file, file_bytes, &header, text, module);
    free(file);
    if (!is_done) {
        ct_ptx_free(module);
        is_done = ct_ptx_rewrite(text, bytes, module);
        header.kernel_count = module->count;
        header.appended_bytes = module->text ? module->bytes - bytes : 0;
        char *content = is_done && module->count && directory >= 0 ? format_file(&header, module, &file_bytes) : NULL;
        if (content)
            write_file(directory, name, content, file_bytes);
        free(content);
    }
    if (directory >= 0)
        close(directory);
    return is_done;
}
