"""Methods to allocate and free device memory, as driver calls through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from random import Random
from typing import Final

from cotenant_lab.programs.board import Mail
from cotenant_lab.programs.client import CudaClient, CudaError

GRANULE: Final = 2 << 20
_IMAGE: Final = b"softgpu-image 1\nkernel spin\n params 8\n duration_param 0\n"
_UNSIGNED_INT8: Final = 1
_PINNED: Final = 1
_DEVICE: Final = 1
_GLOBAL: Final = 1
_LAZY_PEERS: Final = 1
_OPAQUE_BYTES: Final = 64

Undo = Callable[[], None]


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _PoolProps(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("max_bytes", ctypes.c_size_t),
        ("reserved", ctypes.c_ubyte * 56),
    )


class _AllocNode(ctypes.Structure):
    _fields_ = (
        ("props", _PoolProps),
        ("access", ctypes.c_void_p),
        ("access_count", ctypes.c_size_t),
        ("size_bytes", ctypes.c_size_t),
        ("pointer", ctypes.c_uint64),
    )


class _PhysicalProps(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    )


class _Array3D(ctypes.Structure):
    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


class _Opaque(ctypes.Structure):
    """Passed by value."""

    _fields_ = (("bytes", ctypes.c_ubyte * _OPAQUE_BYTES),)


def _rounded(size_bytes: int, step: int) -> int:
    return -(-size_bytes // step) * step


class MemoryMethods:
    """Allocates memory by every method; each returns an undo function, or raises `CudaError` without effect."""

    def __init__(self, client: CudaClient, rng: Random, mail: Mail) -> None:
        """Use the context of the client."""
        self._client = client
        self._call = client.call
        self._rng = rng
        self._mail = mail
        self._home = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(self._home))
        self._pools: list[ctypes.c_void_p] = []
        self.methods: dict[str, Callable[[int], Undo]] = {
            "plain": self._plain,
            "pitch": self._pitch,
            "managed": self._managed,
            "async": self._async,
            "pool": self._from_pool,
            "pool_make": self._pool_make,
            "physical": self._physical,
            "array": self._array,
            "array3d": self._array3d,
            "mipmap": self._mipmap,
            "graph": self._graph,
            "graph_kept": self._graph_kept,
            "export": self._export,
            "open": self._open,
            "module": self._module,
            "context": self._context,
        }

    def _free(self, pointer: ctypes.c_uint64) -> None:
        """Free at once or in stream order after some work."""
        if self._rng.random() < 0.5:
            self._call("cuMemFree_v2", pointer)
            return
        if self._rng.random() < 0.5:
            self._client.launch(20_000, blocks=1)
        self._call("cuMemFreeAsync", pointer, None)

    def _plain(self, size_bytes: int) -> Undo:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        return lambda: self._free(pointer)

    def _pitch(self, size_bytes: int) -> Undo:
        pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
        width, height = ctypes.c_size_t(1 + self._rng.randrange(5000)), ctypes.c_size_t(1 + size_bytes // 5000)
        self._call("cuMemAllocPitch_v2", ctypes.byref(pointer), ctypes.byref(pitch), width, height, ctypes.c_uint(4))
        return lambda: self._free(pointer)

    def _managed(self, size_bytes: int) -> Undo:
        pointer = ctypes.c_uint64()
        self._call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size_bytes), ctypes.c_uint(_GLOBAL))
        return lambda: self._call("cuMemFree_v2", pointer)

    def _async(self, size_bytes: int) -> Undo:
        pointer = ctypes.c_uint64()
        self._call("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size_bytes), None)
        return lambda: self._free(pointer)

    def _from_pool(self, size_bytes: int) -> Undo:
        if not self._pools:
            return self._async(size_bytes)
        pointer, pool = ctypes.c_uint64(), self._rng.choice(self._pools)
        self._call("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(size_bytes), pool, None)
        return lambda: self._free(pointer)

    def _pool_make(self, size_bytes: int) -> Undo:
        """Create a pool; some keep reserved memory."""
        pool, props = ctypes.c_void_p(), _pool_props()
        self._call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(props))
        threshold = ctypes.c_uint64(size_bytes if self._rng.random() < 0.5 else 0)
        self._call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(threshold))
        self._pools.append(pool)

        def undo() -> None:
            self._pools.remove(pool)
            self._call("cuMemPoolDestroy", pool)

        return undo

    def _physical(self, size_bytes: int) -> Undo:
        """Map physical memory; release its handle before or after the mapping."""
        handle, address = ctypes.c_uint64(), ctypes.c_uint64()
        props = _PhysicalProps(_PINNED, 0, _Location(_DEVICE, 0))
        size = ctypes.c_size_t(_rounded(size_bytes, GRANULE))
        zero = ctypes.c_ulonglong(0)
        self._call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(props), zero)
        if self._rng.random() < 0.3:
            return lambda: self._call("cuMemRelease", handle)
        self._call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), ctypes.c_uint64(0), zero)
        self._call("cuMemMap", address, size, ctypes.c_size_t(0), handle, zero)
        released_first = self._rng.random() < 0.5
        if released_first:
            self._call("cuMemRelease", handle)

        def undo() -> None:
            self._call("cuMemUnmap", address, size)
            self._call("cuMemAddressFree", address, size)
            if not released_first:
                self._call("cuMemRelease", handle)

        return undo

    def _array(self, size_bytes: int) -> Undo:
        array, descriptor = ctypes.c_void_p(), _Array(4096, max(1, size_bytes // 4096), _UNSIGNED_INT8, 1)
        self._call("cuArrayCreate_v2", ctypes.byref(array), ctypes.byref(descriptor))
        return lambda: self._call("cuArrayDestroy", array)

    def _array3d(self, size_bytes: int) -> Undo:
        array, descriptor = ctypes.c_void_p(), _Array3D(64, 64, max(1, size_bytes // 4096 % 2048), _UNSIGNED_INT8, 1, 0)
        self._call("cuArray3DCreate_v2", ctypes.byref(array), ctypes.byref(descriptor))
        return lambda: self._call("cuArrayDestroy", array)

    def _mipmap(self, size_bytes: int) -> Undo:
        array, descriptor = (
            ctypes.c_void_p(),
            _Array3D(1024, max(1, size_bytes // 1024 % 8192), 0, _UNSIGNED_INT8, 1, 0),
        )
        self._call("cuMipmappedArrayCreate", ctypes.byref(array), ctypes.byref(descriptor), ctypes.c_uint(4))
        return lambda: self._call("cuMipmappedArrayDestroy", array)

    def _graph_of(self, size_bytes: int, *, keeps: bool) -> Undo:
        """Create a graph, launch it a few times if it frees its allocations, and destroy it with what it kept."""
        graph, ready, node, freed = (ctypes.c_void_p() for _ in range(4))
        parameters = _AllocNode(props=_pool_props(), size_bytes=size_bytes)
        self._call("cuGraphCreate", ctypes.byref(graph), ctypes.c_uint(0))
        self._call(
            "cuGraphAddMemAllocNode", ctypes.byref(node), graph, None, ctypes.c_size_t(0), ctypes.byref(parameters)
        )
        if not keeps:
            count = ctypes.c_size_t(1)
            pointer = ctypes.c_uint64(parameters.pointer)
            self._call("cuGraphAddMemFreeNode", ctypes.byref(freed), graph, ctypes.byref(node), count, pointer)

        def undo() -> None:
            if ready.value:
                self._call("cuGraphExecDestroy", ready)
            self._call("cuGraphDestroy", graph)

        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
            for _ in range(1 if keeps else self._rng.randrange(1, 4)):
                self._call("cuGraphLaunch", ready, None)
        except CudaError:
            undo()
            raise
        if not keeps:
            return undo

        def undo_kept() -> None:
            if self._rng.random() < 0.5:
                undo()
                self._call("cuMemFree_v2", ctypes.c_uint64(parameters.pointer))
            else:
                self._call("cuMemFreeAsync", ctypes.c_uint64(parameters.pointer), None)
                undo()

        return undo_kept

    def _graph(self, size_bytes: int) -> Undo:
        return self._graph_of(size_bytes, keeps=False)

    def _graph_kept(self, size_bytes: int) -> Undo:
        return self._graph_of(size_bytes, keeps=True)

    def _export(self, size_bytes: int) -> Undo:
        """Export memory for processes of this tenant and others."""
        handle, pointer = _Opaque(), ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        try:
            self._call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
        except CudaError:
            self._call("cuMemFree_v2", pointer)
            raise
        number, letter = self._rng.randrange(1 << 20), bytes(handle.bytes)
        self._mail.send(number, letter)

        def undo() -> None:
            self._mail.recall(number, letter)
            self._call("cuMemFree_v2", pointer)

        return undo

    def _open(self, size_bytes: int) -> Undo:
        """Open exported memory, if it still exists."""
        pointer, handle = ctypes.c_uint64(), _Opaque()
        ctypes.memmove(handle.bytes, self._mail.take(size_bytes), _OPAQUE_BYTES)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, ctypes.c_uint(_LAZY_PEERS))
        return lambda: self._call("cuIpcCloseMemHandle", pointer)

    def _module(self, _size_bytes: int) -> Undo:
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), _IMAGE)
        return lambda: self._call("cuModuleUnload", module)

    def _context(self, size_bytes: int) -> Undo:
        """Create a context with an allocation that ends with it."""
        context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        try:
            self._call("cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0), ctypes.c_int(0))
            self._client.try_call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        finally:
            self._call("cuCtxSetCurrent", self._home)
        return lambda: self._end_context(context)

    def _end_context(self, context: ctypes.c_void_p) -> None:
        self._call("cuCtxDestroy_v2", context)
        self._call("cuCtxSetCurrent", self._home)


def _pool_props() -> _PoolProps:
    return _PoolProps(type=_PINNED, location=_Location(_DEVICE, 0))
