/* The presets of known devices, with the sources of their values. */
#include "device/device.h"

#include <string.h>

/* Sources.
 * [P] CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications per compute capability:
 *     threads, blocks, registers and shared memory per SM and per block, resident grids (128 for 7.x, 8.0 and 9.0).
 * [O] CUDA occupancy calculator: register allocation unit 256 per warp; shared memory unit 256 bytes for 7.x, 128 from
 *     8.0; from 8.0 on the system takes 1 KiB of shared memory per block.
 * [T] NVIDIA T4 datasheet and Turing whitepaper: 40 SMs, 1,590 MHz boost, 16 GB, 320 GB/s (300 GB/s in the older
 *     datasheet), PCIe gen3 x16, 4 MiB L2.
 * [V] Tesla V100 datasheet and Volta whitepaper: 80 SMs, 1,530 MHz (SXM2), 16 or 32 GB at 900 GB/s, 6 MiB L2, PCIe gen3.
 * [A] A100 datasheet and Ampere whitepaper: 108 SMs, 1,410 MHz, 40 GB at 1,555 GB/s, 80 GB at 2,039 GB/s (SXM), 40 MiB
 *     L2, PCIe gen4.
 * [H] H100 datasheet and Hopper whitepaper (SXM5): 132 SMs, 1,980 MHz boost, 80 GB at 3,350 GB/s, 50 MiB L2, PCIe gen5.
 * Bandwidths are the published peaks. Capacities are the nominal ones in GiB; a driver reports a little less.
 * Host copies: pinned copies reach about four fifths of the link's raw rate (gen3 x16 15.75, gen4 31.5, gen5 63 GB/s per
 * direction); 12.5, 25 and 50 GB/s are our rounding of that. Copy engines: as asyncEngineCount is commonly reported;
 * only the first two matter to the model. Stream priorities 0 to -5: as current drivers report; older ones report 0 to
 * -1 for some of these. */

#define GIB (UINT64_C(1) << 30)
#define KIB UINT32_C(1024)
#define CHOICES .slice_ns = 2000000, .switch_ns = 10000, .copy_latency_ns = 1500, .context_bytes = 0, .priority_effect_ppm = 1000000
#define COMMON                                                                                                         \
    .threads_per_block = 1024, .registers_per_sm = 65536, .registers_per_thread = 255,                                 \
    .shared_bytes_per_block = 48 * KIB, .register_granularity = 256, .resident_kernels = 128, .priority_least = 0,     \
    .priority_greatest = -5, CHOICES
#define VOLTA                                                                                                          \
    .compute_major = 7, .compute_minor = 0, .sm_count = 80, .threads_per_sm = 2048, .blocks_per_sm = 32,               \
    .shared_bytes_per_sm = 96 * KIB, .shared_bytes_per_block_optin = 96 * KIB, .shared_granularity_bytes = 256,        \
    .clock_khz = 1530000, .memory_clock_khz = 877000, .memory_bus_bits = 4096, .l2_bytes = 6 * 1024 * KIB,             \
    .copy_engines = 6, .memory_bytes_per_s = UINT64_C(900000000000), .host_bytes_per_s = UINT64_C(12500000000), COMMON
#define AMPERE                                                                                                         \
    .compute_major = 8, .compute_minor = 0, .sm_count = 108, .threads_per_sm = 2048, .blocks_per_sm = 32,              \
    .shared_bytes_per_sm = 164 * KIB, .shared_bytes_per_block_optin = 163 * KIB, .shared_reserved_bytes = KIB,         \
    .shared_granularity_bytes = 128, .clock_khz = 1410000, .memory_bus_bits = 5120, .l2_bytes = 40 * 1024 * KIB,       \
    .copy_engines = 3, .host_bytes_per_s = UINT64_C(25000000000), COMMON

