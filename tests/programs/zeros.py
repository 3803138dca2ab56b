"""Call every function of the driver with zero arguments; any answer is accepted, a crash is not."""

from __future__ import annotations

import collections
import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")
ZEROS = [ctypes.c_uint64(0)] * 12
SYMBOLS = sys.stdin.read().split()
assert cuda.cuInit(0) == 0
answers: collections.Counter[int] = collections.Counter()
for symbol in SYMBOLS:
    answers[getattr(cuda, symbol)(*ZEROS)] += 1
for symbol in SYMBOLS:
    # A call may have ended the context: each starts with one.
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0, symbol
    assert cuda.cuCtxSetCurrent(context) == 0, symbol
    answers[getattr(cuda, symbol)(*ZEROS)] += 1
print(dict(answers))
