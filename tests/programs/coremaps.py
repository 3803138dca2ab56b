"""cuda.core on memory that is mapped, and on pools: buffers that grow, are filled, copied and closed."""

from __future__ import annotations

import ctypes

from cuda.core import (
    Device,
    DeviceMemoryResource,
    ManagedMemoryResource,
    PinnedMemoryResource,
    PinnedMemoryResourceOptions,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)

device = Device()
device.set_current()
stream = device.create_stream()

resource = VirtualMemoryResource(device, config=VirtualMemoryResourceOptions(handle_type="posix_fd"))
buffer = resource.allocate(3 << 20, stream=stream)
assert buffer.size == 4 << 20
buffer.fill(7, stream=stream)
buffer = resource.modify_allocation(buffer, 10 << 20)
assert buffer.size == 10 << 20
buffer.close()

pool = DeviceMemoryResource(device)
first = pool.allocate(1 << 20, stream=stream)
second = pool.allocate(1 << 20, stream=stream)
first.fill(5, stream=stream)
second.copy_from(first, stream=stream)
assert pool.attributes.used_mem_current == 2 << 20
first.close(stream)
second.close(stream)
stream.sync()
assert pool.attributes.used_mem_current == 0

pinned = PinnedMemoryResource(PinnedMemoryResourceOptions(ipc_enabled=True))
for host in (PinnedMemoryResource(), pinned, ManagedMemoryResource()):
    buffer = host.allocate(1000, stream=stream)
    assert buffer.is_host_accessible
    buffer.fill(3, stream=stream)
    stream.sync()
    assert ctypes.string_at(int(buffer.handle), 1000) == b"\x03" * 1000
    buffer.close(stream)
    stream.sync()
    assert host.attributes.used_mem_current == 0
print("core maps")
