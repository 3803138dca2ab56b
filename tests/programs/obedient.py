"""Begin and end requests as commanded by the lines of the input, and echo each line."""

import sys
import time
from contextlib import ExitStack

import cotenant

SECOND_NS = 10**9

under_way = ExitStack()
for line in sys.stdin:
    word = line.strip()
    if word == "begin":
        under_way.enter_context(cotenant.request())
    elif word == "late":
        under_way.enter_context(cotenant.request(arrived_ns=time.monotonic_ns() - SECOND_NS))
    elif word == "pass":
        cotenant.request.ended(1)
    elif word == "end":
        under_way.close()
    print(word, flush=True)
