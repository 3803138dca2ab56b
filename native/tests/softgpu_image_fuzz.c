/* Fuzz test of the image readers: valid images are truncated, modified, spliced and repeated, then read and
 * launched. */
#include "softgpu/driver/internal.h"
#include "softgpu_server.h"

#include <stdlib.h>
#include <string.h>

CUresult cuInit(unsigned int);

static uint64_t state;
static CUcontext context;

static uint64_t rng(void)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static const char text[] =
    "softgpu-image 1\n# a comment\nkernel vecadd\n  builtin vecadd\n  block_ns 2000\n  registers 32\n"
    "kernel spin\n  params 8 4 1\n  duration_param 0\n  jitter 5%\n  shared_bytes 1024\n  blocks_per_sm 4\n"
    "  param_offsets 0 16 20\n  local_bytes 8\n  ptx_version 84\nvariable v 3 01fe7a\nvariable w 9\n"
    "kernel big\n  thread_ns 1.5\n  bytes_per_thread 12\n  bytes_per_block 1e6\n  max_threads 512\n  duration_ns 7\n";

static const char ptx[] =
    ".version 8.4\n.target sm_70\n.address_size 64\n/* kernels */\n.global .align 4 .b8 s[5] = {1,2};\n"
    ".visible .entry _Z3addPfS_i(\n .param .u64 .ptr .global .align 4 a,\n .param .align 8 .b8 b[24],\n .param .u32 "
    "n\n)\n"
    ".maxntid 256, 1, 1\n{\n .reg .b64 %rd<5>; // }\n { ret; }\n}\n.entry empty() { ret; }\n.entry bare { ret; }\n";

/* A small cubin: two kernels, one with parameters, shared memory and a stack, an initialised variable and a
 * constant. */
static size_t make_elf(unsigned char *out)
{
    static const char names[] = "\0.shstrtab\0.text.one\0.text.two\0.nv.info.one\0.nv.shared.one"
                                "\0.strtab\0.symtab\0.nv.global.init\0.nv.constant3\0.nv.info";
    static const char strings[] = "\0one\0tab\0cst";
    static const unsigned char info[] = {4, 0x17, 12, 0, 0, 0, 0, 0, 1, 0, 8, 0, 0, 0xf0, 0x11, 0,
                                         4, 0x17, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x21, 0, 3, 0x1b, 0xff, 0};
    uint64_t head[8] = {0};
    memcpy(head, "\177ELF\2\1\1\63", 8);
    static const unsigned char stack[] = {4, 0x11, 8, 0, 1, 0, 0, 0, 0xa0, 0x0f, 0, 0};
    const struct {
        uint32_t name;
        uint8_t info, other;
        uint16_t section;
        uint64_t value, bytes;
    } symbols[4] = {{0}, {1, 0x12, 0x10, 2, 0, 16}, {5, 0x01, 0, 8, 4, 4}, {9, 0x01, 0, 9, 0, 8}};
    memset(out, 0, 1280);
    memcpy(out, head, 64);
    uint16_t machine = 190, entry_bytes = 64, sections = 11, name_index = 1;
    uint64_t table = 256;
    memcpy(out + 18, &machine, 2);
    memcpy(out + 40, &table, 8);
    memcpy(out + 58, &entry_bytes, 2);
    memcpy(out + 60, &sections, 2);
    memcpy(out + 62, &name_index, 2);
    memcpy(out + 64, names, sizeof names);
    memcpy(out + 1104, info, sizeof info);
    memcpy(out + 960, strings, sizeof strings);
    memcpy(out + 976, symbols, sizeof symbols);
    memcpy(out + 1072, "\0\0\0\0\7\0\0\0", 8);
    memcpy(out + 1088, stack, sizeof stack);
    const struct {
        uint32_t name, type;
        uint64_t offset, bytes;
        uint32_t info, link;
    } rows[11] = {{0},
                  {1, 3, 64, sizeof names, 0, 0},
                  {11, 1, 200, 16, 40u << 24, 0},
                  {21, 1, 216, 16, 0, 0},
                  {31, 1, 1104, sizeof info, 0, 0},
                  {44, 8, 0, 512, 0, 0},
                  {59, 3, 960, sizeof strings, 0, 0},
                  {67, 2, 976, sizeof symbols, 0, 6},
                  {75, 1, 1072, 8, 0, 0},
                  {91, 1, 1080, 8, 0, 0},
                  {105, 0x70000000, 1088, sizeof stack, 0, 7}};
    for (int i = 0; i < 11; i++) {
        unsigned char *row = out + table + i * 64;
        memcpy(row, &rows[i].name, 4);
        memcpy(row + 4, &rows[i].type, 4);
        memcpy(row + 24, &rows[i].offset, 8);
        memcpy(row + 32, &rows[i].bytes, 8);
        memcpy(row + 40, &rows[i].link, 4);
        memcpy(row + 44, &rows[i].info, 4);
    }
    return 1104 + sizeof info;
}

