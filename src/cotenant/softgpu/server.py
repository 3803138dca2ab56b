"""The device server process: `python -m cotenant.softgpu.server FD PRESET ORDINAL UUID NUMBERS`."""

from __future__ import annotations

import os
import signal
import sys

from cotenant import _native


def main(arguments: list[str]) -> int:
    descriptor, preset, ordinal, uuid, memory_bytes, context_bytes, counts_code, costs = arguments
    # The server owns no file that a sudden end could corrupt, so the default signal actions are right.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The started process ends at once and can be waited for; the server itself has no parent that must collect it.
    if os.fork():
        return 0
    _native.softgpu_serve(
        int(descriptor),
        preset,
        int(ordinal),
        bytes.fromhex(uuid),
        int(memory_bytes),
        int(context_bytes),
        counts_code == "1",
        bytes.fromhex(costs),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
