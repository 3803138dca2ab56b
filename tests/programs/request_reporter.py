"""Report requests in every supported mode, and print their number; one took 7 ms by its own clock."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import cotenant

count = 0


@cotenant.request()
def answer() -> int:
    """Serve a request by one call."""
    return 1


@cotenant.request()
async def reply() -> int:
    """Serve a request that overlaps with others."""
    await asyncio.sleep(0.001)
    return 1


async def replies() -> int:
    """Serve several requests concurrently, and one that ends with its block."""
    answered = sum(await asyncio.gather(*(reply() for _ in range(5))))
    async with cotenant.request():
        await asyncio.sleep(0)
    return answered + 1


with cotenant.request() as outer:
    count += answer()
    with outer:  # again while it is in progress
        count += 1
    count += 1
try:
    with cotenant.request(arrived_ns=time.monotonic_ns() - 50_000_000):
        raise ValueError("a request that fails has taken its time, too")
except ValueError:
    count += 1
count += asyncio.run(replies())
with ThreadPoolExecutor(4) as pool:
    count += sum(pool.map(lambda _: answer(), range(40)))
cotenant.request.ended(7_000_000)
print(count + 1, cotenant.request.is_recorded())
