/* Fuzz test of arrays and stream memory operations: random shapes, boxes and waits, valid and invalid. All memory is
 * freed at the end. */
#include "softgpu/driver/array/array.h"
#include "softgpu_server.h"

#include <pthread.h>

CUresult cuInit(unsigned int);
CUresult cuCtxSynchronize(void);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemHostAlloc(void **, size_t, unsigned int);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned int, size_t, CUstream);
CUresult cuStreamCreate(CUstream *, unsigned int);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamQuery(CUstream);
CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *, CUarray);
CUresult cuArrayDestroy(CUarray);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned int);
CUresult cuMipmappedArrayGetLevel(CUarray *, CUmipmappedArray, unsigned int);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray);
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *, CUstream);
CUresult cuMemcpyHtoA_v2(CUarray, size_t, const void *, size_t);
CUresult cuMemcpyAtoHAsync_v2(void *, CUarray, size_t, size_t, CUstream);
CUresult cuTexObjectCreate(CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *,
                           const CUDA_RESOURCE_VIEW_DESC *);
CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *, CUtexObject);
CUresult cuTexObjectDestroy(CUtexObject);
CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
CUresult cuStreamWriteValue64_v2(CUstream, CUdeviceptr, cuuint64_t, unsigned int);
CUresult cuStreamBatchMemOp_v2(CUstream, unsigned int, CUstreamBatchMemOpParams *, unsigned int);

enum { SLOTS = 8, CALLS = 20000, WORDS = 8, HOST_BYTES = 1 << 16, VALUES = 4, HOLD_US = 3000 };

static uint64_t state;
static CUarray arrays[SLOTS];
static CUmipmappedArray mipmaps[SLOTS];
static CUtexObject textures[SLOTS];
static CUstream streams[SLOTS];
static CUdeviceptr memory;
static _Atomic uint32_t *words; /* mapped host memory that streams wait for */
static unsigned char *host;
static _Atomic int stop;
static int result_counts[1000];

static uint64_t rng(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

#define ANY(array) (array[rng(SLOTS)])

static void count_result(CUresult result)
{
    EXPECT(result < 1000);
    result_counts[result]++;
}

static size_t random_length(void)
{
    static const size_t edges[] = {0, 1, UINT64_MAX, UINT64_C(1) << 40, 70000};
    return rng(16) ? rng(24) : edges[rng(5)];
}

static CUDA_ARRAY3D_DESCRIPTOR random_shape(void)
{
    static const CUarray_format formats[] = {1, 2, 3, 8, 9, 10, 0x10, 0x20, 0xc0, 0xc5, 0xb0, 99};
    CUDA_ARRAY3D_DESCRIPTOR shape = {random_length(), rng(3) ? random_length() : 0, rng(3) ? 0 : random_length(),
                                     formats[rng(12)],
                                     1u << rng(3), rng(4) ? 0 : (unsigned)rng(600)};
    return shape;
}

static void create_or_destroy(void)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = random_shape();
    CUDA_RESOURCE_DESC resource = {.resType = (CUresourcetype)rng(5)};
    CUDA_TEXTURE_DESC texture = {.filterMode = (CUfilter_mode)rng(3), .flags = (unsigned)rng(200)};
    resource.res.array.hArray = ANY(arrays);
    if (resource.resType == CU_RESOURCE_TYPE_LINEAR || resource.resType == CU_RESOURCE_TYPE_PITCH2D)
        resource.res.pitch2D.devPtr = memory;
    resource.res.pitch2D.numChannels = 1u << rng(3);
    switch (rng(8)) {
    case 0:
    case 1:
        count_result(cuArrayDestroy(arrays[0]));
        arrays[0] = ANY(arrays);
        count_result(cuArray3DCreate_v2(&ANY(arrays), &shape));
        break;
    case 2:
        count_result(cuMipmappedArrayCreate(&ANY(mipmaps), &shape, (unsigned)rng(12)));
        break;
    case 3:
        count_result(cuMipmappedArrayDestroy(ANY(mipmaps)));
        break;
    case 4:
        count_result(cuMipmappedArrayGetLevel(&ANY(arrays), ANY(mipmaps), (unsigned)rng(8)));
        break;
    case 5:
        count_result(cuTexObjectCreate(&ANY(textures), &resource, &texture, NULL));
        break;
    case 6:
        count_result(cuTexObjectGetTextureDesc(&texture, ANY(textures)));
        break;
    default:
        count_result(cuTexObjectDestroy(ANY(textures)));
    }
    count_result(cuArray3DGetDescriptor_v2(&shape, ANY(arrays)));
}