/* A fat binary around a payload, stored or as LZ4 literals. */
static size_t make_fatbin(unsigned char *out, uint16_t kind, const void *payload, size_t bytes, int is_packed)
{
    memset(out, 0, 80);
    memcpy(out, "\x50\xed\x55\xba\x01\x00\x10\x00", 8);
    unsigned char *entry = out + 16, *body = entry + 64;
    size_t stored = bytes;
    if (is_packed) { /* a single sequence of literals */
        size_t remaining = bytes - 15, at = 0;
        body[at++] = 0xf0;
        for (; remaining >= 255; remaining -= 255)
            body[at++] = 255;
        body[at++] = (unsigned char)remaining;
        memcpy(body + at, payload, bytes);
        stored = at + bytes;
    } else {
        memcpy(body, payload, bytes);
    }
    uint64_t total_bytes = 64 + stored, stored64 = stored, full = bytes, flags = is_packed ? 0x2000 : 0;
    uint32_t head = 64, packed = (uint32_t)stored;
    memcpy(out + 8, &total_bytes, 8);
    memcpy(entry, &kind, 2);
    memcpy(entry + 4, &head, 4);
    memcpy(entry + 8, &stored64, 8);
    memcpy(entry + 16, &packed, 4);
    memcpy(entry + 40, &flags, 8);
    memcpy(entry + 56, &full, 8);
    return 16 + total_bytes;
}

enum { SEEDS = 6, CAPACITY = 4096 };

static unsigned char seeds[SEEDS][CAPACITY];
static size_t seed_bytes[SEEDS];

static void make_seeds(void)
{
    memcpy(seeds[0], text, seed_bytes[0] = sizeof text - 1);
    memcpy(seeds[1], ptx, seed_bytes[1] = sizeof ptx - 1);
    seed_bytes[2] = make_elf(seeds[2]);
    seed_bytes[3] = make_fatbin(seeds[3], 1, ptx, sizeof ptx - 1, 0);
    seed_bytes[4] = make_fatbin(seeds[4], 2, seeds[2], seed_bytes[2], 1);
    seed_bytes[5] = make_fatbin(seeds[5], 1, ptx, sizeof ptx - 1, 1);
}

/* An image that was written can be read back and written identically. A corrupt cubin may contain what a text image
 * cannot express, such as overlapping parameters or names with blanks. */
static void check_written(const struct sg_image *image, int is_valid)
{
    size_t bytes, again_bytes;
    struct sg_image again;
    char *first = sg_image_write(image, &bytes);
    EXPECT(first || !is_valid);
    if (!first)
        return;
    CUresult result = sg_image_read(first, bytes, &again);
    EXPECT(result == CUDA_SUCCESS || !is_valid);
    if (result == CUDA_SUCCESS) {
        EXPECT_EQ(again.count, image->count);
        EXPECT_EQ(again.variable_count, image->variable_count);
        char *second = sg_image_write(&again, &again_bytes);
        EXPECT(second && again_bytes == bytes && memcmp(first, second, bytes) == 0);
        sg_image_free(&again);
        free(second);
    }
    free(first);
}

static void check_seeds(void)
{
    static const size_t kernels[SEEDS] = {3, 3, 2, 3, 2, 3};
    struct sg_image image;
    for (int i = 0; i < SEEDS; i++) {
        EXPECT(sg_image_read(seeds[i], seed_bytes[i], &image) == CUDA_SUCCESS);
        EXPECT(image.count == kernels[i]);
        check_written(&image, 1);
        if (i == 1) {
            EXPECT(strcmp(image.kernels[0].name, "_Z3addPfS_i") == 0);
            EXPECT(image.kernels[0].param_count == 3 && image.kernels[0].param_offset[2] == 32);
            EXPECT(image.kernels[0].max_threads == 256 && image.kernels[0].ptx_version == 84);
            EXPECT(image.variable_count == 1 && image.variables[0].bytes == 5);
        }
        if (i == 2) {
            EXPECT(image.kernels[0].param_count == 2 && image.kernels[0].param_bytes[0] == 8);
            EXPECT(image.kernels[0].registers == 40 && image.kernels[0].shared_bytes == 512);
            EXPECT(image.kernels[0].local_bytes == 4000 && image.kernels[1].local_bytes == 0);
            EXPECT(image.kernels[0].const_bytes == 8 && image.variable_count == 2);
            EXPECT(strcmp(image.variables[0].name, "tab") == 0 && image.variables[0].initial[0] == 7);
            EXPECT(strcmp(image.variables[1].name, "cst") == 0 && image.variables[1].bytes == 8);
        }
        sg_image_free(&image);
    }
}

