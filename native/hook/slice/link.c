/* Linking: the texts that an offline tenant gives to the driver's linker get variants, and the image that results is
 * recognized by its content when it is loaded, because programs load a copy of it. */
#define _GNU_SOURCE
#include "hook/slice/link.h"

#include "hook/entry/session.h"
#include "hook/slice/cache.h"
#include "hook/slice/modules.h"

#include <elf.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES_MAX = 1024, INPUT_PTX = 1, INPUT_FATBINARY = 2, IMAGE_BYTES_MAX = 1 << 30 };

/* A linker, or an image of it: its kernels. */
struct linked {
    CUlinkState state;           /* of a linker; NULL: an image */
    uint64_t hash[2];            /* of an image */
    struct ct_ptx_module module; /* without a text */
    struct linked *next;
};

static struct {
    pthread_mutex_t lock;
    struct linked *first;
    size_t images;
    _Atomic int has_images;
} links = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void free_linked(struct linked *linked)
{
    if (linked)
        ct_ptx_free(&linked->module);
    free(linked);
}

/* Takes the linker out of the list; NULL: it is not there. Called with the lock held. */
static struct linked *take_linker(CUlinkState state)
{
    for (struct linked **at = &links.first; *at; at = &(*at)->next)
        if (state && (*at)->state == state) {
            struct linked *taken = *at;
            *at = taken->next;
            return taken;
        }
    return NULL;
}

/* ---- images ------------------------------------------------------------------------------------------------------- */

/* Returns how many bytes of an image its own header says that it has; 0: it does not. */
static size_t stated_bytes(const void *image)
{
    Elf64_Ehdr header;
    const unsigned char *first = image;
    if (*first >= ' ' && *first < 0x7f)
        return strlen(image); /* of a fat binary, which is none that was linked, at least its first bytes */
    if (strncmp(image, ELFMAG, SELFMAG) != 0)
        return 0;
    memcpy(&header, image, sizeof header);
    const uint64_t bytes = header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
    return header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_shoff < IMAGE_BYTES_MAX ? bytes : 0;
}

static struct linked *find_image(const uint64_t hash[2])
{
    struct linked *linked = links.first;
    while (linked && (linked->state || memcmp(linked->hash, hash, sizeof linked->hash) != 0))
        linked = linked->next;
    return linked;
}

/* Removes the oldest image, which is the last one. Called with the lock held. */
static void drop_oldest(void)
{
    struct linked **oldest = NULL;
    for (struct linked **at = &links.first; *at; at = &(*at)->next)
        oldest = (*at)->state ? oldest : at;
    if (oldest) {
        struct linked *dropped = *oldest;
        *oldest = dropped->next;
        links.images--;
        free_linked(dropped);
    }
}

/* Adds copies of the kernels. Returns 0 if there is no memory for them; then some may have been added. */
static int add_kernels(struct ct_ptx_module *to, const struct ct_ptx_module *from)
{
    struct ct_ptx_kernel *larger = realloc(to->kernels, (to->count + from->count + 1) * sizeof *larger);
    if (!larger)
        return 0;
    to->kernels = larger;
    for (size_t i = 0; i < from->count; i++) {
        larger[to->count] = from->kernels[i];
        larger[to->count].name = ct_ptx_copy(from->kernels[i].name, strlen(from->kernels[i].name));
        if (!larger[to->count].name)
            return 0;
        to->count++;
    }
    return 1;
}

int ct_slice_linked(const void *image, struct ct_ptx_module *module)
{
    uint64_t hash[2];
    *module = (struct ct_ptx_module){0};
    const size_t bytes = load_acquire(&links.has_images) ? stated_bytes(image) : 0;
    if (!bytes)
        return 0;
    ct_slice_hash(image, bytes, hash);
    pthread_mutex_lock(&links.lock);
    const struct linked *found = find_image(hash);
    const int is_known = found && add_kernels(module, &found->module);
    pthread_mutex_unlock(&links.lock);
    if (!is_known)
        ct_ptx_free(module);
    return is_known;
}

/* ---- linkers ------------------------------------------------------------------------------------------------------ */

static void add_linker(CUlinkState state)
{
    struct linked *made = calloc(1, sizeof *made);
    pthread_mutex_lock(&links.lock);
    free_linked(take_linker(state)); /* of another linker, whose handle the driver uses again */
    if (made) {
        made->state = state;
        made->next = links.first;
        links.first = made;
    }
    pthread_mutex_unlock(&links.lock);
}

static int is_linker(CUlinkState state)
{
    pthread_mutex_lock(&links.lock);
    const struct linked *linked = links.first;
    while (linked && linked->state != state)
        linked = linked->next;
    pthread_mutex_unlock(&links.lock);
    return state && linked != NULL;
}

/* An input with variants, and the values of its options, over which the driver may write. */
struct input {
    struct ct_ptx_module module;
    void *values[CT_SLICE_OPTIONS_MAX];
    unsigned count;
};

/* Prepares the text with variants of an input. Returns 0 if the program's own input is to be linked. */
static int open_input(struct input *input, CUlinkState state, CUjitInputType type, const void *data, size_t bytes,
                      unsigned count, const CUjit_option *options, void *const *values)
{
    const int saved_errno = errno;
    char *text = NULL;
    input->module = (struct ct_ptx_module){0};
    if (data && bytes && is_linker(state) && ct_slice_permits(count, options, values)) {
        input->count = count;
        if (count)
            memcpy(input->values, values, count * sizeof *values);
        if (type == INPUT_PTX)
            text = ct_ptx_copy(data, strnlen(data, bytes));
        else if (type == INPUT_FATBINARY && bytes >= sizeof(uint32_t))
            text = ct_slice_fatbin_code(data, bytes);
    }
    if (text && (!ct_slice_cached(text, strlen(text), &input->module) || !input->module.text))
        ct_ptx_free(&input->module);
    free(text);
    errno = saved_errno;
    return input->module.text != NULL;
}

