"""Clusters of blocks: numbers, barrier, shared memory of others, copies to several blocks, and refused sizes."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import code, ok

HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n"
REGISTERS = ".reg .b64 %d<12>; .reg .b32 %r<32>; .reg .pred %p<4>; ld.param.u64 %d1, [a]; mov.u32 %r1, %tid.x;\n"
THREADS = 64


def load(name: str, body: str, *, limits: str = "", variables: str = "") -> Any:
    text = f"{HEAD}{variables}.visible .entry {name}(.param .u64 a) {limits}\n{{ {REGISTERS}{body}\n ret; }}\n"
    return ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(text.encode())), name.encode()))


def launch(
    function: Any, grid: tuple[int, int, int], cluster: tuple[int, int, int] | None, words: int, stream: Any = 0
) -> Any:
    """Launch with an attribute of this cluster; return what is written, or the refusal."""
    pointer = ok(driver.cuMemAlloc(words * 4))
    ok(driver.cuMemsetD32(pointer, 7, words))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
    config.hStream = stream
    if cluster:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster
        config.attrs, config.numAttrs = [attribute], 1
    answer = driver.cuLaunchKernelEx(config, function, ((int(pointer),), (ctypes.c_uint64,)), 0)
    if code(answer) != "CUDA_SUCCESS":
        return code(answer)
    out = np.empty(words, np.uint32)
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemcpyDtoH(out, pointer, out.nbytes))
    return out


NUMBERS = ["%cluster_ctarank", "%cluster_nctarank", "%clusterid.x", "%clusterid.y", "%nclusterid.x", "%cluster_ctaid.x",
           "%cluster_ctaid.y", "%cluster_nctaid.y", "%ctaid.x", "%ctaid.y"]  # fmt: skip


def numbers() -> None:
    stores = "".join(f"mov.u32 %r2, {name}; st.global.u32 [%d2+{4 * k}], %r2; " for k, name in enumerate(NUMBERS))
    body = f"""mov.u32 %r3, %ctaid.y; mov.u32 %r4, %nctaid.x; mov.u32 %r5, %ctaid.x; mad.lo.u32 %r3, %r3, %r4, %r5;
  mul.wide.u32 %d2, %r3, 44; add.u64 %d2, %d1, %d2; {stores}
  mov.pred %p1, %is_explicit_cluster; selp.u32 %r2, 1, 0, %p1; st.global.u32 [%d2+40], %r2;"""
    function = load("numbers", body)
    for cluster in (None, (1, 1, 1), (2, 2, 1), (4, 1, 1), (1, 2, 1)):
        width, height = (cluster or (1, 1, 1))[:2]
        out = launch(function, (8, 4, 1), cluster, 11 * 32).reshape(4, 8, 11)
        for y in range(4):
            for x in range(8):
                rank = x % width + y % height * width
                expected = [
                    rank,
                    width * height,
                    x // width,
                    y // height,
                    8 // width,
                    x % width,
                    y % height,
                    height,
                    x,
                    y,
                ]
                assert out[y, x].tolist() == [*expected, cluster is not None], (cluster, x, y)
    assert launch(function, (8, 4, 1), (3, 1, 1), 352) == "CUDA_ERROR_INVALID_CLUSTER_SIZE"
    assert launch(function, (16, 1, 1), (16, 1, 1), 352) == "CUDA_ERROR_INVALID_CLUSTER_SIZE"
    ok(
        driver.cuFuncSetAttribute(
            function, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1
        )
    )
    assert launch(function, (16, 1, 1), (16, 1, 1), 352).reshape(-1, 11)[:16, 0].tolist() == list(range(16))


EXCHANGE = """mov.u32 %r2, words; shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3; mov.u32 %r5, %cluster_ctarank;
  mov.u32 %r6, %ctaid.x; mad.lo.u32 %r7, %r6, 64, %r1; mov.u32 %r9, 3; st.shared.u32 [%r4], %r7;
TURN:
  barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
  mov.u32 %r10, %cluster_nctarank; add.u32 %r11, %r5, 1; rem.u32 %r11, %r11, %r10;
  mapa.shared::cluster.u32 %r12, %r4, %r11; ld.shared::cluster.u32 %r13, [%r12];
  cvt.u64.u32 %d3, %r4; cvta.shared.u64 %d3, %d3; mapa.u64 %d4, %d3, %r11; ld.u32 %r14, [%d4];
  getctarank.u64 %r15, %d4; getctarank.shared::cluster.u32 %r16, %r4; setp.ne.u32 %p1, %r15, %r11;
  setp.ne.or.u32 %p1, %r16, %r5, %p1; setp.ne.or.u32 %p1, %r13, %r14, %p1; @%p1 trap;
  isspacep.shared::cluster %p2, %d4; @!%p2 trap; isspacep.shared %p2, %d4; setp.eq.u32 %p3, %r11, %r5;
  xor.pred %p2, %p2, %p3; @%p2 trap;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  add.u32 %r13, %r13, 1; st.shared.u32 [%r4], %r13; sub.u32 %r9, %r9, 1; setp.ne.u32 %p1, %r9, 0; @%p1 bra TURN;
  mul.wide.u32 %d5, %r7, 4; add.u64 %d5, %d1, %d5; st.global.u32 [%d5], %r13;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""


