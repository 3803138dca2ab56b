/* Weak definitions of all NVML names. Calls without an implementation return NOT_SUPPORTED after initialisation. */
#include "softgpu/nvml/internal.h"

/* A definition elsewhere in the library overrides the weak one. */
#define NVML_NAME(symbol)                                                                                              \
    int symbol(void);                                                                                                  \
    __attribute__((weak, visibility("default"), noinline)) int symbol(void)                                            \
    {                                                                                                                  \
        return nv_unsupported();                                                                                       \
    }
#include "softgpu/nvml/names.def"
#undef NVML_NAME
