"""Hold device 0 and follow commands: `spin NS BLOCKS`, `copy BYTES`, `take BYTES`; print "done" after each."""

from __future__ import annotations

import sys

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, ok


def main() -> None:
    gpu = Gpu()
    print("done", flush=True)
    for line in sys.stdin:
        word, *numbers = line.split()
        values = [int(number) for number in numbers]
        if word == "spin":
            gpu.spin(values[0], blocks=values[1])
        elif word == "copy":
            gpu.upload(np.zeros(values[0], dtype=np.uint8))
        elif word == "take":
            ok(driver.cuMemAlloc(values[0]))
        ok(driver.cuCtxSynchronize())
        print("done", flush=True)


if __name__ == "__main__":
    main()
