"""Two devices in one process: each its own memory, an event of one waited for by the other, peer copies."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver
from cuda_helpers import IMAGE, ok

ok(driver.cuInit(0))
assert ok(driver.cuDeviceGetCount()) == 2
devices = [ok(driver.cuDeviceGet(i)) for i in range(2)]
assert bytes(ok(driver.cuDeviceGetUuid(devices[0])).bytes) != bytes(ok(driver.cuDeviceGetUuid(devices[1])).bytes)
contexts = [ok(driver.cuDevicePrimaryCtxRetain(device)) for device in devices]
host = np.arange(1000, dtype=np.float32)
pointers = []
for context in contexts:
    ok(driver.cuCtxSetCurrent(context))
    pointers.append(ok(driver.cuMemAlloc(host.nbytes)))
    free, total = ok(driver.cuMemGetInfo())
    assert 0 < total - free <= host.nbytes + 512
ok(driver.cuCtxSetCurrent(contexts[0]))
assert ok(driver.cuDeviceCanAccessPeer(devices[0], devices[1])) == 1
ok(driver.cuMemcpyHtoD(pointers[0], host, host.nbytes))
module = ok(driver.cuModuleLoadData(IMAGE))
event, stream = ok(driver.cuEventCreate(0)), ok(driver.cuStreamCreate(1))
ok(driver.cuMemcpyPeerAsync(pointers[1], contexts[1], pointers[0], contexts[0], host.nbytes, stream))
ok(driver.cuEventRecord(event, stream))
ok(driver.cuCtxSetCurrent(contexts[1]))
other = ok(driver.cuStreamCreate(1))
ok(driver.cuStreamWaitEvent(other, event, 0))
out = np.empty_like(host)
ok(driver.cuMemcpyDtoHAsync(out, pointers[1], host.nbytes, other))
ok(driver.cuStreamSynchronize(other))
np.testing.assert_array_equal(out, host)
print("two")
