"""Wait for a kernel of a hundred seconds, or of the given number; only a lost device ends it earlier."""

from __future__ import annotations

import sys

from cuda.bindings import driver
from cuda_helpers import Gpu, code

gpu = Gpu(int(driver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC) if sys.argv[1] == "blocking" else 0)
gpu.spin(int(sys.argv[2]) * 1_000_000_000 if len(sys.argv) > 2 else 100_000_000_000)
print("at work", flush=True)
print(code(driver.cuCtxSynchronize()), flush=True)
