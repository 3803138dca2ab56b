"""Two programs with split shares of the SMs: requests for the device model, and the contention fitted to pairs.

A program is the request of `physics.share`, fitted to its latencies alone by share, with the memory traffic that its
measured use of the bandwidth implies. Both repeat their requests in one MPS group, each capped to its share. The
prediction for a pair is the latency alone at that share times the slowdown that the device model gives. The two
parameters of the caches' contention are fitted to known pairs; what the model has of issue slots and clocks stays as
given, because split shares leave it nothing to determine them by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from cotenant.softgpu.sim.device import Device, DeviceConfig, Kernel, Limits, ScriptClient, Step
from cotenant_lab.data.igniter import Alone, Program, SplitPair
from cotenant_lab.physics import share

_LEAN: Final = 0.5
_MS: Final = 1e6
_REQUESTS: Final = 4
"""Requests of the slower program; the first is left out of the mean."""
_LIMITS: Final = Limits(clients=2, contexts=2, streams=2, events=1, ops=4096, records=64)
_STEP_PPM: Final = 10_000
_MOST_PPM: Final = 400_000


class SplitProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program as the device model runs it, and its latency alone by SMs."""

    request: share.Request
    traffic_bytes: float
    """Of one request."""
    alone_ns: dict[int, float]

    def latency_alone_ns(self, sms: int) -> float:
        """Interpolate the measured latency linearly in the inverse of the SMs."""
        counts = sorted(self.alone_ns, reverse=True)
        inverse = [1 / count for count in counts]
        return float(np.interp(1 / sms, inverse, [self.alone_ns[count] for count in counts]))


def fit_program(by_share: Mapping[int, Alone], config: DeviceConfig) -> SplitProgram:
    """Return the program nearest to its latencies alone; its traffic is the mean over the shares with a measurement."""
    alone_ns = {max(1, round(config.sm_count * pct / 100)): row.latency_ms * _MS for pct, row in by_share.items()}
    request, _ = share.fit_request(alone_ns, _LEAN)
    traffic = [
        row.dram_pct / 100 * config.memory_bytes_per_s * row.latency_ms / 1e3
        for row in by_share.values()
        if row.dram_pct is not None
    ]
    return SplitProgram(
        request=request, traffic_bytes=sum(traffic) / len(traffic) if traffic else 0.0, alone_ns=alone_ns
    )


def slowdowns(first: SplitProgram, second: SplitProgram, first_sms: int, config: DeviceConfig) -> tuple[float, float]:
    """Return how much slower each is next to the other than alone at its share, by the device model."""
    caps = (first_sms, config.sm_count - first_sms)
    alone = [_latencies_ns([program], [cap], config)[0] for program, cap in zip((first, second), caps, strict=True)]
    together = _latencies_ns((first, second), caps, config)
    return together[0] / alone[0], together[1] / alone[1]


def predict_ms(pair: SplitPair, programs: Mapping[Program, SplitProgram], config: DeviceConfig) -> tuple[float, float]:
    """Return both latencies of a pair."""
    alone = alone_ms(pair, programs, config)
    slower = slowdowns(programs[pair.first], programs[pair.second], _sms(pair, config), config)
    return alone[0] * slower[0], alone[1] * slower[1]


def alone_ms(pair: SplitPair, programs: Mapping[Program, SplitProgram], config: DeviceConfig) -> tuple[float, float]:
    """Return the latency of each program of a pair alone at its share."""
    sms = _sms(pair, config)
    return (
        programs[pair.first].latency_alone_ns(sms) / _MS,
        programs[pair.second].latency_alone_ns(config.sm_count - sms) / _MS,
    )


def fit_contention(
    pairs: Sequence[SplitPair], programs: Mapping[Program, SplitProgram], config: DeviceConfig
) -> DeviceConfig:
    """Return the device with the cache and DRAM contention that fits the pairs best, by coordinate search."""
    best = config
    best_error = _squares(pairs, programs, best)
    step_ppm = 4 * _STEP_PPM
    while step_ppm >= _STEP_PPM:
        improved = False
        for field in ("cache_contention_ppm", "dram_contention_ppm"):
            for change in (-step_ppm, step_ppm):
                value = min(max(getattr(best, field) + change, 0), _MOST_PPM)
                tried = msgspec.structs.replace(best, **{field: value})
                error = _squares(pairs, programs, tried)
                if error < best_error:
                    best, best_error, improved = tried, error, True
        if not improved:
            step_ppm //= 2
    return best


def _squares(pairs: Sequence[SplitPair], programs: Mapping[Program, SplitProgram], config: DeviceConfig) -> float:
    total = 0.0
    for pair in pairs:
        first_ms, second_ms = predict_ms(pair, programs, config)
        total += math.log(first_ms / pair.first_ms) ** 2 + math.log(second_ms / pair.second_ms) ** 2
    return total


def _sms(pair: SplitPair, config: DeviceConfig) -> int:
    return min(max(1, round(config.sm_count * pair.first_share_pct / 100)), config.sm_count - 1)


def _latencies_ns(programs: Sequence[SplitProgram], caps: Sequence[int], config: DeviceConfig) -> list[float]:
    """Return the mean time of a request of each program, while all of them run."""
    kernels: list[Kernel] = []
    clients = []
    longest_ns = max(program.latency_alone_ns(cap) for program, cap in zip(programs, caps, strict=True))
    for program, cap in zip(programs, caps, strict=True):
        wide, host, narrow_ns = program.request.pieces()
        first = len(kernels)
        for block_ns in wide:  # one block per SM, of the same work: the rates do not depend on the number of waves
            part = block_ns / sum(wide)
            kernels.append(
                Kernel(
                    blocks=cap,
                    block_ns=block_ns * share.WIDE_BLOCKS // cap,
                    blocks_per_sm=1,
                    bytes_per_block=round(program.traffic_bytes * part / cap),
                )
            )
        kernels.append(Kernel(blocks=1, block_ns=narrow_ns, blocks_per_sm=1))
        steps = []
        for piece, host_ns in enumerate(host):
            steps += [Step(host_ns, first + piece), Step(0, first + share.PIECES)]
        repeats = math.ceil(_REQUESTS * longest_ns / program.latency_alone_ns(cap)) + 1
        clients.append(
            ScriptClient(steps=(*steps, Step(0, None, sync=True)), repeats=repeats, sm_cap=cap, group_label=1)
        )
    results = Device(config, _LIMITS).run(kernels, clients)
    end_ns = min(result.repeat_ends_ns[-1] for result in results)
    means = []
    for result in results:
        ends = [instant for instant in result.repeat_ends_ns if instant <= end_ns]
        means.append((ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else float(ends[0]))
    return means
