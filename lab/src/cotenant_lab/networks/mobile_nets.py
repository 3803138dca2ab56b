"""Convolutional networks of the torchvision library, part 2: mobile networks, EfficientNet, RegNet and ConvNeXt."""

from __future__ import annotations

import math
from typing import Final

from cotenant_lab.networks.builder import NetworkBuilder

_MNASNET: Final = ((3, 16, 3, 2, 3), (6, 3, 3, 2, 5))
_EFFICIENTNETS: Final = {
    "efficientnet_b0": (1.0, 1.0),
    "efficientnet_b1": (1.0, 1.1),
    "efficientnet_b2": (1.1, 1.2),
    "efficientnet_b3": (1.2, 1.4),
    "efficientnet_b4": (1.4, 1.8),
    "efficientnet_b5": (1.6, 2.2),
    "efficientnet_b6": (1.8, 2.6),
    "efficientnet_b7": (2.0, 3.1),
}
"""Factors of width and depth (Tan and Le 2019)."""
_EFFICIENTNETS_V2: Final[dict[str, tuple[int, tuple[tuple[int, int, int, int, int], ...]]]] = {
    "efficientnet_v2_s": (
        24, ((1, 1, 24, 2, 0), (4, 2, 48, 4, 0), (4, 2, 64, 4, 0), (4, 2, 128, 6, 1), (6, 1, 160, 9, 1),
        (6, 2, 256, 15, 1))
    ),
    "efficientnet_v2_m": (
        24, ((1, 1, 24, 3, 0), (4, 2, 48, 5, 0), (4, 2, 80, 5, 0), (4, 2, 160, 7, 1), (6, 1, 176, 14, 1),
        (6, 2, 304, 18, 1), (6, 1, 512, 5, 1))
    ),
    "efficientnet_v2_l": (
        32, ((1, 1, 32, 4, 0), (4, 2, 64, 7, 0), (4, 2, 96, 7, 0), (4, 2, 192, 10, 1), (6, 1, 224, 19, 1),
        (6, 2, 384, 25, 1), (6, 1, 640, 7, 1))
    ),
}  # fmt: skip
"""First channels, then stages: expansion, stride, channels, blocks, and whether they are depthwise with a gate."""
_REGNETS: Final = {
    "regnet_x_400mf": (22, 24, 24.48, 2.54, 16),
    "regnet_x_800mf": (16, 56, 35.73, 2.28, 16),
    "regnet_x_1_6gf": (18, 80, 34.01, 2.25, 24),
    "regnet_x_3_2gf": (25, 88, 26.31, 2.25, 48),
    "regnet_x_8gf": (23, 80, 49.56, 2.88, 120),
    "regnet_x_16gf": (22, 216, 55.59, 2.1, 128),
    "regnet_x_32gf": (23, 320, 69.86, 2.0, 168),
    "regnet_y_400mf": (16, 48, 27.89, 2.09, 8),
    "regnet_y_800mf": (14, 56, 38.84, 2.4, 16),
    "regnet_y_1_6gf": (27, 48, 20.71, 2.65, 24),
    "regnet_y_3_2gf": (21, 80, 42.63, 2.66, 24),
    "regnet_y_8gf": (17, 192, 76.82, 2.19, 56),
    "regnet_y_16gf": (18, 200, 106.23, 2.48, 112),
    "regnet_y_32gf": (20, 232, 115.89, 2.53, 232),
    "regnet_y_128gf": (27, 456, 160.83, 2.52, 264),
}
"""Depth, w_0, w_a, w_m and group width (Radosavovic et al. 2020)."""
_CONVNEXTS: Final = {
    "convnext_tiny": (96, (3, 3, 9, 3)),
    "convnext_small": (96, (3, 3, 27, 3)),
    "convnext_base": (128, (3, 3, 27, 3)),
    "convnext_large": (192, (3, 3, 27, 3)),
}


