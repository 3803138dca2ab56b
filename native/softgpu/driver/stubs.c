/* Weak definitions of all driver API names. Calls without an implementation return CUDA_ERROR_NOT_SUPPORTED and are
 * counted. */
#include "softgpu/abi/names.h"

/* A definition elsewhere in the library overrides the weak one. Each body contains its own number, so that no two are
 * identical and each name has a distinct address, by which hooks distinguish calls. The bodies ignore their arguments,
 * which the x86-64 and AArch64 calling conventions allow. */
#define NAME(symbol, base, since, per_thread)                                                                          \
    int symbol(void);                                                                                                  \
    __attribute__((weak, visibility("default"), noinline)) int symbol(void)                                            \
    {                                                                                                                  \
        return sg_unsupported(SG_NAME_##symbol);                                                                       \
    }
#include "softgpu/abi/names.def"
#undef NAME

const struct sg_name sg_names[SG_NAME_COUNT] = {
#define NAME(symbol, base, since, per_thread) {#symbol, #base, since, per_thread, (void *)symbol},
#include "softgpu/abi/names.def"
#undef NAME
};
