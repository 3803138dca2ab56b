"""Tenants that join, launch and are killed at any instant, three at a time: killed_tenants.py SOCKET COUNT SEED.

Prints how many were killed, and of them how many had launched. One that finds no node ends by itself, uncounted.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from cuda.bindings import driver
from cuda_helpers import Gpu, ok

from cotenant.errors import CotenantError
from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.client.connection import Connection
from cotenant.node.model.tenant import TenantSpec

SOCKET_PATH, COUNT, RNG = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
RECORDS = Path(os.environ["COTENANT_RECORD"])
BOUND_S = 60.0


def live(number: int, launching: int) -> NoReturn:
    """Run as a separate tenant: the hook attaches this process to it at the first call."""
    try:
        connection = Connection(SOCKET_PATH)
        spec = TenantSpec(Kind.OFFLINE, 5 + number % 5, f"m{number}")
        answer, _ = connection.ask(wire.Join(wire.VERSION, spec))
    except CotenantError:
        os._exit(1)
    if not isinstance(answer, wire.Welcome):
        os._exit(1)
    os.environ["COTENANT_SOCKET"] = str(SOCKET_PATH)
    os.environ["COTENANT_TOKEN"] = answer.environment["COTENANT_TOKEN"]
    gpu = Gpu()
    while True:
        for nanoseconds in (20_000, 100_000, 700_000):
            gpu.spin(nanoseconds)
            os.write(launching, b".")
        if random.random() < 0.2:
            ok(driver.cuCtxSynchronize())


def end(child: int, launching: int, *, launches: bool) -> str:
    """Kill the child and return its progress: killed, launched (and killed), or away (it found no node)."""
    if launches:  # it dies during its launches; otherwise during its start
        select.select([launching], [], [], BOUND_S)
    time.sleep(RNG.uniform(0.0, 0.02))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    launched = os.read(launching, 1)
    os.close(launching)
    for record in RECORDS.glob(f"record-{child}-*"):
        record.unlink()
    return "away" if os.WIFEXITED(status) else "launched" if launched else "killed"


number = killed = launched = 0
living: list[tuple[int, int]] = []
while killed < COUNT:
    while len(living) < min(3, COUNT - killed):
        number += 1
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            live(number, write_end)
        os.close(write_end)
        living.append((child, read_end))
    outcome = end(*living.pop(0), launches=killed % 2 == 0)
    killed += outcome != "away"
    launched += outcome == "launched"
    if outcome == "away":
        time.sleep(0.02)
    else:
        print(killed, launched, flush=True)
