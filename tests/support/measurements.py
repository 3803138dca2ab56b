"""Published measurements, and a small synthetic data directory from the device model with known values."""

import gzip
import json
import os
from pathlib import Path

import msgspec
import pytest

from cotenant.softgpu.costs import hardware
from cotenant.softgpu.sim.device import preset
from cotenant_lab.data import igniter
from cotenant_lab.data.disb import Client, ClientLoad
from cotenant_lab.physics import instance, share, split, tenants

DATA = Path(os.environ.get("COTENANT_DATA", ""))
"""The published measurements; tests that read them are marked with `needs_data`."""
needs_data = pytest.mark.skipif(
    not os.environ.get("COTENANT_DATA"), reason="COTENANT_DATA does not name the published measurements"
)

SHARES = range(5, 101, 5)
PAIR_SHARES = (10, 20, 50, 80, 100)
REQUESTS = {
    ("one", 1): share.Request(host_ns=6e6, wide_sm_ns=3e8, narrow_ns=5e5, lean=0.5),
    ("one", 8): share.Request(host_ns=6e6, wide_sm_ns=2e9, narrow_ns=1e6, lean=0.5),
    ("two", 1): share.Request(host_ns=2e7, wide_sm_ns=1e8, narrow_ns=2e6, lean=0.5),
    ("two", 8): share.Request(host_ns=2e7, wide_sm_ns=9e8, narrow_ns=4e6, lean=0.5),
}
PROCESS = instance.Process(host=1.0, wide=0.4, narrow=0.25, narrow_width=5)
SERVER = tenants.ServerModel(kernels={"vgg19": 20.0, "resnet152": 90.0}, width=0.7, kernel_part=1.0)
CLIENTS = {
    "A": (
        Client(name="vgg19_rt", model="vgg19", load=ClientLoad(kind="periodic", rate_per_s=50.0)),
        Client(name="resnet152_be", model="resnet152", load=ClientLoad(kind="continuous")),
    ),
    "B": (
        Client(name="vgg19_be", model="vgg19", load=ClientLoad(kind="continuous")),
        Client(name="resnet152_rt", model="resnet152", load=ClientLoad(kind="poisson", rate_per_s=40.0)),
        Client(name="resnet152_be", model="resnet152", load=ClientLoad(kind="continuous")),
    ),
}
ALONE_NS = {"vgg19": 2_800_000, "resnet152": 4_200_000}


def runs() -> list[tenants.ClientsRun]:
    return [
        tenants.ClientsRun(name, clients, {client.name: ALONE_NS[client.model] for client in clients})
        for name, clients in CLIENTS.items()
    ]


def write_all(root: Path) -> Path:
    """Write the data directory and return it."""
    _write_streams(root / "orion" / "model_kernels")
    _write_surface(root / "rapp")
    _write_profiles(root / "parvagpu")
    _write_servers(root / "disb")
    _write_pairs(root / "igniter")
    return root


def _write_streams(folder: Path) -> None:
    folder.mkdir(parents=True)
    rows = ["Name,Profile,Memory_footprint,SM_usage,Duration", "void f<a, b>(int, int),1,0,160,24000", "g,0,0,12,3136"]
    (folder / "net_4_fwd.csv").write_text("\n".join(rows) + "\n")
    (folder / "net_4_fb1.csv").write_text("not read: training\n")


def _write_surface(folder: Path) -> None:
    folder.mkdir(parents=True)
    config = preset("v100")
    rows = ["model,batch,sm_pct,time_quota_pct,latency_ms"]
    for (model, batch), request in REQUESTS.items():
        for share_pct in SHARES:
            latency_ms = share.latency_ns(request, config, config.sm_count * share_pct // 100) / 1e6
            rows += [
                f"{model},{batch},{share_pct},100,{latency_ms}",
                f"{model},{batch},{share_pct},50,{2 * latency_ms}",
            ]
    packed = gzip.compress("\n".join(rows).encode(), mtime=0)
    (folder / "v100_latency_ms_by_sm_quota_batch.csv.gz").write_bytes(packed)


def _write_pairs(folder: Path) -> None:
    """Write pairs of the programs of `REQUESTS` as the device model runs them with the `hardware` costs."""
    folder.mkdir(parents=True)
    config = hardware("v100")
    alone = {
        program: {
            pct: igniter.Alone(share.latency_ns(request, config, config.sm_count * pct // 100) / 1e6, 20.0)
            for pct in PAIR_SHARES
        }
        for program, request in REQUESTS.items()
    }
    rows = ["model,batch,sm_share_pct,latency_ms,throughput,l2cache,dram"]
    for (model, batch), by_share in alone.items():
        rows += [f"{model},{batch},{pct},{row.latency_ms},1,5,{row.dram_pct}" for pct, row in by_share.items()]
    (folder / "solo.csv").write_text("\n".join(rows) + "\n")
    programs = {program: split.fit_program(by_share, config) for program, by_share in alone.items()}
    rows = ["model_a,model_b,batch_a,batch_b,sm_share_a_pct,latency_a_ms,latency_b_ms"]
    for batches in ((1, 1), (1, 8), (8, 1)):
        for pct in (20, 50, 80):
            pair = igniter.SplitPair(("one", batches[0]), ("two", batches[1]), pct, 1.0, 1.0)
            first_ms, second_ms = split.predict_ms(pair, programs, config)
            rows.append(f"one,two,{batches[0]},{batches[1]},{pct},{first_ms},{second_ms}")
    rows.append("one,three,1,1,50,1,1")
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")


def _write_profiles(folder: Path) -> None:
    folder.mkdir(parents=True)
    config = msgspec.structs.replace(hardware("a100-80"), sm_count=7 * instance.GPC_SMS)
    slowdown = [instance.latency_ns(PROCESS, count, config) for count in range(1, 6)]
    rows = ["model,mig_gpcs,batch,procs,throughput,latency_s"]
    for gpcs, batch in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)):
        for count in range(1, 6):
            latency_s = 0.01 * slowdown[count - 1] / slowdown[0]
            rows.append(f"net,{gpcs},{batch},{count},{batch / latency_s},{latency_s:.3f}")
    rows += ["net,7,4,1,100,0.040", "net,7,4,2,100,0.040", "net,7,4,3,0,0"]
    (folder / "all_models.csv").write_text("\n".join(rows) + "\n")


def _write_servers(folder: Path) -> None:
    (folder / "workloads").mkdir(parents=True)
    (folder / "results").mkdir()
    together = tenants.predict(runs(), SERVER, tenants.rtx3080())
    for name, clients in CLIENTS.items():
        tasks = [
            {
                "id": client.name,
                "load": {"type": client.load.kind, "frequency": client.load.rate_per_s},
                "client": {"model_name": client.model},
            }
            for client in clients
        ]
        (folder / "workloads" / f"{name}.json").write_text(json.dumps({"time": 60, "tasks": tasks}))
        results = [
            {
                "clientName": client.name,
                "analyzers": [
                    {
                        "type": "basic",
                        "standAloneTotalLatency(us)": ALONE_NS[client.model] / 1000,
                        "avgTotalLatency(us)": together[name, client.name] / 1000,
                        "avgThroughput(req/s)": 1.0,
                    },
                    {"type": "accuarcy", "accuarcy": 1},
                ],
            }
            for client in clients
        ]
        for server in ("trt", "triton", "tfs"):
            (folder / "results" / f"{server}.{name}.json").write_text(json.dumps({"results": results}))