def exchange() -> None:
    """Each block adds one to the words of the next one, three times; by attribute, by directive, and in a graph."""
    variables = ".shared .align 16 .b32 words[64];\n"
    plain = load("k", EXCHANGE, variables=variables)
    required = load("k", EXCHANGE, limits=".reqnctapercluster 4", variables=variables)
    for size, function, cluster in (
        (1, plain, None),
        (2, plain, (2, 1, 1)),
        (8, plain, (8, 1, 1)),
        (4, required, None),
    ):
        out = launch(function, (16, 1, 1), cluster, 16 * 64).reshape(16 // size, size, 64)
        start = np.arange(16 * 64).reshape(16 // size, size, 64)
        assert (out == np.roll(start, -3, axis=1) + 3).all(), size
    width = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
    assert ok(driver.cuFuncGetAttribute(width, required)) == 4
    assert ok(driver.cuFuncGetAttribute(width, plain)) == 0
    assert launch(required, (16, 1, 1), (2, 1, 1), 1024) == "CUDA_ERROR_INVALID_CLUSTER_SIZE"
    assert launch(required, (6, 1, 1), None, 1024) == "CUDA_ERROR_INVALID_CLUSTER_SIZE"
    stream = ok(driver.cuStreamCreate(0))
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    pointer = ok(driver.cuMemAlloc(4096))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY, config.blockDimZ = (
        16,
        1,
        1,
        64,
        1,
        1,
    )
    config.hStream = stream
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x = attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
    attribute.value.clusterDim.x = 4
    config.attrs, config.numAttrs = [attribute], 1
    ok(driver.cuLaunchKernelEx(config, plain, ((int(pointer),), (ctypes.c_uint64,)), 0))
    graph = ok(driver.cuStreamEndCapture(stream))
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), stream))
    ok(driver.cuStreamSynchronize(stream))
    out = np.empty(1024, np.uint32)
    ok(driver.cuMemcpyDtoH(out, pointer, out.nbytes))
    assert (out.reshape(4, 4, 64) == np.roll(np.arange(1024).reshape(4, 4, 64), -3, axis=1) + 3).all()


def multicast() -> None:
    """One block copies to others of its cluster and completes their barriers; exited threads are not awaited."""
    body = """mov.u32 %r2, words; mov.u32 %r3, barrier; setp.eq.u32 %p1, %r1, 0; mov.u32 %r4, 256;
  @%p1 mbarrier.init.shared::cta.b64 [%r3], 1; @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], %r4;
  setp.ge.u32 %p2, %r1, 48; @%p2 ret;
  barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r5, %cluster_ctarank; setp.eq.and.u32 %p2, %r5, 1, %p1;
  cvt.u16.u32 %h1, 13;
  @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
    [%r2], [%d1], %r4, [%r3], %h1;
  setp.eq.u32 %p3, %r5, 1; @%p3 bra END;
WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra WAIT;
  shl.b32 %r6, %r1, 2; add.u32 %r7, %r2, %r6; ld.shared.u32 %r8, [%r7]; mov.u32 %r9, %ctaid.x;
  mad.lo.u32 %r9, %r9, 64, %r1;
  add.u32 %r8, %r8, %r5; mul.wide.u32 %d2, %r9, 4; add.u64 %d2, %d1, %d2; st.global.u32 [%d2+256], %r8;
END:
  barrier.cluster.arrive; barrier.cluster.wait;"""
    function = load(
        "k", ".reg .b16 %h<2>;" + body, variables=".shared .align 16 .b32 words[64];\n.shared .b64 barrier;\n"
    )
    out = launch(function, (8, 1, 1), (4, 1, 1), 64 + 8 * 64)[64:].reshape(8, 64)
    for block in range(8):
        rank = block % 4
        assert (out[block, :48] == 7 + (0 if rank == 1 else rank)).all(), block
    assert (out[:, 48:] == 7).all()


def main() -> None:
    ok(driver.cuInit(0))
    ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
    if len(sys.argv) > 1:
        print(launch(load("k", EXCHANGE, variables=".shared .align 16 .b32 words[64];\n"), (16, 1, 1), (4, 1, 1), 1024))
        return
    numbers()
    exchange()
    multicast()
    print("computed")


if __name__ == "__main__":
    main()
