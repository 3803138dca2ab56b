"""Run other people's programs on a software GPU; the argument is a virtual environment that contains their packages.

`make test-external` calls it. It needs the network once, for the packages, and is not part of CI. Further arguments
select parts by name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cotenant.softgpu import manage

HERE: Final = Path(__file__).parent
KNOWN: Final = {
    "test_set_registers_no_max": "reads the registers of a kernel, which only a compiler of machine code knows",
    "test_kernel_with_buffer": "CuPy is not installed, which the runner counts as an error",
    "test_kernel_with_strided_memory_view": "CuPy is not installed, which the runner counts as an error",
}
"""Tests of numba-cuda that fail, and why."""


CUDAPY: Final = [
    "array_reductions",
    "atomics",
    "bfloat16",
    "blackscholes",
    "complex",
    "constmem",
    "cooperative_groups",
    "exception",
    "fastmath",
    "intrinsics",
    "laplace",
    "libdevice",
    "localmem",
    "mandel",
    "math",
    "montecarlo",
    "operator",
    "print",
    "random",
    "record_dtype",
    "recursion",
    "reduction",
    "sm",
    "sync",
    "userexc",
    "vectorize",
    "warp_ops",
]
"""Modules of numba-cuda's tests of kernels that are run; the others take hours or need CuPy."""


class Site:
    """A software A100, the environment of programs on it, and the interpreter with their packages."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.directory = folder / "gpu"
        self.environment = environment
        self.python = environment / "bin" / "python"
        self.packages = next(environment.glob("lib/python*/site-packages"))
        nvidia = self.packages / "nvidia"
        self.headers = [nvidia / name / "include" for name in ("cuda_runtime", "cuda_cccl", "cuda_nvcc")]
        manage.create(self.directory, "a100", 1)
        self.variables = {**os.environ, **manage.env(self.directory), "CACHEDB": str(folder / "cache.db")}
        self.variables["CUDA_PATH"] = str(nvidia / "cuda_runtime")  # headers of half precision
        self.variables["LD_LIBRARY_PATH"] += f":{nvidia / 'cuda_nvrtc' / 'lib'}"

    def run(self, title: str, *words: str | Path, variables: Mapping[str, str] | None = None) -> bool:
        """Run a program with these packages; return whether it succeeded."""
        print(f"external: {title}", flush=True)
        environ = {**self.variables, **(variables or {})}
        return subprocess.run([self.python, *words], env=environ, check=False).returncode == 0


def tinygrad(site: Site) -> bool:
    """Train and answer with both of tinygrad's renderers: CUDA C through NVRTC, and PTX."""
    program = HERE / "external_tinygrad.py"
    passed = [
        site.run(f"tinygrad trains and answers ({device})", program, variables={"DEV": device})
        for device in ("CUDA", "CUDA:PTX")
    ]
    return all(passed)


def cuda(site: Site) -> bool:
    """Run CUDA C++ programs compiled by NVRTC through cuda-core."""
    return site.run("CUDA C++ through cuda-core and NVRTC", HERE / "external_cuda.py", *site.headers)


def triton(site: Site) -> bool:
    """Run kernels that Triton compiles for an A100 and an H100, whole and in parts, with the product's interpreter."""
    hopper = site.directory.parent / "hopper"
    manage.create(hopper, "h100", 1)
    passed = []
    try:
        for directory, target in ((site.directory, "80"), (hopper, "90")):
            print(f"external: kernels of Triton for compute capability {target}", flush=True)
            folders = {"PYTHONPATH": str(site.environment / "triton"), "TRITON_CACHE_DIR": str(hopper.parent / target)}
            variables = {**os.environ, **manage.env(directory), **folders, "TRITON_DEFAULT_FP_FUSION": "1"}
            command = [sys.executable, HERE / "external_triton.py", target]
            passed.append(subprocess.run(command, env=variables, check=False).returncode == 0)
    finally:
        manage.destroy(hopper)
    return all(passed)


def framework(site: Site) -> bool:
    """Run the demo of a framework, whose programs are tenants."""
    print("external: cotenant demo --story framework", flush=True)
    variables = {**os.environ, "PYTHONPATH": str(site.environment / "tinygrad")}
    command = [sys.executable, "-m", "cotenant", "demo", "--story", "framework"]
    return subprocess.run(command, env=variables, check=False).returncode == 0


def suite_results(output: str) -> Iterator[tuple[str, str]]:
    """Yield the tests that failed or could not run, and which of both."""
    for word, name in re.findall(r"^(FAIL|ERROR): (\w+)", output, re.MULTILINE):
        yield name, word


def numba(site: Site) -> bool:
    """Run the driver tests of numba-cuda with the driver's linker."""
    return numba_suite(site, "numba.cuda.tests.cudadrv")


def cudapy(site: Site) -> bool:
    """Run tests of kernels of numba-cuda with the driver's linker."""
    passed = [numba_suite(site, f"numba.cuda.tests.cudapy.test_{name}") for name in CUDAPY]
    return all(passed)


def numba_suite(site: Site, suite: str) -> bool:
    """Run a suite of numba-cuda; return whether all failures are those listed above."""
    print(f"external: {suite}, with the driver's linker", flush=True)
    command = [site.python, "-m", "numba.runtests", "-v", suite]
    done = subprocess.run(command, env=site.variables, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    unknown = {name: word for name, word in suite_results(output) if name not in KNOWN}
    for line in output.splitlines()[-3:]:
        print(line)
    for name, word in unknown.items():
        print(f"external: {word} of {name}, which is not known")
    return not unknown and "Ran " in output


PARTS: Final = {
    "tinygrad": tinygrad,
    "cuda": cuda,
    "triton": triton,
    "framework": framework,
    "numba": numba,
    "cudapy": cudapy,
}


def main() -> int:
    environment, chosen = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(PARTS)
    if not next(environment.glob("lib/python*/site-packages/nvidia/cuda_nvrtc/lib"), None):
        print(f"external: {environment} contains no NVRTC: run `make test-external`", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="cotenant-external-") as folder:
        site = Site(environment, Path(folder))
        try:
            failed = [name for name in chosen if not PARTS[name](site)]
            code = manage.inspect(site.directory, 0)["code"]
        finally:
            manage.destroy(site.directory)
    print(f"external: {code['executable_kernels']} kernels were executable, {code['refused_kernels']} were not")
    print(f"external: {', '.join(failed)} failed" if failed else "external: everything passed")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
