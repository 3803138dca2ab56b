"""Print the PCI bus of the first device that this process sees."""

from __future__ import annotations

from cuda.bindings import driver
from cuda_helpers import ok

ok(driver.cuInit(0))
print(ok(driver.cuDeviceGetPCIBusId(20, ok(driver.cuDeviceGet(0)))).split(b"\0")[0].decode())
