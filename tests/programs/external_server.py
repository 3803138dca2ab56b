"""Run other people's clients against a model server; the argument is a virtual environment that contains them.

`make test-external-server` calls it. It needs the network once, for the packages, and is not part of CI. The examples
of NVIDIA's client are in no package: the variable TRITON_CLIENT names a clone of
https://github.com/triton-inference-server/client, and without it they are skipped. NVIDIA's perf_analyzer is run if the
environment contains it and its libraries are installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

KSERVE = Path(__file__).with_name("external_kserve.py")
TIMEOUT_S = 120
MODELS = '''
"""The models that the examples of NVIDIA's client expect."""

import time

import numpy as np

from cotenant.api import Model


def both(tensors):
    return {"OUTPUT0": tensors["INPUT0"] + tensors["INPUT1"], "OUTPUT1": tensors["INPUT0"] - tensors["INPUT1"]}


def both_as_text(tensors):
    first, second = (np.vectorize(int, otypes=[np.int64])(tensors[name]) for name in ("INPUT0", "INPUT1"))
    as_text = np.vectorize(lambda number: str(number).encode(), otypes=[object])
    return {"OUTPUT0": as_text(first + second), "OUTPUT1": as_text(first - second)}


def repeated(tensors):
    time.sleep(float(tensors["WAIT"][0]) / 1000)
    for index, value in enumerate(tensors["IN"]):
        time.sleep(float(tensors["DELAY"][index]) / 1000)
        yield {"OUT": np.array([value], np.int32), "IDX": np.array([index], np.uint32)}


def pair(kind, names):
    return {name: (kind, (16,)) for name in names}


def adding(name, kind, run=both):
    return Model(run, name=name, inputs=pair(kind, ("INPUT0", "INPUT1")), outputs=pair(kind, ("OUTPUT0", "OUTPUT1")),
                 max_batch=8)


simple = adding("simple", "INT32")
simple_int8 = adding("simple_int8", "INT8")
simple_string = adding("simple_string", "BYTES", both_as_text)
simple_identity = Model(lambda tensors: {"OUTPUT0": tensors["INPUT0"]}, name="simple_identity",
                        inputs={"INPUT0": ("BYTES", (-1,))}, outputs={"OUTPUT0": ("BYTES", (-1,))}, max_batch=8)
custom_identity_int32 = Model(lambda tensors: {"OUTPUT0": tensors["INPUT0"]}, name="custom_identity_int32",
                              inputs={"INPUT0": ("INT32", (-1,))}, outputs={"OUTPUT0": ("INT32", (-1,))}, max_batch=8)
repeat_int32 = Model(repeated, name="repeat_int32", decoupled=True,
                     inputs={"IN": ("INT32", (-1,)), "DELAY": ("UINT32", (-1,)), "WAIT": ("UINT32", (1,))},
                     outputs={"OUT": ("INT32", (1,)), "IDX": ("UINT32", (1,))})
