"""Which services and trainings are there in a simulated cluster? A few measured numbers of each.

Services: RaPP (KontonGu/RaPP, Apache-2.0), torchvision models on a V100, latency by share of the SMs. Trainings: MISO
(boringlee24/socc22-miso, MIT), on an A100, by MIG slice. Kernels: Orion (eth-easl/orion, MIT), on a V100. The rows are
made of the measurements in experiment/lab/catalogue.py, and a test holds them equal. Of a row: name, microseconds of a
request or step on the whole GPU, the parts of it (%) on the GPU and with all of its SMs, the part of the time on the
GPU that memory bounds (%), mean and longest kernel and what is left of a running one in the mean (us), and speeds (%)
on parts of the GPU, up to the first that is as fast as the whole; of a training, memory (MiB).

What no measurement says: how much memory a service takes. They are spread evenly so that the mean is the 42 % of 16 GiB
that MuxFlow published of its cluster. A part of a MIG slice's speed is its part of the bandwidth, too.
"""

from __future__ import annotations

from typing import Final

from cotenant.domain.value import Value

SHARES_PCT: Final = tuple(range(5, 101, 5))
SLICES: Final = (1, 2, 3, 4, 7)
NARROW: Final = 0.07
"""Of the SMs, that kernels hold which no smaller part of the GPU slows: half of the least slice that was measured."""
_MEMORY_MIB: Final = (0.26, 0.58, 16 << 10)
"""Of so many MiB, the least and the most that a service takes."""

SERVICE_ROWS: Final = """
alexnet-b8 3416 56 29 22 41 309 61 16,31,45,57,67,75,81,87,94,97,97,97,97,97,100
convnext_small-b4 17436 63 40 22 41 309 61 12,22,34,45,54,63,69,76,76,76,81,81,81,88,88,88,89,89,89,100
densenet161-b1 47887 7 3 22 41 309 61 94,96,98,98,98,99,99,99,99,99,99,99,99,99,99,99,100
efficientnet_b0-b8 26462 17 7 22 41 309 61 67,96,96,98,98,98,98,98,98,100
efficientnet_b3-b4 20239 10 10 22 41 309 61 46,85,96,100
efficientnet_b6-b1 34733 90 0 22 41 309 61 97,100
efficientnet_v2_m-b8 40123 42 26 22 41 309 61 18,35,49,64,77,86,92,97,97,97,97,97,97,97,98,98,100
inception_v3-b4 20984 38 13 22 41 309 61 35,64,83,91,91,97,97,97,97,98,98,98,98,98,98,98,100
mnasnet0_75-b1 12983 87 1 22 41 309 61 95,100
mobilenet_v2-b8 9944 16 16 41 15 65 14 31,59,84,98,98,98,99,99,99,99,99,99,100
regnet_x_16gf-b4 31748 77 44 22 41 309 61 10,21,30,40,48,57,65,71,72,73,76,81,90,90,90,93,99,99,100
regnet_x_3_2gf-b1 20708 80 2 22 41 309 61 84,97,100
regnet_x_8gf-b8 29196 69 48 22 41 309 61 10,20,28,38,47,53,63,66,69,79,80,81,83,83,86,87,88,88,89,100
regnet_y_1_6gf-b4 24594 94 3 22 41 309 61 58,85,85,88,88,92,92,92,92,92,100
regnet_y_400mf-b1 12542 44 0 22 41 309 61 100
resnet101-b8 28390 43 37 17 34 380 44 14,27,38,51,59,70,81,92,98,100
resnet34-b4 14570 15 15 22 41 309 61 33,67,83,89,93,94,94,96,96,98,98,99,99,100
resnext101_64x4d-b1 31649 28 16 22 41 309 61 30,52,77,94,99,100
shufflenet_v2_x1_0-b8 10163 48 4 22 41 309 61 77,99,99,99,99,100
squeezenet1_0-b4 3582 53 25 22 41 309 61 19,36,51,60,69,85,95,95,96,96,97,100
vgg11_bn-b1 2380 79 42 22 41 309 61 11,21,31,41,46,53,61,70,73,76,81,85,85,88,88,95,96,96,98,100
vgg16-b8 15941 91 79 22 41 309 61 6,13,19,25,28,34,42,48,53,58,63,67,73,77,80,86,90,93,97,100
vgg19_bn-b4 12226 92 65 22 41 309 61 7,15,21,29,35,41,47,50,57,63,68,72,76,76,81,89,92,94,98,100
"""