/* Images that set the parameters of a kernel twice or beyond the limits are rejected. */
static void check_refusals(void)
{
    static const char *const lines[] = {
        "builtin fill\nparams 4096 4096 8\n", "params 8 4 8\nbuiltin fill\n",        "builtin vecadd\nbuiltin fill\n",
        "params 8\nduration_param 0\nparams 4\n", "params 4096 4096 4096 4096 4096 4096 4096 4096\n", "params\n",
    };
    struct sg_image image;
    char image_text[256];
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        int bytes = snprintf(image_text, sizeof image_text, "softgpu-image 1\nkernel k\n%s", lines[i]);
        EXPECT_EQ(sg_image_read(image_text, (size_t)bytes, &image), CUDA_ERROR_INVALID_IMAGE);
    }
    unsigned char cubin[CAPACITY];
    memcpy(cubin, seeds[2], seed_bytes[2]);
    memset(cubin + 1104 + 10, 0xff, 2); /* the offset of its second parameter */
    EXPECT_EQ(sg_image_read(cubin, seed_bytes[2], &image), CUDA_ERROR_INVALID_IMAGE);
}

/* Launches the kernels of an image with zero pointers and durations. */
static void launch(struct sg_image *image)
{
    static char zeros[SG_PARAM_LIMIT_BYTES];
    static const unsigned unit_shape[3] = {1, 1, 1};
    static const struct sg_launch_options plain;
    static unsigned launches;
    void *params[SG_MAX_PARAMS];
    for (int i = 0; i < SG_MAX_PARAMS; i++)
        params[i] = zeros;
    sg_relock();
    struct CUmod_st *module = sg_new(SG_MODULE);
    struct CUfunc_st *function = sg_new(SG_FUNCTION);
    function->module = module;
    for (size_t i = 0; i < image->count && i < 4; i++) {
        struct sg_kernel *kernel = function->kernel = &image->kernels[i];
        kernel->duration_ns = 0;
        kernel->block_ns = 1;
        kernel->thread_ns = kernel->bytes_per_block = kernel->bytes_per_thread = 0;
        sg_function_launch(context, function, unit_shape, unit_shape, 0, NULL, params, NULL, &plain);
        if (++launches % 64 == 0)
            sg_context_wait(context);
    }
    sg_delete(SG_FUNCTION, function);
    sg_delete(SG_MODULE, module);
    sg_unlock();
}

/* Reads an image with random edits. The copy on the heap has exactly the image's size, so that the sanitizer detects a
 * read past the end. */
static void read_mutated_image(void)
{
    size_t bytes = 0;
    int index = (int)(rng() % SEEDS);
    unsigned char *data = malloc(CAPACITY + 1);
    memcpy(data, seeds[index], bytes = seed_bytes[index]);
    for (uint64_t edits = rng() % 6; edits; edits--) {
        size_t at = rng() % bytes;
        switch (rng() % 5) {
        case 0:
            data[at] = (unsigned char)rng();
            break;
        case 1:
            data[at] ^= (unsigned char)(1u << rng() % 8);
            break;
        case 2:
            bytes = at ? at : 1;
            break;
        case 3: {
            size_t from = rng() % bytes, length = rng() % 64;
            if (from + length <= bytes && at + length <= bytes)
                memmove(data + at, data + from, length);
            break;
        }
        default: {
            static const uint64_t edges[] = {0, 1, 0x7fffffff, 0xffffffff, UINT64_MAX, UINT64_C(1) << 63};
            if (at + 8 <= bytes)
                memcpy(data + at, &edges[rng() % 6], 8);
        }
        }
    }
    unsigned char *exact = malloc(bytes);
    memcpy(exact, data, bytes);
    struct sg_image image;
    if (sg_image_read(exact, bytes, &image) == CUDA_SUCCESS) {
        check_written(&image, 0);
        if (rng() % 16 == 0)
            launch(&image);
        sg_image_free(&image);
    }
    free(exact);
    free(data);
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : rounds_of(40000, 2000000);
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    struct test_server server;
    make_seeds();
    check_seeds();
    check_refusals();
    test_server_start(&server, "t4");
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    for (uint64_t i = 0; i < rounds; i++)
        read_mutated_image();
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    test_server_stop(&server);
    return 0;
}
