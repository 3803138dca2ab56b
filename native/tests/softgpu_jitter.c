/* Test that jitter is repeatable: it depends only on the kernel's name and the number of the launch. */
#include "softgpu/driver/internal.h"
#include "softgpu_server.h"

CUresult cuInit(unsigned int);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **);

enum { LAUNCHES = 50, BLOCK_NS = 10000 };

static const char image[] = "softgpu-image 1\nkernel one\n block_ns 10000\n jitter 5%\n"
                            "kernel two\n block_ns 10000\n jitter 5%\n";

/* Read the block durations of a newly loaded kernel from the ring. */
static void launch(const char *name, uint64_t block_ns[LAUNCHES])
{
    CUmodule module;
    CUfunction function;
    const struct sg_connection *connection = &sg_devices[0].connection;
    EXPECT_EQ(cuModuleLoadData(&module, image), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
    for (int i = 0; i < LAUNCHES; i++) {
        EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
        block_ns[i] = connection->ring->slots[(connection->tail - 1) % SG_RING_SLOTS].kernel.block_ns;
    }
}

int main(void)
{
    struct test_server server;
    CUcontext context;
    uint64_t first[LAUNCHES], repeated[LAUNCHES], second[LAUNCHES];
    int changes = 0;
    test_server_start(&server, "t4");
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    launch("one", first);
    launch("two", second);
    launch("one", repeated);
    EXPECT_EQ(memcmp(first, repeated, sizeof first), 0);
    EXPECT(memcmp(first, second, sizeof first) != 0);
    for (int i = 0; i < LAUNCHES; i++) {
        EXPECT(first[i] > BLOCK_NS / 2 && first[i] < BLOCK_NS * 3 / 2);
        changes += i && first[i] != first[i - 1];
    }
    EXPECT(changes > LAUNCHES / 2);
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    test_server_stop(&server);
    return 0;
}
