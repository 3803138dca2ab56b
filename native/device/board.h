/* The properties of a board besides its SMs: power, temperature and PCI attributes. */
#ifndef COTENANT_DEVICE_BOARD_H
#define COTENANT_DEVICE_BOARD_H

#include "device/device.h"

enum ct_architecture { CT_VOLTA = 5, CT_TURING = 6, CT_AMPERE = 7, CT_HOPPER = 9 }; /* as NVML numbers them */

struct ct_board {
    char key[16]; /* of its preset */
    uint32_t architecture;
    uint32_t cores_per_sm;
    uint32_t pci_device_id, pci_subsystem_id; /* device in the upper half, vendor in the lower */
    uint32_t pcie_generation, pcie_width;
    uint64_t bar1_bytes;
    uint32_t idle_mw, least_limit_mw, limit_mw;         /* limit_mw is also the largest limit that can be set */
    uint32_t idle_sm_mhz, idle_memory_mhz, base_sm_mhz; /* base: without boost */
    uint32_t idle_pstate;
    uint32_t shutdown_c, slowdown_c, gpu_max_c, memory_max_c;
    char part_number[24], vbios[20];
};

/* Never NULL: a device with an unknown key has the board of a V100. */
const struct ct_board *ct_board_of(const struct ct_device_config *config);

/* What is used between two instants. */
struct ct_board_use {
    uint64_t passed_ns, sm_ns, traffic_bytes;
    uint32_t clock_ppm; /* fraction of the full clock */
};

/* Returns microjoules. Linear in all arguments, so that the energies of two periods can be added. */
double ct_board_energy_uj(const struct ct_board *board, const struct ct_device_config *config,
                          const struct ct_board_use *use);

/* Returns degrees Celsius after a period of constant power. */
double ct_board_temperature_c(const struct ct_board *board, double before_c, double power_mw, uint64_t passed_ns);
double ct_board_idle_c(const struct ct_board *board);

#endif