def rounded(width: float, step: int = 8) -> int:
    """Return a number of channels as a multiple of 8, not much smaller than asked."""
    value = max(step, int(width + step / 2) // step * step)
    return value + step if value < 0.9 * width else value


def _inverted(net: NetworkBuilder, x: str, sizes: tuple[int, int, int, int], act: str, squeeze: int = 0) -> str:
    """Add an inverted residual: expand, depthwise, optional gate, project. Sizes: inner, out, kernel, stride."""
    inner, out, kernel, stride = sizes
    y = net.unit(x, inner, act=act) if inner != net.channels(x) else x
    y = net.unit(y, inner, kernel, stride, groups=inner, act=act)
    if squeeze:
        hard = act != "SiLU"
        y = net.squeeze_excite(y, squeeze, "Relu" if hard else "SiLU", "HardSigmoid" if hard else "Sigmoid")
    y = net.norm(net.conv(y, out))
    return net.add("Add", x, y) if stride == 1 and net.channels(x) == out else y


def mobilenet_v2(net: NetworkBuilder, x: str, _name: str) -> str:
    """Sandler et al. 2018."""
    x = net.unit(x, 32, 3, 2, act="Clip")
    plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for times, out, count, first in plan:
        for block in range(count):
            x = _inverted(net, x, (times * net.channels(x), out, 3, 1 if block else first), "Clip")
    return net.classifier(net.unit(x, 1280, act="Clip"))


def mobilenet_v3(net: NetworkBuilder, x: str, name: str) -> str:
    """Howard et al. 2019. Rows: kernel, inner, out, gate, hard swish, stride."""
    large = (
        (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1),
        (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
        (3, 184, 80, 0, 1, 1), (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2),
        (5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1),
    )  # fmt: skip
    small = (
        (3, 16, 16, 1, 0, 2), (3, 72, 24, 0, 0, 2), (3, 88, 24, 0, 0, 1), (5, 96, 40, 1, 1, 2), (5, 240, 40, 1, 1, 1),
        (5, 240, 40, 1, 1, 1), (5, 120, 48, 1, 1, 1), (5, 144, 48, 1, 1, 1), (5, 288, 96, 1, 1, 2),
        (5, 576, 96, 1, 1, 1), (5, 576, 96, 1, 1, 1),
    )  # fmt: skip
    is_large = name.endswith("large")
    x = net.unit(x, 16, 3, 2, act="HardSwish")
    for kernel, inner, out, gate, swish, stride in large if is_large else small:
        squeeze = rounded(inner / 4) if gate else 0
        x = _inverted(net, x, (inner, out, kernel, stride), "HardSwish" if swish else "Relu", squeeze)
    x = net.unit(x, 960 if is_large else 576, act="HardSwish")
    inner = 1280 if is_large else 1024
    x = net.linear(net.add("Flatten", net.add("GlobalAveragePool", x)), net.channels(x), inner)
    return net.linear(net.add("HardSwish", x), inner, 1000)


def mnasnet(net: NetworkBuilder, x: str, name: str) -> str:
    """Tan et al. 2019."""
    alpha = float(name.removeprefix("mnasnet").replace("_", "."))
    widths = [rounded(width * alpha) for width in (32, 16, 24, 40, 80, 96, 192, 320)]
    x = net.unit(x, widths[0], 3, 2)
    x = net.norm(net.conv(net.unit(x, widths[0], 3, groups=widths[0]), widths[1]))
    plan = ((3, 2, 3, 3), (5, 2, 3, 3), (5, 2, 6, 3), (3, 1, 6, 2), (5, 2, 6, 4), (3, 1, 6, 1))
    for (kernel, first, times, count), out in zip(plan, widths[2:], strict=True):
        for block in range(count):
            x = _inverted(net, x, (times * net.channels(x), out, kernel, 1 if block else first), "Relu")
    return net.classifier(net.unit(x, 1280))


def shufflenet(net: NetworkBuilder, x: str, name: str) -> str:
    """Ma et al. 2018."""
    factor = name.rsplit("_", 2)[-2].removeprefix("x") + "." + name.rsplit("_", 1)[-1]
    widths = {
        "0.5": (48, 96, 192, 1024), "1.0": (116, 232, 464, 1024), "1.5": (176, 352, 704, 1024),
        "2.0": (244, 488, 976, 2048),
    }[factor]  # fmt: skip
    side = 56
    x = net.pool(net.unit(x, 24, 3, 2), 3, 2, 1)
    for out, count in zip(widths[:3], (4, 8, 4), strict=True):
        half = out // 2
        for block in range(count):
            if block:
                starts = [net.integers(0), net.integers(half)]
                ends = [net.integers(half), net.integers(out)]
                past, y = (
                    net.add("Slice", x, start, end, net.integers(1), channels=half)
                    for start, end in zip(starts, ends, strict=True)
                )
            else:
                side //= 2
                past = net.norm(net.conv(x, net.channels(x), 3, 2, groups=net.channels(x)))
                past, y = net.unit(past, half), x
            y = net.unit(y, half)
            y = net.norm(net.conv(y, half, 3, 1 if block else 2, groups=half))
            x = net.add("Concat", past, net.unit(y, half), axis=1, channels=out)
            x = net.add("Reshape", x, net.integers(0, 2, half, side, side), channels=out)
            x = net.add("Transpose", x, perm=[0, 2, 1, 3, 4], channels=out)
            x = net.add("Reshape", x, net.integers(0, out, side, side), channels=out)
    x = net.unit(x, widths[3])
    return net.linear(net.add("ReduceMean", x, axes=[2, 3], keepdims=0), widths[3], 1000)


def efficientnet(net: NetworkBuilder, x: str, name: str) -> str:
    """Tan and Le 2019, 2021."""
    if name in _EFFICIENTNETS_V2:
        first, stages = _EFFICIENTNETS_V2[name]
        x = net.unit(x, first, 3, 2, act="SiLU")
        for times, stride, out, count, deep in stages:
            for block in range(count):
                x = _mb_conv(net, x, (times, 1 if block else stride, out, 3), deep=bool(deep))
        return net.classifier(net.unit(x, 1280, act="SiLU"))
    wide, long = _EFFICIENTNETS[name]
    x = net.unit(x, rounded(32 * wide), 3, 2, act="SiLU")
    plan = (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )  # fmt: skip
    for times, kernel, stride, out, count in plan:
        for block in range(math.ceil(count * long)):
            x = _mb_conv(net, x, (times, 1 if block else stride, rounded(out * wide), kernel), deep=True)
    return net.classifier(net.unit(x, 4 * rounded(320 * wide), act="SiLU"))


def _mb_conv(net: NetworkBuilder, x: str, sizes: tuple[int, int, int, int], *, deep: bool) -> str:
    """Add a block of EfficientNet. Sizes: expansion, stride, out, kernel."""
    times, stride, out, kernel = sizes
    before = net.channels(x)
    inner = rounded(before * times)
    if deep:
        return _inverted(net, x, (inner, out, kernel, stride), "SiLU", max(1, before // 4))
    if times == 1:
        y = net.unit(x, out, kernel, stride, act="SiLU")
    else:
        y = net.norm(net.conv(net.unit(x, inner, kernel, stride, act="SiLU"), out))
    return net.add("Add", x, y) if stride == 1 and before == out else y


def regnet(net: NetworkBuilder, x: str, name: str) -> str:
    """Radosavovic et al. 2020."""
    depth, first, slope, factor, group = _REGNETS[name]
    widths = []
    for index in range(depth):
        power = round(math.log((first + slope * index) / first) / math.log(factor))
        widths.append(int(round(first * factor**power / 8) * 8))
    x = net.unit(x, 32, 3, 2)
    for width in dict.fromkeys(widths):
        size = min(group, width)
        out = rounded_to(width, size)
        for block in range(widths.count(width)):
            stride = 1 if block else 2
            y = net.unit(net.unit(x, out), out, 3, stride, groups=out // size)
            if name.startswith("regnet_y"):
                y = net.squeeze_excite(y, round(net.channels(x) * 0.25))
            y = net.norm(net.conv(y, out))
            past = x if stride == 1 and net.channels(x) == out else net.norm(net.conv(x, out, 1, stride))
            x = net.add("Relu", net.add("Add", past, y))
    return net.classifier(x)


def rounded_to(width: int, group: int) -> int:
    """Return a width as a multiple of its group width."""
    return int(round(width / group) * group) if group else width


def convnext(net: NetworkBuilder, x: str, name: str) -> str:
    """Liu et al. 2022."""
    first, depths = _CONVNEXTS[name]
    x = _channel_norm(net, net.conv(x, first, 4, 4, bias=True, pad=0))
    for number, count in enumerate(depths):
        width = first << number
        if number:
            x = net.conv(_channel_norm(net, x), width, 2, 2, bias=True, pad=0)
        for _ in range(count):
            y = net.conv(x, width, 7, groups=width, bias=True)
            y = net.layer_norm(net.add("Transpose", y, perm=[0, 2, 3, 1]), width)
            y = net.linear(net.add("Gelu", net.linear(y, width, 4 * width)), 4 * width, width)
            y = net.add("Transpose", y, perm=[0, 3, 1, 2], channels=width)
            x = net.add("Add", x, net.add("Mul", net.weight(width, 1, 1), y), channels=width)
    x = net.add("Flatten", _channel_norm(net, net.add("GlobalAveragePool", x)))
    return net.linear(x, first << 3, 1000)


def _channel_norm(net: NetworkBuilder, x: str) -> str:
    """Add a layer normalization over the channels of an image."""
    count = net.channels(x)
    y = net.layer_norm(net.add("Transpose", x, perm=[0, 2, 3, 1]), count)
    return net.add("Transpose", y, perm=[0, 3, 1, 2], channels=count)
