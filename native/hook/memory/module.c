/* Code on the device: estimates the memory of a module, before the node can measure it. */
#define _GNU_SOURCE
#include "hook/memory/memory.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { CODE_UNIT_BYTES = 4096 };

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + CODE_UNIT_BYTES - 1) / CODE_UNIT_BYTES * CODE_UNIT_BYTES;
}

/* A cubin contains its size. PTX, which is compiled first, is assumed to become as long as its text. For a fat binary
 * it is unknown which image will be loaded; the node measures these afterwards. */
static uint64_t image_bytes(const void *image)
{
    Elf64_Ehdr header;
    const unsigned char *first = image;
    if (!image)
        return 0;
    if (memcmp(image, ELFMAG, SELFMAG) != 0)
        return (*first >= ' ' && *first < 0x7f) || *first == '\n' ? rounded(strlen(image)) : 0;
    memcpy(&header, image, sizeof header);
    uint64_t bytes = header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
    return header.e_ident[EI_CLASS] == ELFCLASS64 && bytes < UINT64_C(1) << 40 ? rounded(bytes) : 0;
}

static uint64_t file_bytes(const char *path)
{
    struct stat status;
    int saved_errno = errno;
    uint64_t bytes = path && stat(path, &status) == 0 && S_ISREG(status.st_mode) ? rounded((uint64_t)status.st_size)
        : 0;
    errno = saved_errno;
    return bytes;
}

/* A library's code is loaded into every context that uses it, and unloaded with the library only. */
static CUresult settle_load(struct ct_memory *memory, enum ct_held held, uint64_t bytes, const void *handle,
                            CUresult result)
{
    const int is_loaded = result == CUDA_SUCCESS;
    const struct ct_holding holding = {.key = is_loaded ? *(const uintptr_t *)handle : 0, .bytes = bytes,
                                       .home = is_loaded && held == CT_HELD_MODULE ? ct_memory_home(memory) : 0,
                                       .held = (uint8_t)held, .kind = CT_LEDGER_OWN};
    return ct_memory_settle(memory, &holding, result);
}

#define LOAD_CODE(symbol, held, estimate, handle, ...)                                                                 \
    struct ct_memory *memory = ct_memory();                                                                            \
    const uint64_t bytes = memory ? (estimate) : 0;                                                                    \
    CUresult result = ct_memory_reserve(memory, CT_LEDGER_OWN, bytes);                                                 \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result;                                                                                                 \
    return settle_load(memory, held, bytes, handle, CT_NEXT(symbol)(handle, __VA_ARGS__))

CT_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    LOAD_CODE(cuModuleLoad, CT_HELD_MODULE, file_bytes(path), module, path);
}

CT_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    LOAD_CODE(cuModuleLoadData, CT_HELD_MODULE, image_bytes(image), module, image);
}

CT_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                                      void **values)
{
    LOAD_CODE(cuModuleLoadDataEx, CT_HELD_MODULE, image_bytes(image), module, image, count, options, values);
}

CT_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fat)
{
    LOAD_CODE(cuModuleLoadFatBinary, CT_HELD_MODULE, image_bytes(fat), module, fat);
}

CT_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values,
                                     unsigned int count, CUlibraryOption *library_options, void **library_values,
                                     unsigned int library_count)
{
    LOAD_CODE(cuLibraryLoadData, CT_HELD_LIBRARY, image_bytes(code), library, code, options, values, count,
              library_options,
         library_values, library_count);
}

CT_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options, void **values,
                                         unsigned int count, CUlibraryOption *library_options, void **library_values,
                                         unsigned int library_count)
{
    LOAD_CODE(cuLibraryLoadFromFile, CT_HELD_LIBRARY, file_bytes(path), library, path, options, values, count,
         library_options, library_values, library_count);
}
