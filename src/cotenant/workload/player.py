"""Program that replays a launch script: `python -m cotenant.workload.player SCRIPT`.

It is an ordinary CUDA client: it loads libcuda.so.1 and knows nothing of cotenant's node or hook. Launches and their
timing are C (native/player); this module contains the options and the summary.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant import _native

READY: Final = "ready"
ARRIVALS: Final = {"back-to-back": 0, "periodic": 1, "poisson": 2, "instants": 3, "training": 0}
"""Arrival kinds by name, and their number in C; training is back-to-back requests without a limit."""
_WORDS: Final = 3  # words per request: due, begin, end


def main(arguments: Sequence[str]) -> int:
    """Replay the script and print one JSON object."""
    options = _parser().parse_args(arguments)
    try:
        script = Path(options.script).read_text(encoding="utf-8")
        image = Path(options.image).read_text(encoding="utf-8") if options.image else image_for(script)
    except (OSError, UnicodeDecodeError) as error:
        return _fail(f"{error}; name a launch script and the text image of its kernels")
    if options.arrival in ("periodic", "poisson") and not options.period_us > 0:
        return _fail(f"--period-us: {options.period_us:g}: set the interval between {options.arrival} requests")
    try:
        instants = _instants(options)
    except (OSError, ValueError, OverflowError) as error:
        return _fail(f"--instants: {options.instants}: {error}; write one instant in nanoseconds per line, in order")
    try:
        player = _native.player_open(script, image, options.priority, options.graph)
        if options.memory:
            hold_device_memory(options.memory)
    except ValueError as error:
        return _fail(f"{options.script}:{error}: write NAME BLOCKS THREADS DURATION_NS INTERVAL_NS [STREAM]")
    except OSError as error:
        return _fail(str(error))
    if options.warm_up:
        _native.player_play(player, 0, 0, 0, options.warm_up, 0, b"", False)
    if options.steered:
        _print_line(f"{READY} {os.getpid()}")
        sys.stdin.readline()
    period_ns, limit_ns = round(options.period_us * 1e3), round(options.seconds * 1e9)
    endless = options.arrival == "training" or options.seconds
    requests = options.requests or len(instants) or (0 if endless else 1)
    try:
        schedule = (ARRIVALS[options.arrival], period_ns, options.seed, requests, limit_ns, instants.tobytes())
        packed, launches = _native.player_play(player, *schedule, options.tell)
    except OSError as error:
        return _fail(str(error))
    summary = request_summary(packed, launches)
    if options.detail:
        summary["detail"] = _rows(packed)
    _print_line(json.dumps(summary))
    if options.steered:
        sys.stdin.read()  # stay a client of the device, so that its counters can still be read
    return 0


class PlaySchedule(msgspec.Struct, frozen=True, kw_only=True):
    """When the requests of a script are due, and how long they are played."""

    rate_per_s: float = 0.0
    """Mean rate of requests at random instants; 0: one after the other."""
    seconds: float = 10.0
    requests: int = 0
    """Number of requests; 0: until the time is over."""
    seed: int = 0
    priority: int = 0
    graph: bool = False
    memory_bytes: int = 0
    tell: bool = False
    """Report the latency of each request to cotenant."""


def play_script(script: str, image: str, schedule: PlaySchedule) -> dict[str, Any]:
    """Play a script on the first visible device, and return the summary of its requests.

    Raise `OSError` if the driver fails, and `ValueError` for a script that it cannot read.
    """
    player = _native.player_open(script, image, schedule.priority, schedule.graph)
    if schedule.memory_bytes:
        hold_device_memory(schedule.memory_bytes)
    kind = ARRIVALS["poisson" if schedule.rate_per_s else "back-to-back"]
    period_ns = round(1e9 / schedule.rate_per_s) if schedule.rate_per_s else 0
    limits = (schedule.requests, round(schedule.seconds * 1e9))
    packed, launches = _native.player_play(player, kind, period_ns, schedule.seed, *limits, b"", schedule.tell)
    return request_summary(packed, launches)


class ScriptPlayer:
    """Replays parts of a script on demand, each as one request."""

    def __init__(self, script: str, image: str) -> None:
        """Open the first visible device; raise `OSError` with the driver's error."""
        self._player = _native.player_open(script, image, 0, 0)

    def play(self, first: int, count: int, due_ns: int) -> int:
        """Return the time from the first launch to the end of the last in nanoseconds.

        Raise `OSError` if the driver fails.
        """
        return _native.player_part(self._player, first, count, due_ns)


