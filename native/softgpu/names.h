/* The names of the driver API as numbers, and the table that cuGetProcAddress searches. */
#ifndef COTENANT_SOFTGPU_NAMES_H
#define COTENANT_SOFTGPU_NAMES_H

enum sg_name_number {
#define NAME(symbol, base, since, twin) SG_NAME_##symbol,
#include "softgpu/names.def"
#undef NAME
    SG_NAME_COUNT
};

struct sg_name {
    const char *symbol;
    const char *base;  /* what a client asks cuGetProcAddress for */
    int since;         /* the CUDA version from which this symbol answers that base; 0: only by its own name */
    int twin;          /* 1: the per-thread default stream form */
    void *address;
};

extern const struct sg_name sg_names[SG_NAME_COUNT];

/* Counts one call of a name nothing implements; always CUDA_ERROR_NOT_SUPPORTED. */
int sg_unsupported(int number);

#endif