static void copy_randomly(void)
{
    CUDA_MEMCPY3D box = {.srcMemoryType = rng(2) ? 3 : 1, .dstMemoryType = rng(2) ? 3 : 2, .srcHost = host,
                         .dstDevice = memory, .srcArray = ANY(arrays), .dstArray = ANY(arrays),
                         .WidthInBytes = rng(40), .Height = rng(12), .Depth = 1 + rng(3) / 2, .srcPitch = 256,
                         .dstPitch = 256, .srcHeight = 16, .dstHeight = 16, .srcXInBytes = rng(4) * 4,
                         .dstXInBytes = rng(4) * 4, .srcY = random_length(), .dstY = rng(4), .dstZ = rng(3)};
    switch (rng(4)) {
    case 0:
        count_result(cuMemcpyHtoA_v2(ANY(arrays), rng(3) * 4, host, random_length()));
        break;
    case 1:
        count_result(cuMemcpyAtoHAsync_v2(host, ANY(arrays), rng(3) * 4, rng(64), ANY(streams)));
        break;
    case 2:
        count_result(cuMemcpy3D_v2(&box));
        break;
    default:
        count_result(cuMemcpy3DAsync_v2(&box, ANY(streams)));
    }
}

/* The other thread cycles every word through all values below VALUES, so every valid wait ends. */
static void submit_memory_operation(void)
{
    CUdeviceptr word = (uintptr_t)words + rng(WORDS) * 4, device_word = memory + rng(64) * 8;
    CUstreamBatchMemOpParams ops[3] = {0};
    switch (rng(5)) {
    case 0:
        count_result(cuStreamWaitValue32_v2(ANY(streams), word, 1 + (unsigned)rng(VALUES - 1), (unsigned)rng(4)));
        break;
    case 1:
        count_result(cuStreamWaitValue32_v2(ANY(streams), word + rng(2), 1, 4 + (unsigned)rng(4)));
        break;
    case 2:
        count_result(cuStreamWriteValue64_v2(ANY(streams), device_word + rng(12) / 11, rng(100), (unsigned)rng(3)));
        break;
    case 3:
        for (int i = 0; i < 3; i++) {
            ops[i].operation = (CUstreamBatchMemOpType)(rng(2) ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : rng(9));
            ops[i].waitValue.address = ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? word : device_word;
            ops[i].waitValue.value64 = 1;
            if (ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
                ops[i].operation = CU_STREAM_MEM_OP_BARRIER;
        }
        count_result(cuStreamBatchMemOp_v2(ANY(streams), (unsigned)rng(4), ops, 0));
        break;
    default:
        count_result(cuMemsetD32Async(memory + rng(64) * 4, (unsigned)rng(9), rng(20), ANY(streams)));
    }
    if (rng(40) == 0)
        count_result(rng(2) ? cuStreamSynchronize(ANY(streams)) : cuStreamQuery(ANY(streams)));
}

static void *cycle_words(void *argument)
{
    for (uint32_t value = 0; !stop; value++) {
        for (int i = 0; i < WORDS; i++)
            words[i] = value % VALUES;
        usleep(HOLD_US);
    }
    return argument;
}

static void set_up(CUcontext *context)
{
    void *mapped, *buffer;
    EXPECT_EQ(cuCtxCreate_v2(context, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&memory, HOST_BYTES), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostAlloc(&mapped, WORDS * 4, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostAlloc(&buffer, HOST_BYTES, 0), CUDA_SUCCESS);
    words = mapped;
    host = buffer;
    for (int i = 0; i < SLOTS; i++)
        EXPECT_EQ(cuStreamCreate(&streams[i], (unsigned)(i % 2)), CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
    struct test_server server;
    size_t free_bytes, total_bytes;
    CUcontext context;
    pthread_t thread;
    int calls = argc > 1 ? atoi(argv[1]) : CALLS;
    state = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    test_server_start(&server, "v100");
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    set_up(&context);
    EXPECT_EQ(pthread_create(&thread, NULL, cycle_words, NULL), 0);
    for (int i = 0; i < calls; i++) {
        switch (rng(24)) {
        case 0:
            submit_memory_operation();
            break;
        case 1:
        case 2:
        case 3:
        case 4:
            copy_randomly();
            break;
        default:
            create_or_destroy();
        }
    }
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    stop = 1;
    pthread_join(thread, NULL);
    /* Destroy one part explicitly and the other with the context: nothing stays allocated. */
    for (int i = 0; i < SLOTS; i++)
        cuArrayDestroy(arrays[i]);
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    EXPECT(!sg_each(SG_ARRAY, NULL) && !sg_each(SG_MIPMAP, NULL) && !sg_each(SG_SAMPLER, NULL));
    EXPECT_EQ(sg_word_count(), 0);
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes, total_bytes);
    test_server_stop(&server);
    EXPECT(result_counts[CUDA_SUCCESS] > calls / 4);
    printf("%d calls\n", calls);
    for (int i = 0; i < 1000; i++)
        if (result_counts[i])
            printf("  %d calls returned %d\n", result_counts[i], i);
    return 0;
}
