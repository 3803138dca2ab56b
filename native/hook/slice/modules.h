/* Modules and libraries whose text has variants of its kernels, and the kernels of theirs. */
#ifndef COTENANT_HOOK_SLICE_MODULES_H
#define COTENANT_HOOK_SLICE_MODULES_H

#include "atomics.h"
#include "hook/entry/driver.h"
#include "hook/slice/ptx.h"

/* A kernel with a variant, or with the reason why there is none. Exists as long as its module or library. */
struct ct_slice {
    const struct ct_ptx_kernel *kernel;
    uintptr_t owner; /* the module or library */
    int is_library;
    _Atomic int state; /* enum ct_slice_state */
    _Atomic(CUfunction) variant;
    _Atomic uint32_t measured; /* runs of the variant over a whole grid that were measured */
    _Atomic uint64_t variant_ns, plain_ns; /* their sum, and the time of the kernel for as many runs */
};

enum ct_slice_state { CT_SLICE_NEW = 0, CT_SLICE_USABLE, CT_SLICE_REFUSED, CT_SLICE_SLOWER };

enum { CT_SLICE_OPTIONS_MAX = 32 };

/* A text that is loaded in place of a program's own. */
struct ct_slice_text {
    struct ct_ptx_module module;
    const char *text; /* NULL: load the program's own */
    int is_linked;    /* the program's own image has the variants already */
    int is_kept;      /* the driver may read the text until the library is unloaded */
    void *jit_values[CT_SLICE_OPTIONS_MAX]; /* the driver writes results over the options of a load; these are the program's */
    unsigned jit_count;
};

/* Returns whether the program may get variants: it is an offline tenant's, and these options of the compiler would not show
 * them to it. */
int ct_slice_permits(unsigned jit_count, const CUjit_option *jit, void *const *values);
/* Returns the PTX in a fat binary for the current device, or for the first one, zero-terminated; the caller frees it. NULL:
 * it is not used. `bytes` 0: the binary states its size. */
char *ct_slice_fatbin_code(const void *image, size_t bytes);
/* Returns the content of a regular file, zero-terminated; the caller frees it. NULL: it cannot be read. */
char *ct_slice_read_file(const char *path, size_t *bytes);

/* Prepare the text with variants: of an image in memory, or in a file. Only programs of offline tenants get one. */
void ct_slice_open(struct ct_slice_text *text, const void *image, unsigned jit_count, const CUjit_option *jit,
                   void *const *jit_values);
void ct_slice_open_file(struct ct_slice_text *text, const char *path, unsigned jit_count, const CUjit_option *jit,
                        void *const *jit_values);
/* Call when the driver refused the text: the program's own is loaded instead. */
void ct_slice_refused(struct ct_slice_text *text, void **jit_values);
/* Call at the end of the load. `owner` is the module or library; 0: it was not loaded. */
void ct_slice_loaded(struct ct_slice_text *text, uintptr_t owner, int is_library);

/* Records that the module is that of the library in a context. */
void ct_slice_add_module(uintptr_t module, uintptr_t library);
/* Forgets a module or library. Modules that end with their context are forgotten when their handles are used again. */
void ct_slice_unload(uintptr_t owner);

/* Returns the kernel of this name; NULL: its text was not rewritten. */
struct ct_slice *ct_slice_find(uintptr_t owner, const char *name);
/* Returns the number of variants among the kernels of the owner. */
unsigned ct_slice_variant_count(uintptr_t owner);
/* Returns the library that the module belongs to, or the module itself. */
uintptr_t ct_slice_owner(uintptr_t module);
/* Returns whether this is the name of a variant. */
int ct_slice_is_variant(const char *name);

/* Returns the variant, which is looked up at the first call; NULL: it cannot be used. */
CUfunction ct_slice_variant(struct ct_slice *slice);
static inline int ct_slice_is_possible(const struct ct_slice *slice)
{
    return load_relaxed(&slice->state) <= CT_SLICE_USABLE && slice->kernel->reason == CT_PTX_ELIGIBLE;
}

/* Adds a measurement of the variant over a whole grid, next to the known time of the kernel. A variant that is more than
 * 5 % slower is not used any more. */
enum { CT_SLICE_MEASUREMENTS = 4 };
void ct_slice_measured(struct ct_slice *slice, uint64_t variant_ns, uint64_t plain_ns);

#endif