'''
EXAMPLES = (
    "grpc_explicit_byte_content_client",
    "grpc_explicit_int8_content_client",
    "grpc_explicit_int_content_client",
    "memory_growth_test",
    "reuse_infer_objects_client",
    "simple_grpc_aio_infer_client",
    "simple_grpc_async_infer_client",
    "simple_grpc_custom_args_client",
    "simple_grpc_custom_repeat",
    "simple_grpc_infer_client",
    "simple_grpc_keepalive_client",
    "simple_grpc_shm_client",
    "simple_grpc_shm_string_client",
    "simple_grpc_string_infer_client",
    "simple_http_aio_infer_client",
    "simple_http_async_infer_client",
    "simple_http_infer_client",
    "simple_http_shm_client",
    "simple_http_shm_string_client",
    "simple_http_string_infer_client",
)
REFUSED = {
    "simple_grpc_aio_sequence_stream_infer_client": "sequences of requests",
    "simple_grpc_sequence_stream_infer_client": "sequences of requests",
    "simple_grpc_sequence_sync_infer_client": "sequences of requests",
    "simple_http_sequence_sync_infer_client": "sequences of requests",
    "simple_grpc_cudashm_client": "CUDA shared memory",
    "simple_http_cudashm_client": "CUDA shared memory",
    "simple_grpc_model_control": "model control without a token, and with a replaced configuration",
    "simple_http_model_control": "model control without a token, and with a replaced configuration",
    "simple_grpc_health_metadata": "a server with the name `triton`",
    "simple_http_health_metadata": "a server with the name `triton`",
    "grpc_client": "the model densenet_onnx",
    "image_client": "a trained network and a picture",
    "grpc_image_client": "a trained network and a picture",
    "ensemble_image_client": "ensembles",
}
"""Examples that need what the server does not have, or refuses."""


def run(name: str, command: Sequence[str | Path], variables: dict[str, str]) -> bool:
    """Run a program; print whether it passed, and otherwise its last lines."""
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"external: {name}: failed: it did not end within {TIMEOUT_S} s", flush=True)
        return False
    print(f"external: {name}: {'passed' if done.returncode == 0 else 'failed'}", flush=True)
    if done.returncode:
        print("\n".join((done.stdout + done.stderr).strip().splitlines()[-8:]), flush=True)
    return done.returncode == 0


def run_examples(python: Path, folder: Path, variables: dict[str, str]) -> list[bool]:
    """Run the examples of NVIDIA's client as they are; the server has the ports that they expect."""
    known = {*EXAMPLES, *REFUSED}
    passed = []
    for path in sorted(folder.glob("*.py")):
        if path.stem in REFUSED:
            print(f"external: {path.stem}: not run: it needs {REFUSED[path.stem]}")
        elif path.stem in EXAMPLES:
            more = ("-r", "20") if path.stem == "memory_growth_test" else ()
            passed.append(run(path.stem, [python, path, *more], variables))
        else:
            print(f"external: {path.stem}: not run: it is not known here")
    missing = sorted(name for name in known if not (folder / f"{name}.py").exists())
    if missing:
        print(f"external: {folder} does not contain {', '.join(missing)}")
    return passed


def run_perf_analyzer(program: Path, variables: dict[str, str]) -> list[bool]:
    """Run NVIDIA's load generator over both protocols, with and without shared memory and streams."""
    if (
        not program.exists()
        or subprocess.run([program, "--version"], env=variables, capture_output=True, check=False).returncode
    ):
        print(f"external: perf_analyzer: not run: {program} needs libraries that are not installed (libb64, libcudart)")
        return []
    common = ("-m", "simple", "-b", "4", "--concurrency-range", "1:5:4", "-p", "1000", "-s", "999", "-r", "20")
    forms = {
        "http": ("-i", "http", "-u", "localhost:8000"),
        "http, shared memory": ("-i", "http", "-u", "localhost:8000", "--shared-memory", "system"),
        "grpc": ("-i", "grpc", "-u", "localhost:8001"),
        "grpc, stream": ("-i", "grpc", "-u", "localhost:8001", "--streaming"),
        "grpc, shared memory": ("-i", "grpc", "-u", "localhost:8001", "--shared-memory", "system"),
    }
    return [run(f"perf_analyzer, {name}", [program, *common, *form], variables) for name, form in forms.items()]


def main() -> int:
    environment = Path(sys.argv[1]).resolve()
    python = environment / "bin" / "python"
    clone = os.environ.get("TRITON_CLIENT")
    libraries = [str(path.parent) for path in environment.glob("lib/**/lib*.so.*")]
    paths = [*libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    variables = {**os.environ, "LD_LIBRARY_PATH": ":".join(dict.fromkeys(paths))}
    with tempfile.TemporaryDirectory(prefix="cotenant-external-") as home:
        models = Path(home) / "models"
        models.mkdir()
        (models / "examples.py").write_text(MODELS)
        command = [sys.executable, "-m", "cotenant", "serve", "run", str(models), "--json"]
        server = subprocess.Popen(command, env={**os.environ, "COTENANT_DIRECTORY": home}, stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            if not server.stdout.readline():
                print("external: the server does not start: are the ports 8000 to 8002 in use?", file=sys.stderr)
                return 1
            passed = [run("KServe's clients", [python, KSERVE, "localhost:8000", "localhost:8001"], variables)]
            if clone:
                passed += run_examples(python, Path(clone) / "src" / "python" / "examples", variables)
            else:
                print("external: the examples of NVIDIA's client are not run: TRITON_CLIENT names no clone of them")
            passed += run_perf_analyzer(environment / "old" / "bin" / "perf_analyzer", variables)
        finally:
            server.terminate()
            server.communicate(timeout=60)
    print(f"external: {sum(passed)} of {len(passed)} programs passed")
    return int(not all(passed))


if __name__ == "__main__":
    raise SystemExit(main())
