/* A program linked with libcuda, whose calls are bound by the dynamic linker. */
#include "expect.h"

int cuInit(unsigned flags);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **params,
                       void **extra);
int cuCtxSynchronize(void);

int main(void)
{
    void *context, *module, *function;
    unsigned long long nanoseconds = 1000;
    void *parameters[] = {&nanoseconds};
    EXPECT_EQ(cuInit(0), 0);
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), 0);
    EXPECT_EQ(cuModuleLoadData(&module, "softgpu-image 1\nkernel spin\n params 8\n duration_param 0\n"), 0);
    EXPECT_EQ(cuModuleGetFunction(&function, module, "spin"), 0);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL), 0);
    EXPECT_EQ(cuCtxSynchronize(), 0);
    puts("linked");
    return 0;
}
