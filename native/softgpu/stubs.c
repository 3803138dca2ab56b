/* Every name of the driver API exists: the ones nothing else defines answer "not supported" and are counted. */
#include "softgpu/names.h"

/* Weak, so that a real definition anywhere in the library takes the name. Each body holds its own number, so no two
 * are identical code and every name keeps an address of its own: hooks tell calls apart by address. The callers pass
 * arguments we do not look at, which the x86-64 and AArch64 calling conventions allow. */
#define NAME(symbol, base, since, twin)                                                                                \
    int symbol(void);                                                                                                  \
    __attribute__((weak, visibility("default"), noinline)) int symbol(void)                                            \
    {                                                                                                                  \
        return sg_unsupported(SG_NAME_##symbol);                                                                       \
    }
#include "softgpu/names.def"
#undef NAME

const struct sg_name sg_names[SG_NAME_COUNT] = {
#define NAME(symbol, base, since, twin) {#symbol, #base, since, twin, (void *)symbol},
#include "softgpu/names.def"
#undef NAME
};