static void close_input(struct input *input, CUlinkState state, void **values, CUresult result)
{
    if (result != CUDA_SUCCESS && input->count)
        memcpy(values, input->values, input->count * sizeof *values);
    pthread_mutex_lock(&links.lock);
    struct linked *linked = result == CUDA_SUCCESS ? take_linker(state) : NULL;
    if (linked && add_kernels(&linked->module, &input->module)) {
        linked->next = links.first;
        links.first = linked;
    } else {
        free_linked(linked); /* the kernels of its image are launched whole */
    }
    pthread_mutex_unlock(&links.lock);
    ct_ptx_free(&input->module);
}

/* Keeps the kernels of a linker for its image. */
static void complete(CUlinkState state, const void *image, size_t bytes)
{
    const size_t stated = image ? stated_bytes(image) : 0;
    pthread_mutex_lock(&links.lock);
    struct linked *linked = take_linker(state);
    if (linked) {
        linked->next = links.first;
        links.first = linked;
    }
    uint64_t hash[2] = {0};
    struct linked *made = NULL;
    if (linked && linked->module.count && stated && stated <= bytes) {
        ct_slice_hash(image, stated, hash);
        made = find_image(hash) ? NULL : calloc(1, sizeof *made);
    }
    if (made && add_kernels(&made->module, &linked->module)) {
        memcpy(made->hash, hash, sizeof hash);
        made->next = links.first;
        links.first = made;
        if (++links.images > IMAGES_MAX)
            drop_oldest();
        store_release(&links.has_images, 1);
    } else {
        free_linked(made);
    }
    pthread_mutex_unlock(&links.lock);
}

/* ---- calls -------------------------------------------------------------------------------------------------------- */

/* Both versions of a call have the same parameters on a host of 64 bits. */
#define CREATE(symbol)                                                                                                 \
    CT_EXPORT CUresult symbol(unsigned int count, CUjit_option *options, void **values, CUlinkState *state)            \
    {                                                                                                                  \
        const int is_permitted = ct_slice_permits(count, options, values); /* before the driver writes the values */   \
        const CUresult result = CT_NEXT(symbol)(count, options, values, state);                                        \
        if (result == CUDA_SUCCESS && state && is_permitted)                                                           \
            add_linker(*state);                                                                                        \
        return result;                                                                                                 \
    }
CREATE(cuLinkCreate)
CREATE(cuLinkCreate_v2)

#define ADD_DATA(symbol)                                                                                               \
    CT_EXPORT CUresult symbol(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name,      \
                              unsigned int count, CUjit_option *options, void **values)                                \
    {                                                                                                                  \
        struct input input;                                                                                            \
        CUresult result = CUDA_ERROR_NOT_FOUND;                                                                        \
        if (open_input(&input, state, type, data, bytes, count, options, values)) {                                    \
            result = CT_NEXT(symbol)(state, INPUT_PTX, input.module.text, input.module.bytes + 1, name, count,         \
                                     options, values);                                                                 \
            close_input(&input, state, values, result);                                                                \
        }                                                                                                              \
        if (result != CUDA_SUCCESS)                                                                                    \
            result = CT_NEXT(symbol)(state, type, data, bytes, name, count, options, values);                          \
        return result;                                                                                                 \
    }
ADD_DATA(cuLinkAddData)
ADD_DATA(cuLinkAddData_v2)

/* The content of a file is linked in place of the file, under its name. */
#define ADD_FILE(symbol, data_symbol)                                                                                  \
    CT_EXPORT CUresult symbol(CUlinkState state, CUjitInputType type, const char *path, unsigned int count,            \
                              CUjit_option *options, void **values)                                                    \
    {                                                                                                                  \
        struct input input;                                                                                            \
        size_t bytes = 0;                                                                                              \
        CUresult result = CUDA_ERROR_NOT_FOUND;                                                                        \
        char *content = path && is_linker(state) ? ct_slice_read_file(path, &bytes) : NULL;                            \
        if (content && open_input(&input, state, type, content, bytes, count, options, values)) {                      \
            result = CT_NEXT(data_symbol)(state, INPUT_PTX, input.module.text, input.module.bytes + 1, path, count,    \
                                          options, values);                                                            \
            close_input(&input, state, values, result);                                                                \
        }                                                                                                              \
        free(content);                                                                                                 \
        if (result != CUDA_SUCCESS)                                                                                    \
            result = CT_NEXT(symbol)(state, type, path, count, options, values);                                       \
        return result;                                                                                                 \
    }
ADD_FILE(cuLinkAddFile, cuLinkAddData)
ADD_FILE(cuLinkAddFile_v2, cuLinkAddData_v2)

CT_EXPORT CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes)
{
    size_t written = 0;
    const CUresult result = CT_NEXT(cuLinkComplete)(state, image, bytes ? bytes : &written);
    if (result == CUDA_SUCCESS && image)
        complete(state, *image, bytes ? *bytes : written);
    return result;
}

CT_EXPORT CUresult cuLinkDestroy(CUlinkState state)
{
    const CUresult result = CT_NEXT(cuLinkDestroy)(state);
    pthread_mutex_lock(&links.lock);
    struct linked *ended = take_linker(state);
    pthread_mutex_unlock(&links.lock);
    free_linked(ended);
    return result;
}
