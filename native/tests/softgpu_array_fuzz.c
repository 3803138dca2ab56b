/* Fuzz of arrays and of values in streams: random shapes, pieces and waits, good and bad; all of it is given back. */
#include "softgpu/array.h"
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

enum { PLACES = 8, CALLS = 20000, WORDS = 8, HOST_BYTES = 1 << 16, VALUES = 4, HOLD_US = 3000 };

static uint64_t state;
static CUarray arrays[PLACES];
static CUmipmappedArray mipmaps[PLACES];
static CUtexObject textures[PLACES];
static CUstream streams[PLACES];
static CUdeviceptr memory;
static _Atomic uint32_t *words; /* mapped host memory: what streams wait for */
static unsigned char *host;
static _Atomic int stop;
static int answered[1000];

static uint64_t dice(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

#define ANY(array) (array[dice(PLACES)])

static void told(CUresult result)
{
    EXPECT(result < 1000);
    answered[result]++;
}

static size_t a_length(void)
{
    static const size_t odd[] = {0, 1, UINT64_MAX, UINT64_C(1) << 40, 70000};
    return dice(16) ? dice(24) : odd[dice(5)];
}

static CUDA_ARRAY3D_DESCRIPTOR a_shape(void)
{
    static const CUarray_format formats[] = {1, 2, 3, 8, 9, 10, 0x10, 0x20, 0xc0, 0xc5, 0xb0, 99};
    CUDA_ARRAY3D_DESCRIPTOR shape = {a_length(), dice(3) ? a_length() : 0, dice(3) ? 0 : a_length(), formats[dice(12)],
                                     1u << dice(3), dice(4) ? 0 : (unsigned)dice(600)};
    return shape;
}

static void make_and_end(void)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = a_shape();
    CUDA_RESOURCE_DESC resource = {.resType = (CUresourcetype)dice(5)};
    CUDA_TEXTURE_DESC texture = {.filterMode = (CUfilter_mode)dice(3), .flags = (unsigned)dice(200)};
    resource.res.array.hArray = ANY(arrays);
    if (resource.resType == CU_RESOURCE_TYPE_LINEAR || resource.resType == CU_RESOURCE_TYPE_PITCH2D)
        resource.res.pitch2D.devPtr = memory;
    resource.res.pitch2D.numChannels = 1u << dice(3);
    switch (dice(8)) {
    case 0:
    case 1:
        told(cuArrayDestroy(arrays[0]));
        arrays[0] = ANY(arrays);
        told(cuArray3DCreate_v2(&ANY(arrays), &shape));
        break;
    case 2:
        told(cuMipmappedArrayCreate(&ANY(mipmaps), &shape, (unsigned)dice(12)));
        break;
    case 3:
        told(cuMipmappedArrayDestroy(ANY(mipmaps)));
        break;
    case 4:
        told(cuMipmappedArrayGetLevel(&ANY(arrays), ANY(mipmaps), (unsigned)dice(8)));
        break;
    case 5:
        told(cuTexObjectCreate(&ANY(textures), &resource, &texture, NULL));
        break;
    case 6:
        told(cuTexObjectGetTextureDesc(&texture, ANY(textures)));
        break;
    default:
        told(cuTexObjectDestroy(ANY(textures)));
    }
    told(cuArray3DGetDescriptor_v2(&shape, ANY(arrays)));
}

static void copy(void)
{
    CUDA_MEMCPY3D piece = {.srcMemoryType = dice(2) ? 3 : 1, .dstMemoryType = dice(2) ? 3 : 2, .srcHost = host,
                           .dstDevice = memory, .srcArray = ANY(arrays), .dstArray = ANY(arrays),
                           .WidthInBytes = dice(40), .Height = dice(12), .Depth = 1 + dice(3) / 2, .srcPitch = 256,
                           .dstPitch = 256, .srcHeight = 16, .dstHeight = 16, .srcXInBytes = dice(4) * 4,
                           .dstXInBytes = dice(4) * 4, .srcY = a_length(), .dstY = dice(4), .dstZ = dice(3)};
    switch (dice(4)) {
    case 0:
        told(cuMemcpyHtoA_v2(ANY(arrays), dice(3) * 4, host, a_length()));
        break;
    case 1:
        told(cuMemcpyAtoHAsync_v2(host, ANY(arrays), dice(3) * 4, dice(64), ANY(streams)));
        break;
    case 2:
        told(cuMemcpy3D_v2(&piece));
        break;
    default:
        told(cuMemcpy3DAsync_v2(&piece, ANY(streams)));
    }
}

