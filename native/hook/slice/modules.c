/* Texts with variants, from the load of a module to the lookup of a variant. */
#define _GNU_SOURCE
#include "hook/slice/modules.h"

#include "hook/entry/session.h"
#include "hook/launch/gateway.h"
#include "hook/slice/cache.h"
#include "hook/slice/fatbin.h"
#include "hook/slice/link.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JIT_GENERATE_DEBUG_INFO = 11, JIT_LOG_VERBOSE = 12, FILE_BYTES_MAX = 256 * 1024 * 1024, SLOWER_PERCENT = 5,
       COMPUTE_CAPABILITY_MAJOR = 75, COMPUTE_CAPABILITY_MINOR = 76, FIRST_BYTES = 4 };

struct entry {
    uintptr_t owner, library; /* library: whose module in a context it is; 0: it is none */
    int has_variants;         /* the driver accepted the text with variants */
    struct ct_ptx_module module;
    struct ct_slice *slices;
    struct entry *next;
};

static struct {
    pthread_mutex_t lock;
    struct entry *first;
} modules = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- loading ------------------------------------------------------------------------------------------------------ */

/* Kernels of a tenant that no other one waits for need no variants, and an online tenant's are launched whole. */
static int is_offline(void)
{
    struct ct_session *session = ct_session();
    struct ct_grant grant;
    return session && session->gateway && ct_membership_grant(session->membership, &grant) && !grant.online;
}

/* Debug information and the log of the compiler would show the variants to the program. */
static int permits_variants(unsigned jit_count, const CUjit_option *jit, void *const *values)
{
    if (jit_count && (!jit || !values || jit_count > CT_SLICE_OPTIONS_MAX))
        return 0;
    for (unsigned i = 0; i < jit_count; i++)
        if ((jit[i] == JIT_GENERATE_DEBUG_INFO || jit[i] == JIT_LOG_VERBOSE) && values[i])
            return 0;
    return 1;
}

int ct_slice_permits(unsigned jit_count, const CUjit_option *jit, void *const *values)
{
    return is_offline() && permits_variants(jit_count, jit, values);
}

