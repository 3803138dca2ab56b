"""Fill device memory with a pattern, check it repeatedly, and write the number of successful checks."""

import signal
import sys
import time
from pathlib import Path

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, ok

checks_path, words = Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
Gpu()
pattern = np.arange(words, dtype=np.uint32)
memory = ok(driver.cuMemAlloc(pattern.nbytes))
ok(driver.cuMemcpyHtoD(memory, pattern.ctypes.data, pattern.nbytes))
checks = 0
while True:
    content = np.zeros_like(pattern)
    ok(driver.cuMemcpyDtoH(content.ctypes.data, memory, content.nbytes))
    assert (content == pattern).all(), "the memory is not what it was"
    checks += 1
    checks_path.with_suffix(".new").write_text(str(checks))
    checks_path.with_suffix(".new").rename(checks_path)
    time.sleep(0.01)
