"""What is a worker? A process that runs one model on its part of a GPU: `python -m cotenant.live.serve.worker`.

Its standard input is a socket to the server. It knows nothing of shares, nodes or other workers: MPS holds it to its
SMs, the node to its memory. It ends when the server does.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Protocol

from cotenant.domain.tensor import TensorSpec
from cotenant.live.clock import pause
from cotenant.live.serve.device import Device
from cotenant.live.serve.parcel import Check, Did, Do, Failed, Hello, Lies, Room, Setup, Sorry, Well, hear_errand, send

ENDED = 3
"""Exit code of one whose device is lost to it."""
_LAST_RUN_S = 5.0


class DeviceLost(Exception):  # noqa: N818  not an error of ours: a device that does nothing for this process any more
    """Whatever runs next would fail as well."""


class Act(Protocol):
    """What a worker can be."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    means_batches: bool

    def device(self) -> Device:
        """What it runs on."""
        ...

    def run(self, do: Do, given: Room, made: Room) -> tuple[int, tuple[Lies, ...], int]:
        """Run a batch: how long the device took, what lies in `made`, and what `Room.make` gave.

        `DeviceLost`, or any other exception where only this run failed.
        """
        ...

    def check(self) -> None:
        """`DeviceLost` if it is."""
        ...


def _act(setup: Setup) -> Act:
    if setup.kind == "replay":
        from cotenant.live.serve.worker_replay import ReplayAct  # noqa: PLC0415  what one worker needs, another has not

        return ReplayAct(setup)
    from cotenant.live.serve.worker_onnx import OnnxAct  # noqa: PLC0415  as above

    return OnnxAct(setup)


def _end_with(line: socket.socket) -> None:
    """When the server is gone, a run may still end; what hangs ends here."""
    poller = select.poll()
    poller.register(line.fileno(), select.POLLRDHUP)
    while not poller.poll():
        pass
    pause(_LAST_RUN_S)
    os._exit(ENDED)


def main(_arguments: Sequence[str]) -> int:
    """Run what comes until the server is gone."""
    line = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    given, made = Room(), Room()
    setup = hear_errand(line, given)
    if not isinstance(setup, Setup):
        return ENDED
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()
    try:
        act = _act(setup)
        found = act.device()
        send(line, Hello(os.getpid(), *found, act.inputs, act.outputs, act.means_batches))
        while (errand := hear_errand(line, given)) is not None:
            if isinstance(errand, Do):
                _run(line, act, errand, given, made)
            elif isinstance(errand, Check):
                act.check()
                send(line, Well())
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001  the server tells people
        _last_words(line, str(error)[:1000] or type(error).__name__)
        return ENDED
    return 0


def _run(line: socket.socket, act: Act, do: Do, given: Room, made: Room) -> None:
    try:
        took_ns, tensors, descriptor = act.run(do, given, made)
    except DeviceLost as error:
        send(line, Failed(do.run, str(error)[:1000], is_last=True))
        raise
    except Exception as error:  # noqa: BLE001  of this run alone
        send(line, Failed(do.run, str(error)[:1000] or type(error).__name__, is_last=False))
        return
    send(line, Did(do.run, took_ns, tensors), descriptor)


def _last_words(line: socket.socket, why: str) -> None:
    try:
        send(line, Sorry(why))
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
