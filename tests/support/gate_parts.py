"""Parts of a launch in plain Python, as the reference for native/gate/slice.c."""

from __future__ import annotations

from typing import Final

from tests.support.gate_sums import FAR, LaunchRequest

BLOCKS: Final = 9
"""Position of the blocks in a request, followed by those of a wave and, once cut, by those of the part."""


def waves_of(blocks: int, wave: int) -> int:
    return -(-blocks // max(wave, 1))


def part_blocks(kernel_ns: int, blocks: int, bound_ns: int, wave: int) -> int:
    """Return how many blocks to launch next; 0: all."""
    wave = max(wave, 1)
    if bound_ns <= 0 or blocks <= wave or 0 < kernel_ns <= bound_ns:
        return 0
    if kernel_ns <= 0:
        return wave
    waves = waves_of(blocks, wave)
    fitting = max(bound_ns // -(-kernel_ns // waves), 1)
    return fitting * wave if fitting < waves else 0


def time_of(kernel_ns: int, blocks: int, others: int, wave: int) -> int:
    """Return how long `others` blocks take, given the time of `blocks`; 0 stays unknown."""
    if not kernel_ns:
        return 0
    return max(kernel_ns * waves_of(others, wave) // max(waves_of(blocks, wave), 1), 1)


def cut(request: LaunchRequest, bound_ns: int) -> LaunchRequest:
    """Return the next part of the launch, or of a part, that is expected to end within the bound."""
    if len(request) <= BLOCKS:
        return request
    expect, sure, _, _, *conditions = request
    blocks, wave, *already = request[BLOCKS:]
    expect, sure, blocks = min(expect, FAR), min(sure, FAR), already[0] if already else blocks
    part = part_blocks(expect, blocks, min(bound_ns, FAR), wave)
    if not part:
        return request
    times = (time_of(expect, blocks, part, wave), time_of(sure, blocks, part, wave))
    return (*times, 1, 1, *conditions[: BLOCKS - 2], part)