char *ct_slice_fatbin_code(const void *image, size_t bytes)
{
    CUdevice device = 0;
    int major = 0, minor = 0;
    if (CT_NEXT(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        device = 0;
    if (CT_NEXT(cuDeviceGetAttribute)(&major, COMPUTE_CAPABILITY_MAJOR, device) != CUDA_SUCCESS ||
        CT_NEXT(cuDeviceGetAttribute)(&minor, COMPUTE_CAPABILITY_MINOR, device) != CUDA_SUCCESS)
        return NULL;
    return ct_slice_fatbin_text(image, bytes, (unsigned)(10 * major + minor));
}

static int is_text(const unsigned char *image)
{
    if (ct_slice_is_fatbin(image)) /* whose first byte is that of a letter */
        return 0;
    return (*image >= ' ' && *image < 0x7f) || (*image >= '\t' && *image <= '\r');
}

/* Prepares the image, of which `bytes` are readable; 0: as many as it states, or up to a zero. */
static void open_image(struct ct_slice_text *text, const void *image, size_t bytes, unsigned jit_count,
                       void *const *jit_values)
{
    char *code = NULL;
    if (ct_slice_linked(image, &text->module)) {
        text->is_linked = 1;
        return;
    }
    if (ct_slice_is_fatbin(image))
        code = ct_slice_fatbin_code(image, bytes);
    else if (!is_text(image))
        return; /* machine code */
    const char *own = code ? code : image;
    if ((code || is_text(image)) && ct_slice_cached(own, strlen(own), &text->module)) {
        text->text = text->module.text;
        text->jit_count = jit_count;
        if (jit_count)
            memcpy(text->jit_values, jit_values, jit_count * sizeof *jit_values);
    }
    free(code);
}

void ct_slice_open(struct ct_slice_text *text, const void *image, unsigned jit_count, const CUjit_option *jit,
                   void *const *jit_values)
{
    const int saved_errno = errno;
    memset(text, 0, sizeof *text);
    if (image && ct_slice_permits(jit_count, jit, jit_values))
        open_image(text, image, 0, jit_count, jit_values);
    errno = saved_errno;
}

char *ct_slice_read_file(const char *path, size_t *bytes)
{
    struct stat status;
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *content = NULL;
    *bytes = 0;
    if (descriptor >= 0 && fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
        status.st_size < FILE_BYTES_MAX)
        content = malloc((size_t)status.st_size + 1);
    while (content && *bytes < (size_t)status.st_size) {
        const ssize_t got = read(descriptor, content + *bytes, (size_t)status.st_size - *bytes);
        if (got <= 0)
            break;
        *bytes += (size_t)got;
    }
    if (descriptor >= 0)
        close(descriptor);
    if (content && *bytes < (size_t)status.st_size) {
        free(content);
        return NULL;
    }
    if (content)
        content[*bytes] = 0;
    return content;
}

/* Returns whether the content of a file states or marks its end as an image in memory does. */
static int is_whole(const char *content, size_t bytes)
{
    if (bytes < FIRST_BYTES)
        return 0;
    return is_text((const unsigned char *)content) ? !memchr(content, 0, bytes) : ct_slice_is_fatbin(content);
}

void ct_slice_open_file(struct ct_slice_text *text, const char *path, unsigned jit_count, const CUjit_option *jit,
                        void *const *jit_values)
{
    const int saved_errno = errno;
    size_t bytes = 0;
    memset(text, 0, sizeof *text);
    char *content = path && ct_slice_permits(jit_count, jit, jit_values) ? ct_slice_read_file(path, &bytes) : NULL;
    if (content && is_whole(content, bytes))
        open_image(text, content, bytes, jit_count, jit_values);
    free(content);
    errno = saved_errno;
}

void ct_slice_refused(struct ct_slice_text *text, void **jit_values)
{
    if (text->jit_count)
        memcpy(jit_values, text->jit_values, text->jit_count * sizeof *jit_values);
    text->text = NULL;
    free(text->module.text);
    text->module.text = NULL;
}

/* Removes the entries of an owner, and of the modules of a library. Called with the lock held. */
static void remove_entries(uintptr_t owner)
{
    for (struct entry **at = &modules.first; *at;) {
        struct entry *entry = *at;
        if (entry->owner != owner && entry->library != owner) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        if (!entry->library) {
            ct_ptx_free(&entry->module);
            free(entry->slices);
        }
        free(entry);
    }
}

static void add_entry(struct entry *entry)
{
    pthread_mutex_lock(&modules.lock);
    remove_entries(entry->owner); /* of a context that has ended: the driver has used the handle again */
    entry->next = modules.first;
    modules.first = entry;
    pthread_mutex_unlock(&modules.lock);
}

void ct_slice_loaded(struct ct_slice_text *text, uintptr_t owner, int is_library)
{
    struct entry *entry = owner && text->module.count ? calloc(1, sizeof *entry) : NULL;
    struct ct_slice *slices = entry ? calloc(text->module.count, sizeof *slices) : NULL;
    if (!slices) {
        free(entry);
        ct_ptx_free(&text->module);
        ct_slice_unload(owner); /* the handle may be that of a module which ended with its context */
        return;
    }
    const int has_variants = text->text != NULL || text->is_linked;
    if (!text->is_kept) {
        free(text->module.text); /* the driver has it */
        text->module.text = NULL;
    }
    *entry = (struct entry){.owner = owner, .has_variants = has_variants, .module = text->module, .slices = slices};
    for (size_t i = 0; i < entry->module.count; i++) {
        slices[i].kernel = &entry->module.kernels[i];
        slices[i].owner = owner;
        slices[i].is_library = is_library;
        store_relaxed(&slices[i].state, has_variants ? CT_SLICE_NEW : CT_SLICE_REFUSED);
    }
    memset(&text->module, 0, sizeof text->module);
    add_entry(entry);
}

static struct entry *find_entry(uintptr_t owner)
{
    struct entry *entry = modules.first;
    while (entry && entry->owner != owner)
        entry = entry->next;
    return entry;
}

void ct_slice_add_module(uintptr_t module, uintptr_t library)
{
    pthread_mutex_lock(&modules.lock);
    const struct entry *source = find_entry(library);
    struct entry *entry = source && module != library ? calloc(1, sizeof *entry) : NULL;
    if (entry)
        *entry = (struct entry){.owner = module, .library = library, .has_variants = source->has_variants,
                                .module = source->module, .slices = source->slices};
    pthread_mutex_unlock(&modules.lock);
    if (entry)
        add_entry(entry);
    else if (module != library)
        ct_slice_unload(module);
}

void ct_slice_unload(uintptr_t owner)
{
    if (!owner)
        return;
    pthread_mutex_lock(&modules.lock);
    remove_entries(owner);
    pthread_mutex_unlock(&modules.lock);
}

/* ---- kernels ------------------------------------------------------------------------------------------------------ */

struct ct_slice *ct_slice_find(uintptr_t owner, const char *name)
{
    struct ct_slice *found = NULL;
    pthread_mutex_lock(&modules.lock);
    const struct entry *entry = find_entry(owner);
    for (size_t i = 0; entry && i < entry->module.count && !found; i++)
        if (strcmp(entry->module.kernels[i].name, name) == 0)
            found = &entry->slices[i];
    pthread_mutex_unlock(&modules.lock);
    return found;
}

unsigned ct_slice_variant_count(uintptr_t owner)
{
    unsigned count = 0;
    pthread_mutex_lock(&modules.lock);
    const struct entry *entry = find_entry(owner);
    for (size_t i = 0; entry && entry->has_variants && i < entry->module.count; i++)
        count += *entry->module.kernels[i].variant != 0;
    pthread_mutex_unlock(&modules.lock);
    return count;
}

uintptr_t ct_slice_owner(uintptr_t module)
{
    pthread_mutex_lock(&modules.lock);
    const struct entry *entry = find_entry(module);
    const uintptr_t owner = entry && entry->library ? entry->library : module;
    pthread_mutex_unlock(&modules.lock);
    return owner;
}

int ct_slice_is_variant(const char *name)
{
    return strncmp(name, CT_PTX_PREFIX, strlen(CT_PTX_PREFIX)) == 0;
}

CUfunction ct_slice_variant(struct ct_slice *slice)
{
    CUfunction variant = load_acquire(&slice->variant);
    if (variant || !ct_slice_is_possible(slice))
        return variant;
    const char *name = slice->kernel->variant;
    CUkernel kernel = NULL;
    /* A kernel of a library can be launched like a function, in every context. */
    const CUresult result = slice->is_library
        ? CT_NEXT(cuLibraryGetKernel)(&kernel, (CUlibrary)slice->owner, name)
        : CT_NEXT(cuModuleGetFunction)(&variant, (CUmodule)slice->owner, name);
    if (slice->is_library)
        variant = (CUfunction)kernel;
    if (result != CUDA_SUCCESS) {
        store_relaxed(&slice->state, CT_SLICE_REFUSED);
        return NULL;
    }
    store_relaxed(&slice->state, CT_SLICE_USABLE);
    store_release(&slice->variant, variant);
    return variant;
}

void ct_slice_measured(struct ct_slice *slice, uint64_t variant_ns, uint64_t plain_ns)
{
    const uint64_t variant_sum_ns = fetch_add_relaxed(&slice->variant_ns, variant_ns) + variant_ns,
                   plain_sum_ns = fetch_add_relaxed(&slice->plain_ns, plain_ns) + plain_ns;
    if (fetch_add_relaxed(&slice->measured, 1) + 1 == CT_SLICE_MEASUREMENTS &&
        variant_sum_ns > plain_sum_ns + plain_sum_ns / 100 * SLOWER_PERCENT)
        store_relaxed(&slice->state, CT_SLICE_SLOWER);
}
