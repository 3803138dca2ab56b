"""cuda-core: device, streams, events, buffers, kernels. core_graphs.py covers graphs."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch
from cuda_helpers import IMAGE, ok

device = Device()
device.set_current()
assert "V100" in device.name
assert device.compute_capability == (7, 0)
assert device.properties.multiprocessor_count == 80
stream = device.create_stream()
kernel = ObjectCode.from_cubin(IMAGE).get_kernel("vecadd")
assert kernel.num_arguments == 4
assert kernel.occupancy.max_active_blocks_per_multiprocessor(128, 0) == 16
count = 1024
host = np.arange(count, dtype=np.float32)
buffers = [device.allocate(host.nbytes, stream=stream) for _ in range(3)]
for buffer in buffers[:2]:
    ok(driver.cuMemcpyHtoD(int(buffer.handle), host, host.nbytes))
before = stream.record()
launch(stream, LaunchConfig(grid=4, block=256), kernel, *buffers, np.uint64(count))
after = stream.record()
stream.sync()
assert after.is_done
assert before.is_done
out = np.empty_like(host)
ok(driver.cuMemcpyDtoH(out, int(buffers[2].handle), out.nbytes))
np.testing.assert_array_equal(out, host * 2)
pinned = LegacyPinnedMemoryResource().allocate(host.nbytes)
assert pinned.is_host_accessible
buffers[2].copy_to(pinned, stream=stream)
stream.sync()
np.testing.assert_array_equal(np.from_dlpack(pinned).view(np.float32), host * 2)
for buffer in buffers:
    buffer.close(stream)
print("core goes")