TRAINING_ROWS: Final = """
bert-b2 47200 70 57 49 40 1081 249 23,39,63,69,100 6347
bert-b4 70400 80 75 66 40 1081 249 18,33,56,61,100 10443
bert-b6 96700 88 66 72 40 1081 249 20,37,55,60,100 10443
bert-b8 120700 89 75 76 40 1081 249 18,34,52,57,100 18635
cyclegan-b1 143400 78 52 29 60 1408 208 24,46,72,78,100 5581
cyclegan-b2 186100 94 78 43 60 1408 208 18,33,52,63,100 9677
cyclegan-b3 251700 96 87 51 60 1408 208 16,30,49,59,100 9677
cyclegan-b4 336200 96 80 55 60 1408 208 17,33,49,59,100 17869
deepspeech2-b2 281200 89 41 3 60 1408 208 27,65,85,95,100 4199
deepspeech2-b4 311900 91 91 2 60 1408 208 9,28,40,64,100 6759
deepspeech2-b8 310200 85 41 4 60 1408 208 8,66,84,94,100 5735
deepspeech2-b16 334450 89 23 5 60 1408 208 42,63,81,86,100 6759
embedding-b64 3000 36 11 6 60 1408 208 61,81,94,94,100 2777
embedding-b128 3200 38 22 17 60 1408 208 44,68,89,91,100 3801
embedding-b256 3800 45 37 33 60 1408 208 31,54,75,81,100 7897
embedding-b512 5200 49 49 46 60 1408 208 24,43,64,70,100 6105
gnn-b64 11700 38 29 41 60 1408 208 37,59,78,85,100 2223
gnn-b128 17500 48 40 52 60 1408 208 29,50,68,74,100 3247
gnn-b256 29800 54 54 60 60 1408 208 24,43,62,72,100 3247
gnn-b512 56900 51 51 64 60 1408 208 24,41,62,70,100 5295
mobilenet-b64 18800 39 4 3 45 1232 154 81,90,97,98,100 5613
mobilenet-b128 20200 49 8 4 45 1232 154 70,85,96,98,100 5613
mobilenet-b256 24300 55 14 8 45 1232 154 56,79,92,96,100 5613
mobilenet-b512 31100 67 27 14 45 1232 154 40,67,88,94,100 9709
resnet-b64 28300 42 12 10 101 1238 212 57,89,100 9933
resnet-b128 29600 43 20 13 101 1238 212 46,77,93,96,100 9933
resnet-b256 31400 61 37 18 101 1238 212 32,58,85,93,100 9933
resnet-b512 36600 72 58 32 101 1238 212 22,42,65,75,100 9933
transformer-b16 20700 85 75 72 29 2223 244 18,34,56,62,100 3535
transformer-b32 36600 91 84 80 29 2223 244 16,32,53,59,100 5615
transformer-b64 68100 95 85 83 29 2223 244 17,30,52,58,100 9711
transformer-b128 131100 97 76 85 29 2223 244 18,34,51,57,100 17903
"""


class Row(Value, frozen=True):
    """One service or training, alone on the whole GPU."""

    name: str
    took_ns: int
    busy: float
    """Of its time, the part on the GPU."""
    wide: float
    """Of its time, the part in which it holds every SM."""
    memory: float
    """Of its time on the GPU, the part that memory bounds."""
    kernel_ns: int
    longest_ns: int
    left_ns: int
    """Of a kernel that is running when somebody looks, in the mean."""
    shares: tuple[float, ...]
    speeds: tuple[float, ...]
    memory_bytes: int


def _rows(text: str, shares: tuple[float, ...]) -> tuple[Row, ...]:
    lines = [line.split() for line in text.split("\n") if line]
    least, most, whole = _MEMORY_MIB
    found = []
    for place, (name, took_us, busy, wide, memory, kernel_us, longest_us, left_us, speeds, *rest) in enumerate(lines):
        chosen = whole * (least + (most - least) * (place * 7 % len(lines)) / (len(lines) - 1))
        found.append(
            Row(
                name,
                1000 * int(took_us),
                int(busy) / 100,
                int(wide) / 100,
                int(memory) / 100,
                1000 * int(kernel_us),
                1000 * int(longest_us),
                1000 * int(left_us),
                shares,
                _padded([int(one) / 100 for one in speeds.split(",")], len(shares)),
                (int(rest[0]) if rest else round(chosen)) << 20,
            )
        )
    return tuple(found)


def _padded(speeds: list[float], count: int) -> tuple[float, ...]:
    return (*speeds, *(1.0,) * (count - len(speeds)))


SERVICES: Final = _rows(SERVICE_ROWS, tuple(pct / 100 for pct in SHARES_PCT))
TRAININGS: Final = _rows(TRAINING_ROWS, tuple(slices / SLICES[-1] for slices in SLICES))
