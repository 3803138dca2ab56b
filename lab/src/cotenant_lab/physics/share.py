"""A model's latency against its share of the SMs: a request for the device model, fitted to a few shares.

A request is `PIECES` pieces. The host launches one piece after the other at a constant pace and does not wait; a piece
is a wide grid, which uses every SM it may, and a narrow one of a single block. A request has three unknowns, all times:

    host_ns      the host's launches, independent of the share
    wide_sm_ns   work that scales with SMs: SMs times nanoseconds
    narrow_ns    work that does not

and `lean`, one number for all models: how far the wide work leans towards the end of the request. It determines how
early the launches stop being the bottleneck when the share decreases. `latency_ns` is the device model's result;
`law_ns` is the same in closed form (tests compare them), which the fit uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from scipy.optimize import least_squares

from cotenant.softgpu.sim.device import Device, DeviceConfig, Kernel, Limits, ScriptClient, Step

PIECES: Final = 16
WIDE_BLOCKS: Final = 5040  # divisible by most numbers of SMs: the last wave changes at most a percent
LEANS: Final = (0.0, 0.5, 1.0)
_STARTS: Final = (0.9, 0.3)
"""Initial values of host_ns as fractions of the latency at the largest share; the search has local minima."""
_LIMITS: Final = Limits(clients=1, contexts=1, streams=1, events=1, ops=4 * PIECES, records=8 * PIECES)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One inference of a model as the device model runs it."""

    host_ns: float
    wide_sm_ns: float
    narrow_ns: float
    lean: float

    def pieces(self) -> tuple[list[int], list[int], int]:
        """Return block times of the wide grids, host times before each piece, and block time of a narrow grid."""
        wide = [max(1, round(self.wide_sm_ns * weight / WIDE_BLOCKS)) for weight in _weights(self.lean)]
        return wide, [round(self.host_ns / PIECES)] * PIECES, max(1, round(self.narrow_ns / PIECES))


def latency_ns(request: Request, config: DeviceConfig, sm_cap: int) -> int:
    """Return the time from the first launch call to the last end of one request alone, in a context of `sm_cap` SMs."""
    wide, host, narrow_ns = request.pieces()
    kernels = [Kernel(blocks=WIDE_BLOCKS, block_ns=block_ns, blocks_per_sm=1) for block_ns in wide]
    kernels.append(Kernel(blocks=1, block_ns=narrow_ns, blocks_per_sm=1))
    steps = []
    for piece, host_ns in enumerate(host):
        steps += [Step(host_ns, piece), Step(0, PIECES)]
    client = ScriptClient(steps=(*steps, Step(0, None, sync=True)), sm_cap=sm_cap)
    (result,) = Device(config, _LIMITS).run(kernels, [client])
    assert result.finished_ns is not None
    return result.finished_ns


def law_ns(request: Request, sm_cap: int) -> int:
    """Return the same in closed form: the maximum over launches of the launch plus all work after it."""
    wide, host, narrow_ns = request.pieces()
    waves = -(-WIDE_BLOCKS // sm_cap)
    after_ns, latest_ns, launch_ns = 0, 0, sum(host)
    for block_ns, host_ns in zip(reversed(wide), reversed(host), strict=True):
        after_ns += waves * block_ns + narrow_ns
        latest_ns = max(latest_ns, launch_ns + after_ns)
        launch_ns -= host_ns
    return latest_ns


def caps(shares_pct: Sequence[int], config: DeviceConfig) -> list[int]:
    """Return the SMs of each share, at least one."""
    return [max(1, round(config.sm_count * share / 100)) for share in shares_pct]


def fit_shares(shares_pct: Sequence[int], count: int) -> list[int]:
    """Choose the shares to measure: both ends, and between them those nearest to a geometric series."""
    ordered = sorted(shares_pct)
    if len(ordered) <= count:
        return ordered
    chosen = [ordered[0], ordered[-1]]
    for step in range(1, count - 1):
        aim = math.log(ordered[0]) + (math.log(ordered[-1]) - math.log(ordered[0])) * step / (count - 1)
        remaining = [share for share in ordered if share not in chosen]
        chosen.append(min(remaining, key=lambda share: (abs(math.log(share) - aim), share)))
    return sorted(chosen)


def fit_request(latency_by_sms: Mapping[int, float], lean: float) -> tuple[Request, float]:
    """Return the request nearest to these latencies (ns), and the sum of its squared relative errors."""
    counts = sorted(latency_by_sms)
    sms = np.array(counts, dtype=float)
    measured = np.array([latency_by_sms[count] for count in counts])
    work, last = measured[0] * sms[0], measured[-1]
    scale = np.array([work, last, last])
    weights = np.array(_weights(lean))
    best: Any = None

    def errors(logs: Any) -> Any:
        wide, narrow, host = scale * np.exp(logs)
        return _smooth_law(sms, weights, wide, narrow, host) / measured - 1

    for start in _STARTS:
        solution = least_squares(
            errors, np.log([0.9, 0.1, start]), bounds=(np.log([1e-4] * 3), np.log([2.0] * 3)), max_nfev=60
        )
        if best is None or solution.cost < best.cost:
            best = solution
    wide, narrow, host = (float(value) for value in scale * np.exp(best.x))
    return Request(host_ns=host, wide_sm_ns=wide, narrow_ns=narrow, lean=lean), float(2 * best.cost)


def choose_lean(curves: Sequence[Mapping[int, float]]) -> float:
    """Return the lean with which inner points of these curves (ns by SMs) are best predicted by the other points."""
    return min(LEANS, key=lambda lean: (_left_out_error(curves, lean), lean))


def _left_out_error(curves: Sequence[Mapping[int, float]], lean: float) -> float:
    errors = []
    for curve in curves:
        for sms in sorted(curve)[1:-1]:
            request, _ = fit_request({count: curve[count] for count in curve if count != sms}, lean)
            errors.append(abs(law_ns(request, sms) / curve[sms] - 1))
    return sum(errors) / len(errors) if errors else 0.0


def _weights(lean: float) -> list[float]:
    """Return the fractions of the wide work by piece: a straight line that rises by `lean`, with sum 1."""
    return [(1 + lean * ((2 * piece + 1) / PIECES - 1)) / PIECES for piece in range(PIECES)]


def _smooth_law(sms: Any, weights: Any, wide: float, narrow: float, host: float) -> Any:
    """Compute `law_ns` without rounding to blocks and nanoseconds: the search needs gradients."""
    pieces = wide * weights[None, :] / sms[:, None] + narrow / PIECES
    after = np.cumsum(pieces[:, ::-1], axis=1)[:, ::-1]
    return (after + host / PIECES * np.arange(1, PIECES + 1)).max(axis=1)
