"""A client whose child, forked behind the library's back, keeps its descriptors open."""

from __future__ import annotations

import ctypes
import platform
import select

from cuda.bindings import driver
from cuda_helpers import Gpu, ok

gpu = Gpu()
ok(driver.cuMemAlloc(1 << 20))
libc = ctypes.CDLL(None)
# clone(SIGCHLD) as a bare system call: no handler of fork runs, the child has every descriptor.
CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
child = libc.syscall(CLONE, 17, 0, 0, 0, 0)
if child == 0:
    select.select([], [], [], 60)
    libc._exit(0)
print(child, flush=True)
select.select([], [], [], 60)
