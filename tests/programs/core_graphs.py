"""cuda-core's graph APIs: a builder that captures, splits and joins, and definitions node by node."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch
from cuda.core.graph import GraphBuilder, GraphDefinition
from cuda_helpers import IMAGE, ok

device = Device()
device.set_current()
stream = device.create_stream()
image = ObjectCode.from_cubin(IMAGE)
fill, add = image.get_kernel("fill"), image.get_kernel("vecadd")
config = LaunchConfig(grid=4, block=256)
COUNT = np.uint64(1024)
pinned = LegacyPinnedMemoryResource()
a, b, c = (pinned.allocate(int(COUNT) * 4) for _ in range(3))
result = np.from_dlpack(c).view(np.float32)

# Two branches and their sum.
builder = device.create_graph_builder().begin_building()
left, right = builder.split(2)
launch(left, config, fill, a, np.float32(2), COUNT)
launch(right, config, fill, b, np.float32(3), COUNT)
builder = GraphBuilder.join(left, right)
launch(builder, config, add, a, b, c, COUNT)
graph = builder.end_building().complete()
graph.upload(stream)
graph.launch(stream)
stream.sync()
assert (result == 5).all()


def chain(value: float) -> GraphBuilder:
    chain_builder = device.create_graph_builder().begin_building()
    launch(chain_builder, config, fill, c, np.float32(value), COUNT)
    return chain_builder.end_building()


# A change of the whole, and a graph within a graph.
graph = chain(6).complete()
graph.update(chain(7))
graph.launch(stream)
stream.sync()
assert (result == 7).all()
outer = device.create_graph_builder().begin_building()
outer.embed(chain(8))
launch(outer, config, add, c, c, c, COUNT)
graph = outer.end_building().complete()
graph.launch(stream)
stream.sync()
assert (result == 16).all()

# Node by node.
definition = GraphDefinition()
filled = definition.launch(config, fill, a, np.float32(20), COUNT)
filled.launch(config, fill, b, np.float32(1), COUNT).launch(config, add, a, b, c, COUNT)
assert len(definition.nodes()) == 3
graph = definition.instantiate()
graph.launch(stream)
stream.sync()
assert (result == 21).all()

# Graph memory, host functions and event waits; objects of a callback live as long as the graph.
values: list[float] = []
definition = GraphDefinition()
allocation = definition.allocate(int(COUNT) * 4)
zeroed = allocation.memset(allocation.dptr, 0, int(COUNT) * 4)
copied = zeroed.memcpy(c, allocation.dptr, int(COUNT) * 4)
freed = copied.deallocate(allocation.dptr)
event = stream.device.create_stream().record()
freed.wait(event).callback(lambda: values.append(float(result[0])))
graph = definition.instantiate()
del definition, allocation, zeroed, copied, freed
for _ in range(2):
    graph.launch(stream)
stream.sync()
assert values == [0.0, 0.0]
builder = device.create_graph_builder().begin_building()
launch(builder, config, fill, c, np.float32(30), COUNT)
builder.callback(lambda: values.append(float(result[0])))
graph = builder.end_building().complete()
builder.close()
graph.launch(stream)
graph.close()  # in flight
stream.sync()
assert values == [0.0, 0.0, 30.0]
ok(driver.cuCtxSynchronize())
print("core builds")
