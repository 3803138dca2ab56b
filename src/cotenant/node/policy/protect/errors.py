"""The table of error classes, from which docs/reference/errors.md is generated.

CUDA codes are those of cuda.h 13.0, which also documents after which of them a process must restart. Xids and their
scope follow NVIDIA's Xid catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html); where it
leaves the choice open, the project chose.
"""

from __future__ import annotations

from typing import Final

from cotenant.node.model.fault import (
    DaemonFault,
    ErrorClass,
    FaultScope,
    HostFault,
    MpsFault,
    PageFault,
    Remedy,
    Source,
)

_SIGNALS: Final = (
    ErrorClass(
        *(Source.SIGNAL, (1, 2, 3, 15), "asked-to-end", FaultScope.TENANT, Remedy.NONE, False),
        "SIGHUP, SIGINT, SIGQUIT or SIGTERM ended it: the end was requested",
    ),
    ErrorClass(
        *(Source.SIGNAL, (4, 5, 7, 8, 11, 31), "crash", FaultScope.TENANT, Remedy.NONE, True),
        "SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV or SIGSYS ended it: an error of the program on the host",
    ),
    ErrorClass(
        *(Source.SIGNAL, (6,), "abort", FaultScope.TENANT, Remedy.NONE, True),
        "SIGABRT: the program aborted, as libraries do after an unhandled CUDA error",
    ),
    ErrorClass(
        *(Source.SIGNAL, (9,), "killed", FaultScope.TENANT, Remedy.NONE, True),
        "SIGKILL: from a user, the node, or the kernel when the host's memory ran out (see out-of-host-memory)",
    ),
    ErrorClass(
        *(Source.SIGNAL, (24, 25), "host-limit", FaultScope.TENANT, Remedy.NONE, False),
        "SIGXCPU or SIGXFSZ: the program exceeded a resource limit, and would exceed it again",
    ),
    ErrorClass(
        *(Source.SIGNAL, (), "other-signal", FaultScope.TENANT, Remedy.NONE, True),
        "any other signal that ended it",
    ),
)

_CUDA: Final = (
    ErrorClass(
        *(Source.CUDA, (2,), "out-of-device-memory", FaultScope.TENANT, Remedy.NONE, True),
        "the quota or the device is exhausted: the call failed, the process can continue",
    ),
    ErrorClass(
        *(Source.CUDA, (700, 714, 715, 716, 717, 718, 719, 721), "bad-kernel", FaultScope.TENANT, Remedy.END, True),
        "a kernel faulted: the process can no longer use the device. Under MPS all clients of the server receive the "
        "error, whichever kernel faulted, and each must be restarted",
    ),
    ErrorClass(
        *(Source.CUDA, (710,), "device-assert", FaultScope.TENANT, Remedy.END, True),
        "an assertion in a kernel failed: its context is lost",
    ),
    ErrorClass(
        *(Source.CUDA, (702,), "launch-timeout", FaultScope.TENANT, Remedy.END, True),
        "the driver stopped a kernel that took too long",
    ),
    ErrorClass(
        *(Source.CUDA, (226,), "contained", FaultScope.TENANT, Remedy.END, True),
        "a hardware error that was contained in this process",
    ),
    ErrorClass(
        *(Source.CUDA, (214, 220), "hardware-error", FaultScope.TENANT, Remedy.END, True),
        "an uncorrectable memory or NVLink error: the process is lost; the Xid determines the state of the device",
    ),
    ErrorClass(
        *(Source.CUDA, (911,), "external-device", FaultScope.TENANT, Remedy.END, True),
        "an external device failed while work waited for it: the process must be restarted",
    ),
    ErrorClass(
        *(Source.CUDA, (805, 806, 810), "mps-lost", FaultScope.SERVER, Remedy.END, True),
        "the MPS server exited or disconnected the client: the process must be restarted, on a new server",
    ),
    ErrorClass(
        *(Source.CUDA, (807,), "mps-recovers", FaultScope.SERVER, Remedy.NONE, True),
        "the MPS server accepts no clients until those affected by a fault have left: try again later",
    ),
    ErrorClass(
        *(Source.CUDA, (808, 809), "mps-full", FaultScope.SERVER, Remedy.NONE, True),
        "the MPS server has reached its limit of clients or connections: try again later",
    ),
    ErrorClass(
        *(Source.CUDA, (46, 100, 101), "device-gone", FaultScope.DEVICE, Remedy.NONE, True),
        "the process does not find its device: it is lost, or in exclusive use",
    ),
    ErrorClass(
        *(Source.CUDA, (999,), "unknown", FaultScope.TENANT, Remedy.END, True),
        "an unknown error, such as that of a device that fell off the bus. The process is lost",
    ),
    ErrorClass(
        *(Source.CUDA, (), "call-failed", FaultScope.TENANT, Remedy.NONE, True),
        "any other code: the call failed, the process can continue",
    ),
)

