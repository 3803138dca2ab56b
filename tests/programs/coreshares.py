"""cuda.core between processes: a pool, a buffer of it and an event, sent to a child that writes and reports."""

from __future__ import annotations

import multiprocessing
from typing import Any

from cuda.core import Buffer, Device, DeviceMemoryResource, DeviceMemoryResourceOptions, EventOptions

SIZE = 4096


def child(resource: DeviceMemoryResource, buffer: Buffer, event: Any, done: Any) -> None:
    """Receive the pickled objects, and write into the parent's memory after the parent's event."""
    device = Device()
    device.set_current()
    stream = device.create_stream()
    stream.wait(event)
    assert resource.is_mapped
    assert buffer.is_mapped
    own_buffer = DeviceMemoryResource(device).allocate(SIZE, stream=stream)
    own_buffer.copy_from(buffer, stream=stream)
    buffer.fill(9, stream=stream)
    stream.sync()
    buffer.close(stream)
    stream.sync()
    done.put("written")


def main() -> None:
    device = Device()
    device.set_current()
    stream = device.create_stream()
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions(ipc_enabled=True))
    buffer = resource.allocate(SIZE, stream=stream)
    buffer.fill(5, stream=stream)
    event = stream.record(options=EventOptions(ipc_enabled=True))
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    process = context.Process(target=child, args=(resource, buffer, event, done))
    process.start()
    assert done.get(timeout=60) == "written"
    process.join()
    assert process.exitcode == 0

    from cuda.bindings import driver

    data = bytearray(SIZE)
    (answer,) = driver.cuMemcpyDtoH(memoryview(data), int(buffer.handle), SIZE)
    assert answer == driver.CUresult.CUDA_SUCCESS
    assert data == bytes([9]) * SIZE
    buffer.close(stream)
    stream.sync()
    print("core shares")


if __name__ == "__main__":
    main()