def request_summary(packed: bytes, launches: int) -> dict[str, Any]:
    """Summarise requests in nanoseconds; latency counts from the instant at which a request was due."""
    rows = _rows(packed)
    latencies = sorted(end - due for due, _, end in rows)
    completion_ns = rows[-1][2] - rows[0][1] if rows else 0
    return {
        "requests": len(rows),
        "launches": launches,
        "latency_ns": {
            "p50": quantile(latencies, 0.5),
            "p90": quantile(latencies, 0.9),
            "p99": quantile(latencies, 0.99),
            "mean": sum(latencies) // len(latencies) if latencies else 0,
            "max": latencies[-1] if latencies else 0,
        },
        "latency_sum_ns": sum(latencies),
        "completion_ns": completion_ns,
        "requests_per_s": len(rows) / (completion_ns / 1e9) if completion_ns else 0.0,
    }


def quantile(ordered: Sequence[int], part: float) -> int:
    """Return the smallest value that at least this fraction does not exceed; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0


def image_for(script: str) -> str:
    """Return an image with the script's kernel names; each launch carries its duration."""
    names = dict.fromkeys(re.findall(r"^\s*([^\s#@]\S*)", script, re.MULTILINE))
    kernels = "".join(f"kernel {name}\n params 8\n duration_param 0\n" for name in names)
    return f"softgpu-image 1\n{kernels}"


def _instants(options: argparse.Namespace) -> array[int]:
    """Read the instants at which requests are due, if a file is given."""
    if (options.arrival == "instants") != bool(options.instants):
        raise ValueError("--arrival instants and --instants FILE go together")
    if not options.instants:
        return array("Q")
    instants = array("Q", (int(line) for line in Path(options.instants).read_text(encoding="utf-8").split()))
    if not instants or list(instants) != sorted(instants):
        raise ValueError("it has no instant, or they are not in order")
    if options.requests > len(instants):
        raise ValueError(f"it has {len(instants)} instants for {options.requests} requests")
    return instants


def hold_device_memory(size_bytes: int) -> None:
    """Allocate device memory in the player's context until the process ends, for example for a model's weights."""
    pointer = ctypes.c_uint64()
    code = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
    if code:
        raise OSError(f"cuMemAlloc of {size_bytes} bytes returned {code}")


def _rows(packed: bytes) -> list[tuple[int, int, int]]:
    words = array("Q", packed)
    return list(zip(words[::_WORDS], words[1::_WORDS], words[2::_WORDS], strict=True))


def _print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _fail(text: str) -> int:
    sys.stderr.write(f"player: {text}\n")
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cotenant.workload.player", description="replay a launch script")
    parser.add_argument(
        "script", metavar="SCRIPT", help="launch script, as `cotenant profile import --script` writes it"
    )
    parser.add_argument(
        "--image", default="", metavar="FILE", help="image of its kernels (default: made from their names)"
    )
    parser.add_argument("--arrival", choices=list(ARRIVALS), default="back-to-back")
    parser.add_argument(
        "--period-us", type=float, default=0.0, help="interval between requests (poisson: mean interval)"
    )
    parser.add_argument(
        "--instants",
        default="",
        metavar="FILE",
        help="file with the instants at which requests are due, from the start",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the poisson arrivals")
    parser.add_argument("--requests", type=int, default=0, help="number of requests (default 1; training: unlimited)")
    parser.add_argument("--seconds", type=float, default=0.0, help="start no request after this time")
    parser.add_argument(
        "--warm-up", type=int, default=0, metavar="N", help="warm-up requests, back to back, not measured"
    )
    parser.add_argument("--graph", action="store_true", help="launch each request as one captured CUDA graph")
    parser.add_argument("--priority", type=int, default=0, help="priority of its streams; lower values go first")
    parser.add_argument(
        "--memory", type=int, default=0, metavar="BYTES", help="device memory to allocate during the replay"
    )
    parser.add_argument("--tell", action="store_true", help="report the latency of each request to cotenant")
    parser.add_argument(
        "--detail", action="store_true", help="also print the due, begin and end instants of every request"
    )
    parser.add_argument(
        "--steered", action="store_true", help="print ready, start at a line of input, stay until its end"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