_XIDS: Final = (
    ErrorClass(
        *(Source.XID, (11, 13, 31, 32, 43, 68, 69, 109), "tenant-fault", FaultScope.TENANT, Remedy.END, True),
        "a kernel exception, an illegal memory access, an invalid command stream, a decoder exception, or a context "
        "that cannot be switched out: the device stays healthy",
    ),
    ErrorClass(
        *(Source.XID, (45,), "cleanup", FaultScope.TENANT, Remedy.END, True),
        "the channels of a process are removed, usually after an error or a kill that was reported before",
    ),
    ErrorClass(
        *(Source.XID, (8,), "stopped", FaultScope.TENANT, Remedy.END, True),
        "a kernel exceeded the driver's time limit and was stopped",
    ),
    ErrorClass(
        *(Source.XID, (94, 137), "contained-fault", FaultScope.TENANT, Remedy.END, True),
        "a memory or NVLink error that was contained in one process; a bad page is replaced at the next reset",
    ),
    ErrorClass(
        *(Source.XID, (48, 95, 140), "memory-fault", FaultScope.DEVICE, Remedy.DRAIN, True),
        "an uncorrectable memory error that affects every process of the device: all must be restarted, on hardware "
        "after a reset of the device",
    ),
    ErrorClass(
        *(Source.XID, (63, 92, 121, 154, 156), "advisory", FaultScope.DEVICE, Remedy.NONE, True),
        "a row to be replaced at the next reset, many corrected errors, a retrained link, or a changed recovery "
        "action: no process is affected now, an administrator should check the device",
    ),
    ErrorClass(
        *(Source.XID, (64, 157), "repair-failed", FaultScope.DEVICE, Remedy.DRAIN, True),
        "a bad row could not be replaced: the next error there is not contained",
    ),
    ErrorClass(
        *(Source.XID, (74, 144, 145, 146, 147, 148, 149, 150), "link-fault", FaultScope.DEVICE, Remedy.DRAIN, True),
        "NVLink failed: programs on several devices fail, and the device needs a reset",
    ),
    ErrorClass(
        *(
            Source.XID,
            (38, 46, 61, 62, 110, 119, 120, 143, 158),
            "firmware-fault",
            FaultScope.DEVICE,
            Remedy.DISABLE,
            True,
        ),
        "a processor of the device or its firmware (PMU, GSP) does not respond, or a security check failed: the device "
        "needs a reset",
    ),
    ErrorClass(
        *(Source.XID, (79,), "off-the-bus", FaultScope.DEVICE, Remedy.DISABLE, True),
        "the device fell off the bus: every process on it is lost",
    ),
    ErrorClass(
        *(Source.XID, (), "other-xid", FaultScope.DEVICE, Remedy.NONE, True),
        "an Xid that is not in this table: it is reported, and no action is taken",
    ),
)

