/* The names of the driver API as numbers, and the table that cuGetProcAddress searches. */
#ifndef COTENANT_SOFTGPU_ABI_NAMES_H
#define COTENANT_SOFTGPU_ABI_NAMES_H

enum sg_name_number {
#define NAME(symbol, base, since, per_thread) SG_NAME_##symbol,
#include "softgpu/abi/names.def"
#undef NAME
    SG_NAME_COUNT
};

struct sg_name {
    const char *symbol;
    const char *base; /* the name that a program passes to cuGetProcAddress */
    /* The CUDA version from which this symbol implements that base; 0: only the exact symbol name finds it. */
    int since;
    int per_thread; /* 1: the variant for per-thread default streams */
    void *address;
};

extern const struct sg_name sg_names[SG_NAME_COUNT];

/* Count one call of a name that has no implementation. Always returns CUDA_ERROR_NOT_SUPPORTED. */
int sg_unsupported(int number);

#endif