/* Every value below VALUES comes round in every word while the other thread lives, so every good wait ends. */
static void values(void)
{
    CUdeviceptr word = (uintptr_t)words + dice(WORDS) * 4, elsewhere = memory + dice(64) * 8;
    CUstreamBatchMemOpParams ops[3] = {0};
    switch (dice(5)) {
    case 0:
        told(cuStreamWaitValue32_v2(ANY(streams), word, 1 + (unsigned)dice(VALUES - 1), (unsigned)dice(4)));
        break;
    case 1:
        told(cuStreamWaitValue32_v2(ANY(streams), word + dice(2), 1, 4 + (unsigned)dice(4)));
        break;
    case 2:
        told(cuStreamWriteValue64_v2(ANY(streams), elsewhere + dice(12) / 11, dice(100), (unsigned)dice(3)));
        break;
    case 3:
        for (int i = 0; i < 3; i++) {
            ops[i].operation = (CUstreamBatchMemOpType)(dice(2) ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : dice(9));
            ops[i].waitValue.address = ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? word : elsewhere;
            ops[i].waitValue.value64 = 1;
            if (ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
                ops[i].operation = CU_STREAM_MEM_OP_BARRIER;
        }
        told(cuStreamBatchMemOp_v2(ANY(streams), (unsigned)dice(4), ops, 0));
        break;
    default:
        told(cuMemsetD32Async(memory + dice(64) * 4, (unsigned)dice(9), dice(20), ANY(streams)));
    }
    if (dice(40) == 0)
        told(dice(2) ? cuStreamSynchronize(ANY(streams)) : cuStreamQuery(ANY(streams)));
}

static void *turn(void *nothing)
{
    for (uint32_t value = 0; !stop; value++) {
        for (int i = 0; i < WORDS; i++)
            words[i] = value % VALUES;
        usleep(HOLD_US);
    }
    return nothing;
}

static void begin(CUcontext *context)
{
    void *mapped, *buffer;
    EXPECT_EQ(cuCtxCreate_v2(context, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&memory, HOST_BYTES), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostAlloc(&mapped, WORDS * 4, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostAlloc(&buffer, HOST_BYTES, 0), CUDA_SUCCESS);
    words = mapped;
    host = buffer;
    for (int i = 0; i < PLACES; i++)
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
    begin(&context);
    EXPECT_EQ(pthread_create(&thread, NULL, turn, NULL), 0);
    for (int i = 0; i < calls; i++) {
        switch (dice(24)) {
        case 0:
            values();
            break;
        case 1:
        case 2:
        case 3:
        case 4:
            copy();
            break;
        default:
            make_and_end();
        }
    }
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    stop = 1;
    pthread_join(thread, NULL);
    /* Half by their own calls, half by the context's end: nothing stays taken. */
    for (int i = 0; i < PLACES; i++)
        cuArrayDestroy(arrays[i]);
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    EXPECT(!sg_each(SG_ARRAY, NULL) && !sg_each(SG_MIPMAP, NULL) && !sg_each(SG_SAMPLER, NULL));
    EXPECT_EQ(sg_word_count(), 0);
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes, total_bytes);
    test_server_stop(&server);
    EXPECT(answered[CUDA_SUCCESS] > calls / 4);
    printf("%d calls\n", calls);
    for (int i = 0; i < 1000; i++)
        if (answered[i])
            printf("  %d answered %d\n", answered[i], i);
    return 0;
}
