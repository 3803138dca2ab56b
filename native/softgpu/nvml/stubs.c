/* Every name of NVML exists: the ones nothing else defines answer "not supported", once NVML is initialised. */
#include "softgpu/nvml/face.h"

/* Weak, so that a real definition anywhere in the library takes the name. */
#define NVML_NAME(symbol)                                                                                              \
    int symbol(void);                                                                                                  \
    __attribute__((weak, visibility("default"), noinline)) int symbol(void)                                            \
    {                                                                                                                  \
        return nv_unsupported();                                                                                       \
    }
#include "softgpu/nvml/names.def"
#undef NVML_NAME
