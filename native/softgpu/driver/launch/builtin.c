/* Built-in kernels. Their results are computed on the host when the kernel completes. */
#include "softgpu/driver/internal.h"

#include <string.h>

/* Name and parameters: p is a pointer, n a 64-bit count, f a float. */
static const struct {
    const char *name, *parameters;
} builtins[SG_BUILTINS] = {
    [SG_BUILTIN_NONE] = {"", ""},
    [SG_BUILTIN_VECADD] = {"vecadd", "pppn"}, /* c = a + b; n */
    [SG_BUILTIN_SAXPY] = {"saxpy", "fppn"},   /* y += alpha x; n */
    [SG_BUILTIN_GEMM] = {"gemm", "pppnnn"},   /* C = A B; m, n, k, row-major */
    [SG_BUILTIN_REDUCE] = {"reduce", "ppn"},  /* *out = sum(x); n */
    [SG_BUILTIN_FILL] = {"fill", "pfn"},      /* x = value; n */
};

int sg_builtin_find(const char *name, size_t length)
{
    for (int i = SG_BUILTIN_NONE + 1; i < SG_BUILTINS; i++)
        if (strlen(builtins[i].name) == length && memcmp(builtins[i].name, name, length) == 0)
            return i;
    return SG_BUILTIN_NONE;
}

const char *sg_builtin_name(enum sg_builtin builtin)
{
    return builtins[builtin].name;
}

void sg_builtin_shape(struct sg_kernel *kernel)
{
    kernel->param_count = 0;
    for (const char *p = builtins[kernel->builtin].parameters; *p; p++)
        sg_kernel_param(kernel, *p == 'f' ? 4 : 8, *p == 'f' ? 4 : 8);
}

struct values {
    const struct sg_device *device;
    float *pointer[3];
    float scalar;
    uint64_t number[3];
};

static void read_values(const struct sg_effect *effect, struct values *values)
{
    int pointers = 0, numbers = 0;
    for (int i = 0; i < sg_device_count; i++)
        if (&sg_devices[i].connection == effect->connection)
            values->device = &sg_devices[i];
    const char *kinds = builtins[effect->kernel.builtin].parameters;
    for (uint32_t i = 0; kinds[i] && i < effect->kernel.param_count; i++) {
        const unsigned char *at = effect->kernel.params + effect->kernel.offsets[i];
        uint64_t word = 0;
        if (kinds[i] == 'f') {
            memcpy(&values->scalar, at, sizeof values->scalar);
            continue;
        }
        memcpy(&word, at, sizeof word);
        if (kinds[i] == 'p')
            values->pointer[pointers++] = (float *)(uintptr_t)word;
        else
            values->number[numbers++] = word;
    }
}

enum access { READ, WRITE };

static int may_access(const struct values *v, int argument, uint64_t count, enum access access)
{
    const float *pointer = v->pointer[argument];
    return count <= UINT64_MAX / sizeof *pointer && (uintptr_t)pointer % sizeof *pointer == 0 &&
           sg_memory_allows(v->device, (uintptr_t)pointer, count * sizeof *pointer, access == WRITE);
}

static CUresult gemm(const struct values *v)
{
    uint64_t m = v->number[0], n = v->number[1], k = v->number[2], mk, kn, mn;
    if (__builtin_mul_overflow(m, k, &mk) || __builtin_mul_overflow(k, n, &kn) || __builtin_mul_overflow(m, n, &mn) ||
        !may_access(v, 0, mk, READ) || !may_access(v, 1, kn, READ) || !may_access(v, 2, mn, WRITE))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint64_t i = 0; i < m; i++) {
        for (uint64_t j = 0; j < n; j++)
            v->pointer[2][i * n + j] = 0;
        for (uint64_t l = 0; l < k; l++)
            for (uint64_t j = 0; j < n; j++)
                v->pointer[2][i * n + j] += v->pointer[0][i * k + l] * v->pointer[1][l * n + j];
    }
    return CUDA_SUCCESS;
}

/* An invalid pointer is an illegal address on the device and must not fault this process. */
CUresult sg_builtin_run(const struct sg_effect *effect)
{
    struct values v = {0};
    read_values(effect, &v);
    uint64_t count = v.number[0];
    switch (effect->kernel.builtin) {
    case SG_BUILTIN_VECADD:
        if (!may_access(&v, 0, count, READ) || !may_access(&v, 1, count, READ) || !may_access(&v, 2, count, WRITE))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        for (uint64_t i = 0; i < count; i++)
            v.pointer[2][i] = v.pointer[0][i] + v.pointer[1][i];
        return CUDA_SUCCESS;
    case SG_BUILTIN_SAXPY:
        if (!may_access(&v, 0, count, READ) || !may_access(&v, 1, count, WRITE))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        for (uint64_t i = 0; i < count; i++)
            v.pointer[1][i] += v.scalar * v.pointer[0][i];
        return CUDA_SUCCESS;
    case SG_BUILTIN_GEMM:
        return gemm(&v);
    case SG_BUILTIN_REDUCE: {
        if (!may_access(&v, 0, count, READ) || !may_access(&v, 1, 1, WRITE))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        double sum = 0;
        for (uint64_t i = 0; i < count; i++)
            sum += (double)v.pointer[0][i];
        *v.pointer[1] = (float)sum;
        return CUDA_SUCCESS;
    }
    case SG_BUILTIN_FILL:
        if (!may_access(&v, 0, count, WRITE))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        for (uint64_t i = 0; i < count; i++)
            v.pointer[0][i] = v.scalar;
        return CUDA_SUCCESS;
    default:
        return CUDA_SUCCESS;
    }
}
