"""The C tests pass under the address and undefined-behaviour sanitizers."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.effort import IS_SOAK
from tests.support.tools import ROOT, run, run_or_fail, tool

SANITIZERS = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}

# Against hangs alone: on a busy machine the fuzzers take many times their time, and in a soak they take their time.
LIMIT_S = 7200 if IS_SOAK else 500
pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]  # for a build and its tests


def run_native_tests(root: Path, build: Path) -> subprocess.CompletedProcess[str]:
    configure: list[str | Path] = [tool("cmake"), "-S", root, "-B", build, "-G", "Ninja"]
    kind = ["-DCMAKE_BUILD_TYPE=Debug", "-DCOTENANT_SANITIZE=ON", "-DCOTENANT_NATIVE_TESTS=ON"]
    run_or_fail([*configure, *kind, f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"], root)
    run_or_fail([tool("cmake"), "--build", build], root, timeout_s=LIMIT_S)
    # ctest succeeds when it finds no test at all unless it is told otherwise.
    options = ["--output-on-failure", "--no-tests=error", "--timeout", str(LIMIT_S), "--parallel", "2"]
    return run([tool("ctest"), "--test-dir", build / "native", *options], root, SANITIZERS, LIMIT_S)


@pytest.mark.slow
def test_every_native_test_passes_under_sanitizers() -> None:
    done = run_native_tests(ROOT, ROOT / "build" / "asan")
    assert done.returncode == 0, done.stdout


FAULTS = {
    "a wrong answer": ("EXPECT(argc == 0);", "expected argc == 0"),
    "a read past the end": (
        "char *p = malloc((size_t)argc); EXPECT(p[argc * 2] != 42); free(p);",
        "heap-buffer-overflow",
    ),
    "a use after free": ("int *p = malloc(4); free(p); EXPECT(p[argc - 1] != 42);", "heap-use-after-free"),
    "a leak": ("volatile char *p = malloc((size_t)argc); p[0] = 1; p = NULL;", "detected memory leaks"),
    "an overflow": ("int big = 2147483647; EXPECT(big + argc != 42);", "signed integer overflow"),
}


@pytest.mark.slow
def test_suite_detects_each_kind_of_fault(tmp_path: Path) -> None:
    """One tree with one broken test per kind, because a configure and build each would take seconds."""
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    folder = tmp_path / "native" / "tests"
    shutil.copytree(ROOT / "native" / "tests", folder)
    # The tested libraries are left out: these tests do not need them, and they take half a minute to build.
    (tmp_path / "native" / "CMakeLists.txt").write_text("add_subdirectory(tests)\n", encoding="utf-8")
    recipe, end, _ = (folder / "CMakeLists.txt").read_text(encoding="utf-8").partition("endfunction()\n")
    with (folder / "CMakeLists.txt").open("w", encoding="utf-8") as cmake:
        cmake.write(recipe + end)  # native_test itself is the project's own; the project's tests ran above
        for number, (body, _) in enumerate(FAULTS.values()):
            text = f'#include "expect.h"\nint main(int argc, char **argv)\n{{\n(void)argv;\n{body}\nreturn 0;\n}}\n'
            (folder / f"fault_{number}.c").write_text(text, encoding="utf-8")
            cmake.write(f"native_test(fault_{number} fault_{number}.c)\n")
            # The compiler would refuse some of these by itself; here the sanitizers are tested.
            cmake.write(f"target_compile_options(fault_{number} PRIVATE -w)\n")
    done = run_native_tests(tmp_path, tmp_path / "build")
    assert done.returncode != 0
    assert f"{len(FAULTS)} tests failed" in done.stdout, done.stdout
    missed = [name for name, (_, message) in FAULTS.items() if message not in done.stdout]
    assert not missed, done.stdout