static const struct ct_device_config presets[] = {
    {.name = "Tesla T4", .key = "t4", .compute_major = 7, .compute_minor = 5, .sm_count = 40,
     .threads_per_sm = 1024, .blocks_per_sm = 16, .shared_bytes_per_sm = 64 * KIB,
     .shared_bytes_per_block_optin = 64 * KIB, .shared_granularity_bytes = 256, .clock_khz = 1590000,
     .memory_clock_khz = 5001000, .memory_bus_bits = 256, .l2_bytes = 4 * 1024 * KIB, .copy_engines = 3,
     .memory_bytes = 16 * GIB, .memory_bytes_per_s = UINT64_C(320000000000),
     .host_bytes_per_s = UINT64_C(12500000000), COMMON},
    {.name = "Tesla V100-SXM2-16GB", .key = "v100-16", .memory_bytes = 16 * GIB, VOLTA},
    {.name = "Tesla V100-SXM2-32GB", .key = "v100-32", .memory_bytes = 32 * GIB, VOLTA},
    {.name = "NVIDIA A100-SXM4-40GB", .key = "a100-40", .memory_bytes = 40 * GIB, .memory_clock_khz = 1215000,
     .memory_bytes_per_s = UINT64_C(1555000000000), AMPERE},
    {.name = "NVIDIA A100-SXM4-80GB", .key = "a100-80", .memory_bytes = 80 * GIB, .memory_clock_khz = 1593000,
     .memory_bytes_per_s = UINT64_C(2039000000000), AMPERE},
    {.name = "NVIDIA H100 80GB HBM3", .key = "h100", .compute_major = 9, .compute_minor = 0, .sm_count = 132,
     .threads_per_sm = 2048, .blocks_per_sm = 32, .shared_bytes_per_sm = 228 * KIB,
     .shared_bytes_per_block_optin = 227 * KIB, .shared_reserved_bytes = KIB, .shared_granularity_bytes = 128,
     .clock_khz = 1980000, .memory_clock_khz = 2619000, .memory_bus_bits = 5120, .l2_bytes = 50 * 1024 * KIB,
     .copy_engines = 3, .memory_bytes = 80 * GIB, .memory_bytes_per_s = UINT64_C(3350000000000),
     .host_bytes_per_s = UINT64_C(50000000000), COMMON},
};

enum { PRESETS = sizeof presets / sizeof presets[0] };

const struct ct_device_config *ct_device_preset_at(uint32_t index)
{
    return index < PRESETS ? &presets[index] : NULL;
}

const struct ct_device_config *ct_device_preset(const char *key)
{
    if (strcmp(key, "v100") == 0)
        key = "v100-16";
    else if (strcmp(key, "a100") == 0)
        key = "a100-40";
    for (uint32_t i = 0; i < PRESETS; i++)
        if (strcmp(presets[i].key, key) == 0)
            return &presets[i];
    return NULL;
}

static uint32_t round_up(uint32_t value, uint32_t unit)
{
    return unit == 0 ? value : (value + unit - 1) / unit * unit;
}

uint32_t ct_device_occupancy(const struct ct_device_config *config, uint32_t threads_per_block,
                             uint32_t registers_per_thread, uint32_t shared_bytes_per_block)
{
    const uint32_t warp = CT_DEVICE_WARP_THREADS;
    if (threads_per_block == 0 || threads_per_block > config->threads_per_block ||
        registers_per_thread > config->registers_per_thread ||
        shared_bytes_per_block > config->shared_bytes_per_block_optin)
        return 0;
    uint32_t warps = (threads_per_block + warp - 1) / warp;
    uint32_t blocks = config->blocks_per_sm;
    uint32_t by_threads = config->threads_per_sm / (warps * warp);
    if (by_threads < blocks)
        blocks = by_threads;
    if (registers_per_thread > 0) {
        uint32_t per_warp = round_up(registers_per_thread * warp, config->register_granularity);
        uint32_t by_registers = config->registers_per_sm / per_warp / warps;
        if (by_registers < blocks)
            blocks = by_registers;
    }
    uint32_t shared = round_up(shared_bytes_per_block + config->shared_reserved_bytes,
                               config->shared_granularity_bytes);
    if (shared > 0 && config->shared_bytes_per_sm / shared < blocks)
        blocks = config->shared_bytes_per_sm / shared;
    return blocks;
}
