"""Run other people's programs on a software GPU; the argument is a virtual environment that contains tinygrad.

`make test-external` calls it. It needs the network once, for the packages, and is not part of CI.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cotenant.softgpu import manage

PROGRAM = Path(__file__).with_name("external_tinygrad.py")


def main() -> int:
    environment = Path(sys.argv[1]).resolve()
    libraries = next(environment.glob("lib/python*/site-packages/nvidia/cuda_nvrtc/lib"), None)
    if libraries is None:
        print(f"external: {environment} contains no NVRTC: run `make test-external`", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="cotenant-external-") as folder:
        directory = Path(folder) / "gpu"
        manage.create(directory, "a100", 1)
        try:
            variables = {
                **os.environ,
                **manage.env(directory),
                "DEV": "CUDA",
                "CACHEDB": str(Path(folder) / "cache.db"),
            }
            variables["CUDA_PATH"] = str(libraries.parents[1] / "cuda_runtime")  # headers of half precision
            variables["LD_LIBRARY_PATH"] = f"{variables['LD_LIBRARY_PATH']}:{libraries}"
            print("external: tinygrad trains and answers on a software A100", flush=True)
            done = subprocess.run([environment / "bin" / "python", PROGRAM], env=variables, check=False)
            code = manage.inspect(directory, 0)["code"]
            print(f"external: {code['executable_kernels']} kernels were executable, {code['refused_kernels']} were not")
        finally:
            manage.destroy(directory)
    return done.returncode or int(code["refused_kernels"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