_OTHERS: Final = (
    ErrorClass(
        *(Source.MPS, (MpsFault.SERVER_DIED,), "mps-server-died", FaultScope.SERVER, Remedy.RESTART_SERVER, True),
        "its clients are lost; it is restarted, and offline tenants wait until online tenants have returned",
    ),
    ErrorClass(
        *(Source.MPS, (MpsFault.NOT_READY,), "mps-server-recovers", FaultScope.SERVER, Remedy.NONE, True),
        "it accepts no clients until those affected by a fault have left; joins are refused with a retry time",
    ),
    ErrorClass(
        *(Source.MPS, (), "mps-not-started", FaultScope.SERVER, Remedy.DISABLE, True),
        "the control daemon or the server cannot be started: no tenant is admitted until one answers",
    ),
    ErrorClass(
        *(Source.HOST, (HostFault.OUT_OF_MEMORY,), "out-of-host-memory", FaultScope.TENANT, Remedy.NONE, True),
        "the kernel killed it because the host or its control group ran out of memory",
    ),
    ErrorClass(
        *(Source.HOST, (), "host-fault", FaultScope.NODE, Remedy.NONE, True),
        "the host lacks a resource, such as disk space: tenants continue, and the node reports what is missing",
    ),
    ErrorClass(
        *(Source.HANG, (), "hang", FaultScope.TENANT, Remedy.KILL, True),
        "an offline kernel runs many times longer than its profile predicts, and would not end: its process is killed. "
        "For online tenants the hang is only reported",
    ),
    ErrorClass(
        *(Source.DAEMON, (DaemonFault.DIED,), "daemon-died", FaultScope.NODE, Remedy.NONE, True),
        "tenants continue under their last grant and resume their slots when it is started again",
    ),
    ErrorClass(
        *(Source.DAEMON, (DaemonFault.JOURNAL_LOST,), "journal-lost", FaultScope.NODE, Remedy.NONE, True),
        "it starts with empty state: running tenants join again in the slot they had, if it is free",
    ),
    ErrorClass(
        *(Source.DAEMON, (), "pages-lost", FaultScope.NODE, Remedy.NONE, True),
        "its runtime directory was emptied: tenants keep their mapped pages, new tenants get new files",
    ),
    ErrorClass(
        *(Source.PAGES, (PageFault.COUNTER_DECREASED,), "counter-decreased", FaultScope.TENANT, Remedy.EVICT, False),
        "a counter in the pages of its process decreased: the program writes to pages that only the hook may write",
    ),
    ErrorClass(
        *(Source.PAGES, (PageFault.WRONG_GENERATION,), "wrong-generation", FaultScope.TENANT, Remedy.EVICT, False),
        "the pages of its process name another process: the program writes to pages that only the hook may write",
    ),
    ErrorClass(
        *(Source.PAGES, (PageFault.IMPOSSIBLE_AMOUNT,), "impossible-amount", FaultScope.TENANT, Remedy.EVICT, False),
        "the pages of its process state an amount that no device has: the program writes to pages that only the hook "
        "may write",
    ),
    ErrorClass(
        *(Source.PAGES, (PageFault.IMPOSSIBLE_INSTANT,), "impossible-instant", FaultScope.TENANT, Remedy.EVICT, False),
        "the pages of its process state an instant in the far future: the program writes to pages that only the hook "
        "may write",
    ),
    ErrorClass(
        *(Source.PAGES, (), "impossible-share", FaultScope.TENANT, Remedy.EVICT, False),
        "the pages of its process list shared memory that cannot exist: the program writes to pages that only the hook "
        "may write",
    ),
)

CLASSES: Final = (*_SIGNALS, *_CUDA, *_XIDS, *_OTHERS)

_BY_CODE: Final = {(error_class.source, code): error_class for error_class in CLASSES for code in error_class.codes}
_DEFAULTS: Final = {error_class.source: error_class for error_class in CLASSES if not error_class.codes}


def classify(source: Source, code: int) -> ErrorClass:
    """Return the class of this error."""
    return _BY_CODE.get((source, code)) or _DEFAULTS[source]
