/* Power and temperature of the boards: energies add up, and temperatures approach the value for the power and never
 * exceed it. */
#include "device/board.h"
#include "expect.h"

#include <math.h>
#include <string.h>

static void check_energy(const struct ct_board *board, const struct ct_device_config *config)
{
    struct ct_board_use idle = {.passed_ns = 1000000000, .clock_ppm = 1000000};
    struct ct_board_use full = {.passed_ns = 1000000000,
                                .sm_ns = UINT64_C(1000000000) * config->sm_count,
                                .traffic_bytes = config->memory_bytes_per_s,
                                .clock_ppm = 1000000};
    struct ct_board_use both = {2000000000, full.sm_ns, full.traffic_bytes, 1000000}, slow = full;
    double idle_uj = ct_board_energy_uj(board, config, &idle), full_uj = ct_board_energy_uj(board, config, &full);
    slow.clock_ppm = 500000;
    EXPECT(fabs(idle_uj - board->idle_mw * 1e3) < 1);
    EXPECT(fabs(full_uj - board->limit_mw * 1e3) < 1);
    EXPECT(fabs(ct_board_energy_uj(board, config, &both) - idle_uj - full_uj) < 1);
    EXPECT(fabs(2 * (ct_board_energy_uj(board, config, &slow) - idle_uj) - (full_uj - idle_uj)) < 1);
}

static void check_temperature(const struct ct_board *board)
{
    double idle_c = ct_board_idle_c(board), hot_c = idle_c;
    EXPECT(fabs(ct_board_temperature_c(board, idle_c, board->idle_mw, 3600000000000) - idle_c) < 1e-6);
    for (int i = 0; i < 600; i++) {
        double next_c = ct_board_temperature_c(board, hot_c, board->limit_mw, 1000000000);
        EXPECT(next_c >= hot_c);
        hot_c = next_c;
    }
    EXPECT(hot_c < board->gpu_max_c && board->gpu_max_c < board->slowdown_c && board->slowdown_c < board->shutdown_c);
    /* Many short steps equal one long step. */
    EXPECT(fabs(hot_c - ct_board_temperature_c(board, idle_c, board->limit_mw, 600000000000)) < 1e-6);
    /* Power beyond the limit has no effect on the temperature, because it is capped. */
    EXPECT(ct_board_temperature_c(board, hot_c, 9.0 * board->limit_mw, 1000000000) <= board->gpu_max_c);
}

int main(void)
{
    uint32_t count = 0;
    for (const struct ct_device_config *config; (config = ct_device_preset_at(count)); count++) {
        const struct ct_board *board = ct_board_of(config);
        EXPECT(strcmp(board->key, config->key) == 0);
        EXPECT(board->idle_mw < board->least_limit_mw && board->least_limit_mw < board->limit_mw);
        EXPECT(board->idle_sm_mhz < board->base_sm_mhz && board->base_sm_mhz < config->clock_khz / 1000);
        check_energy(board, config);
        check_temperature(board);
    }
    EXPECT_EQ(count, 6);
    return 0;
}
