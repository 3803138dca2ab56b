/* Creates sealed memory files. */
#define _GNU_SOURCE
#include "hook/entry/sealed_memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

int ct_sealed_memory_make(const char *name, size_t bytes, size_t allocated, void **memory)
{
    int descriptor = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0 && errno == EACCES) /* the system permits only files that cannot be executed */
        descriptor = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (descriptor < 0)
        return -1;
    *memory = MAP_FAILED;
    if (ftruncate(descriptor, (off_t)bytes) == 0 && fallocate(descriptor, 0, 0, (off_t)allocated) == 0)
        *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (*memory != MAP_FAILED && madvise(*memory, bytes, MADV_DONTFORK) == 0 &&
        fcntl(descriptor, F_ADD_SEALS, CT_ALL_SEALS) == 0)
        return descriptor;
    if (*memory != MAP_FAILED)
        munmap(*memory, bytes);
    close(descriptor);
    return -1;
}
