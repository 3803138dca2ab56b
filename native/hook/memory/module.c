/* Code on the device: estimates the memory of a module, before the node can measure it. */
#define _GNU_SOURCE
#include "hook/memory/memory.h"
#include "hook/slice/fatbin.h"
#include "hook/slice/modules.h"

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
    if (strncmp(image, ELFMAG, SELFMAG) != 0)
        return !ct_slice_is_fatbin(image) && ((*first >= ' ' && *first < 0x7f) || *first == '\n')
            ? rounded(strlen(image))
            : 0;
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

/* Reserves memory for the text with variants, or for the program's own if that is too long. */
static CUresult reserve(struct ct_memory *memory, struct ct_slice_text *text, void **jit_values, uint64_t *bytes)
{
    const uint64_t longer = memory && text->text ? rounded(text->module.bytes) : 0;
    if (longer > *bytes && ct_memory_try(memory, CT_LEDGER_OWN, longer)) {
        *bytes = longer;
        return CUDA_SUCCESS;
    }
    if (longer > *bytes)
        ct_slice_refused(text, jit_values);
    return ct_memory_reserve(memory, CT_LEDGER_OWN, *bytes);
}

/* Loads the text with variants if there is one that the driver accepts, and otherwise the program's own. `values` are those
 * of the options, over which the driver writes. */
#define LOAD_CODE(held, estimate, handle, values, load_variants, load_own)                                             \
    struct ct_memory *memory = ct_memory();                                                                            \
    uint64_t bytes = memory ? (estimate) : 0;                                                                          \
    CUresult result = reserve(memory, &text, values, &bytes);                                                          \
    if (result != CUDA_SUCCESS) {                                                                                      \
        ct_slice_loaded(&text, 0, 0);                                                                                  \
        return result;                                                                                                 \
    }                                                                                                                  \
    result = text.text ? (load_variants) : CUDA_ERROR_NOT_FOUND;                                                       \
    if (result != CUDA_SUCCESS) {                                                                                      \
        ct_slice_refused(&text, values);                                                                               \
        result = (load_own);                                                                                           \
    }                                                                                                                  \
    ct_slice_loaded(&text, result == CUDA_SUCCESS ? (uintptr_t)*handle : 0, (held) == CT_HELD_LIBRARY);                \
    return settle_load(memory, held, bytes, handle, result)

CT_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    struct ct_slice_text text;
    ct_slice_open_file(&text, path, 0, NULL, NULL);
    LOAD_CODE(CT_HELD_MODULE, file_bytes(path), module, NULL, CT_NEXT(cuModuleLoadData)(module, text.text),
              CT_NEXT(cuModuleLoad)(module, path));
}

CT_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    struct ct_slice_text text;
    ct_slice_open(&text, image, 0, NULL, NULL);
    LOAD_CODE(CT_HELD_MODULE, image_bytes(image), module, NULL, CT_NEXT(cuModuleLoadData)(module, text.text),
              CT_NEXT(cuModuleLoadData)(module, image));
}

CT_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                                      void **values)
{
    struct ct_slice_text text;
    ct_slice_open(&text, image, count, options, values);
    LOAD_CODE(CT_HELD_MODULE, image_bytes(image), module, values,
              CT_NEXT(cuModuleLoadDataEx)(module, text.text, count, options, values),
              CT_NEXT(cuModuleLoadDataEx)(module, image, count, options, values));
}

CT_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fat)
{
    struct ct_slice_text text;
    ct_slice_open(&text, fat, 0, NULL, NULL);
    LOAD_CODE(CT_HELD_MODULE, image_bytes(fat), module, NULL, CT_NEXT(cuModuleLoadData)(module, text.text),
              CT_NEXT(cuModuleLoadFatBinary)(module, fat));
}

CT_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values,
                                     unsigned int count, CUlibraryOption *library_options, void **library_values,
                                     unsigned int library_count)
{
    struct ct_slice_text text;
    ct_slice_open(&text, code, count, options, values);
    text.is_kept = library_count != 0; /* with such options the driver may keep a reference to the text */
    LOAD_CODE(CT_HELD_LIBRARY, image_bytes(code), library, values,
              CT_NEXT(cuLibraryLoadData)(library, text.text, options, values, count, library_options, library_values,
                                         library_count),
              CT_NEXT(cuLibraryLoadData)(library, code, options, values, count, library_options, library_values,
                                         library_count));
}

CT_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options, void **values,
                                         unsigned int count, CUlibraryOption *library_options, void **library_values,
                                         unsigned int library_count)
{
    struct ct_slice_text text;
    ct_slice_open_file(&text, path, count, options, values);
    text.is_kept = library_count != 0;
    LOAD_CODE(CT_HELD_LIBRARY, file_bytes(path), library, values,
              CT_NEXT(cuLibraryLoadData)(library, text.text, options, values, count, library_options, library_values,
                                         library_count),
              CT_NEXT(cuLibraryLoadFromFile)(library, path, options, values, count, library_options, library_values,
                                             library_count));
}
