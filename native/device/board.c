/* The boards of the presets, and a simple model of power and temperature for their sensors. */
#include "device/board.h"

#include <math.h>
#include <string.h>

/* Power limits: data sheets of T4, V100, A100 and H100 (SXM). PCI IDs, idle power and clocks, temperature thresholds
 * and sizes of BAR1: as nvidia-smi commonly reports them for these boards. Part and VBIOS numbers only have the right
 * form, because a software GPU has no board. */
#define GIB (UINT64_C(1) << 30)
#define SXM2                                                                                                           \
    .architecture = CT_VOLTA, .cores_per_sm = 64, .pcie_generation = 3, .pcie_width = 16, .idle_mw = 40000,            \
    .least_limit_mw = 150000, .limit_mw = 300000, .idle_sm_mhz = 135, .idle_memory_mhz = 877, .base_sm_mhz = 1290,     \
    .idle_pstate = 0, .shutdown_c = 90, .slowdown_c = 87, .gpu_max_c = 83, .memory_max_c = 85, .vbios = "88.00.00.00.01"
#define SXM4                                                                                                           \
    .architecture = CT_AMPERE, .cores_per_sm = 64, .pcie_generation = 4, .pcie_width = 16, .least_limit_mw = 100000,   \
    .limit_mw = 400000, .idle_sm_mhz = 210, .base_sm_mhz = 1095, .idle_pstate = 0, .shutdown_c = 92, .slowdown_c = 89, \
    .gpu_max_c = 85, .memory_max_c = 95, .vbios = "92.00.00.00.01"

static const struct ct_board boards[] = {
    {.key = "v100-16", .pci_device_id = 0x1db110de, .pci_subsystem_id = 0x121210de, .bar1_bytes = 16 * GIB,
     .part_number = "900-2G503-0000-000", SXM2},
    {.key = "v100-32", .pci_device_id = 0x1db510de, .pci_subsystem_id = 0x124910de, .bar1_bytes = 32 * GIB,
     .part_number = "900-2G503-0010-000", SXM2},
    {.key = "t4", .architecture = CT_TURING, .cores_per_sm = 64, .pci_device_id = 0x1eb810de,
     .pci_subsystem_id = 0x12a210de, .pcie_generation = 3, .pcie_width = 16, .bar1_bytes = GIB / 4, .idle_mw = 10000,
     .least_limit_mw = 60000, .limit_mw = 70000, .idle_sm_mhz = 300, .idle_memory_mhz = 405, .base_sm_mhz = 585,
     .idle_pstate = 8, .shutdown_c = 96, .slowdown_c = 93, .gpu_max_c = 85, .part_number = "900-2G183-0000-000",
     .vbios = "90.04.00.00.01"},
    {.key = "a100-40", .pci_device_id = 0x20b010de, .pci_subsystem_id = 0x134f10de, .bar1_bytes = 64 * GIB,
     .idle_mw = 52000, .idle_memory_mhz = 1215, .part_number = "692-2G506-0200-000", SXM4},
    {.key = "a100-80", .pci_device_id = 0x20b210de, .pci_subsystem_id = 0x147f10de, .bar1_bytes = 128 * GIB,
     .idle_mw = 60000, .idle_memory_mhz = 1593, .part_number = "692-2G506-0210-000", SXM4},
    {.key = "h100", .architecture = CT_HOPPER, .cores_per_sm = 128, .pci_device_id = 0x233010de,
     .pci_subsystem_id = 0x16c110de, .pcie_generation = 5, .pcie_width = 16, .bar1_bytes = 128 * GIB, .idle_mw = 70000,
     .least_limit_mw = 200000, .limit_mw = 700000, .idle_sm_mhz = 345, .idle_memory_mhz = 2619, .base_sm_mhz = 1590,
     .idle_pstate = 0, .shutdown_c = 92, .slowdown_c = 89, .gpu_max_c = 87, .memory_max_c = 95,
     .part_number = "692-2G520-0200-000", .vbios = "96.00.00.00.01"},
};

const struct ct_board *ct_board_of(const struct ct_device_config *config)
{
    for (size_t i = 1; i < sizeof boards / sizeof boards[0]; i++)
        if (strcmp(boards[i].key, config->key) == 0)
            return &boards[i];
    return &boards[0];
}

/* Chosen, not measured: seven tenths of the range between idle power and the limit follow the SMs in use, three tenths
 * the memory bandwidth in use; all of it is proportional to the clock. */
static const double sm_part = 0.7, memory_part = 0.3;

double ct_board_energy_uj(const struct ct_board *board, const struct ct_device_config *config,
                          const struct ct_board_use *use)
{
    double full_mw = (double)(board->limit_mw - board->idle_mw) * use->clock_ppm / 1e6;
    double sm_s = (double)use->sm_ns / config->sm_count / 1e9;
    double memory_s = (double)use->traffic_bytes / (double)config->memory_bytes_per_s;
    return 1e3 * (board->idle_mw * ((double)use->passed_ns / 1e9) +
                  full_mw * (sm_part * sm_s + memory_part * memory_s));
}

/* Chosen, not measured: ambient air of 30 degrees; at the power limit the chip settles 10 degrees below its highest
 * working temperature, with a time constant of 20 seconds. */
static const double air_c = 30, margin_c = 10, settle_s = 20;

static double settled_c(const struct ct_board *board, double power_mw)
{
    return air_c + (board->gpu_max_c - margin_c - air_c) * power_mw / board->limit_mw;
}

double ct_board_temperature_c(const struct ct_board *board, double before_c, double power_mw, uint64_t passed_ns)
{
    double target_c = settled_c(board, power_mw < board->limit_mw ? power_mw : board->limit_mw);
    return target_c + (before_c - target_c) * exp(-(double)passed_ns / 1e9 / settle_s);
}

double ct_board_idle_c(const struct ct_board *board)
{
    return settled_c(board, board->idle_mw);
}
