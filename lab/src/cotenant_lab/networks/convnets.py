"""Convolutional networks of the torchvision library, part 1: AlexNet to DenseNet, GoogLeNet and Inception."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant_lab.networks.builder import NetworkBuilder

_VGG: Final = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
_RESNETS: Final = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
    "resnext50_32x4d": (3, 4, 6, 3),
    "resnext101_32x8d": (3, 4, 23, 3),
    "resnext101_64x4d": (3, 4, 23, 3),
    "wide_resnet50_2": (3, 4, 6, 3),
    "wide_resnet101_2": (3, 4, 23, 3),
}
_RESNEXT: Final = {"resnext50_32x4d": (32, 4), "resnext101_32x8d": (32, 8), "resnext101_64x4d": (64, 4)}
_DENSENETS: Final = {
    "densenet121": (32, 64, (6, 12, 24, 16)),
    "densenet161": (48, 96, (6, 12, 36, 24)),
    "densenet169": (32, 64, (6, 12, 32, 32)),
    "densenet201": (32, 64, (6, 12, 48, 32)),
}


def alexnet(net: NetworkBuilder, x: str, _name: str) -> str:
    """Krizhevsky 2014."""
    x = net.add("Relu", net.conv(x, 64, 11, 4, bias=True, pad=2))
    x = net.add("Relu", net.conv(net.pool(x, 3, 2), 192, 5, bias=True))
    x = net.pool(x, 3, 2)
    for width in (384, 256, 256):
        x = net.add("Relu", net.conv(x, width, 3, bias=True))
    x = net.add("Flatten", net.pool(net.pool(x, 3, 2), 1, 1, kind="AveragePool"))
    x = net.add("Relu", net.linear(x, 256 * 36, 4096))
    return net.linear(net.add("Relu", net.linear(x, 4096, 4096)), 4096, 1000)


def vgg(net: NetworkBuilder, x: str, name: str) -> str:
    """Simonyan and Zisserman 2015."""
    depth = int(name.removeprefix("vgg").removesuffix("_bn"))
    for width, count in zip((64, 128, 256, 512, 512), _VGG[depth], strict=True):
        for _ in range(count):
            x = net.conv(x, width, 3, bias=True)
            x = net.add("Relu", net.norm(x) if name.endswith("_bn") else x)
        x = net.pool(x, 2, 2)
    x = net.add("Flatten", net.pool(x, 1, 1, kind="AveragePool"))
    x = net.add("Relu", net.linear(x, 512 * 49, 4096))
    return net.linear(net.add("Relu", net.linear(x, 4096, 4096)), 4096, 1000)


def resnet(net: NetworkBuilder, x: str, name: str) -> str:
    """He et al. 2016; Xie et al. 2017; Zagoruyko and Komodakis 2016."""
    is_basic = name in {"resnet18", "resnet34"}
    groups, base = _RESNEXT.get(name, (1, 128 if name.startswith("wide") else 64))
    x = net.pool(net.unit(x, 64, 7, 2), 3, 2, 1)
    for number, count in enumerate(_RESNETS[name]):
        planes = 64 << number
        out = planes if is_basic else 4 * planes
        for block in range(count):
            stride = 2 if number and not block else 1
            past = x
            if is_basic:
                y = net.norm(net.conv(net.unit(x, planes, 3, stride), planes, 3))
            else:
                width = planes * base // 64 * groups
                y = net.unit(net.unit(x, width), width, 3, stride, groups=groups)
                y = net.norm(net.conv(y, out))
            if stride > 1 or net.channels(x) != out:
                past = net.norm(net.conv(x, out, 1, stride))
            x = net.add("Relu", net.add("Add", y, past))
    return net.classifier(x)


def densenet(net: NetworkBuilder, x: str, name: str) -> str:
    """Huang et al. 2017."""
    growth, first, blocks = _DENSENETS[name]
    x = net.pool(net.unit(x, first, 7, 2), 3, 2, 1)
    for number, count in enumerate(blocks):
        parts = [x]
        for _ in range(count):
            width = sum(net.channels(part) for part in parts)
            y = net.add("Concat", *parts, axis=1, channels=width) if len(parts) > 1 else x
            y = net.unit(net.add("Relu", net.norm(y)), 4 * growth)
            parts.append(net.conv(y, growth, 3))
        width = sum(net.channels(part) for part in parts)
        x = net.norm(net.add("Concat", *parts, axis=1, channels=width))
        x = net.add("Relu", x)
        if number < len(blocks) - 1:
            x = net.pool(net.conv(x, width // 2), 2, 2, kind="AveragePool")
    return net.classifier(x)


def squeezenet(net: NetworkBuilder, x: str, name: str) -> str:
    """Iandola et al. 2016."""
    is_first = name.endswith("1_0")
    x = net.add("Relu", net.conv(x, 96 if is_first else 64, 7 if is_first else 3, 2, bias=True, pad=0))
    x = net.pool(x, 3, 2, ceil=True)
    pools_after = (2, 6) if is_first else (1, 3)
    for index, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        y = net.add("Relu", net.conv(x, squeeze, bias=True))
        sides = [net.add("Relu", net.conv(y, 4 * squeeze, size, bias=True)) for size in (1, 3)]
        x = net.add("Concat", *sides, axis=1, channels=8 * squeeze)
        if index in pools_after:
            x = net.pool(x, 3, 2, ceil=True)
    return net.add("Flatten", net.add("GlobalAveragePool", net.add("Relu", net.conv(x, 1000, bias=True))))


def _joined(net: NetworkBuilder, parts: Sequence[str]) -> str:
    return net.add("Concat", *parts, axis=1, channels=sum(net.channels(part) for part in parts))


def googlenet(net: NetworkBuilder, x: str, _name: str) -> str:
    """Szegedy et al. 2015, as torchvision builds it (3x3 instead of 5x5)."""
    x = net.pool(net.unit(x, 64, 7, 2), 3, 2, ceil=True)
    x = net.pool(net.unit(net.unit(x, 64), 192, 3), 3, 2, ceil=True)
    plan = (
        (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (),
        (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), (),
        (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
    )  # fmt: skip
    for sizes in plan:
        if not sizes:
            x = net.pool(x, 3, 2, ceil=True)
            continue
        one, reduce3, three, reduce5, five, after = sizes
        parts = [
            net.unit(x, one),
            net.unit(net.unit(x, reduce3), three, 3),
            net.unit(net.unit(x, reduce5), five, 3),
            net.unit(net.pool(x, 3, 1, 1), after),
        ]
        x = _joined(net, parts)
    return net.classifier(x)


def inception_v3(net: NetworkBuilder, x: str, _name: str) -> str:
    """Szegedy et al. 2016."""
    x = net.unit(net.unit(net.unit(x, 32, 3, 2, pad=0), 32, 3, pad=0), 64, 3)
    x = net.pool(net.unit(net.unit(net.pool(x, 3, 2), 80), 192, 3, pad=0), 3, 2)
    for after in (32, 64, 64):
        parts = [
            net.unit(x, 64),
            net.unit(net.unit(x, 48), 64, 5),
            net.unit(net.unit(net.unit(x, 64), 96, 3), 96, 3),
            net.unit(net.pool(x, 3, 1, 1, kind="AveragePool"), after),
        ]
        x = _joined(net, parts)
    double = net.unit(net.unit(net.unit(x, 64), 96, 3), 96, 3, 2, pad=0)
    x = _joined(net, [net.unit(x, 384, 3, 2, pad=0), double, net.pool(x, 3, 2)])
    for width in (128, 160, 160, 192):
        row, column = (1, 7), (7, 1)
        single = net.unit(net.unit(net.unit(x, width), width, row), 192, column)
        y = net.unit(net.unit(x, width), width, column)
        double = net.unit(net.unit(net.unit(y, width, row), width, column), 192, row)
        x = _joined(net, [net.unit(x, 192), single, double, net.unit(net.pool(x, 3, 1, 1, kind="AveragePool"), 192)])
    first = net.unit(net.unit(x, 192), 320, 3, 2, pad=0)
    second = net.unit(net.unit(net.unit(x, 192), 192, (1, 7)), 192, (7, 1))
    x = _joined(net, [first, net.unit(second, 192, 3, 2, pad=0), net.pool(x, 3, 2)])
    for _ in range(2):
        y, z = net.unit(x, 384), net.unit(net.unit(x, 448), 384, 3)
        single = _joined(net, [net.unit(y, 384, (1, 3)), net.unit(y, 384, (3, 1))])
        double = _joined(net, [net.unit(z, 384, (1, 3)), net.unit(z, 384, (3, 1))])
        x = _joined(net, [net.unit(x, 320), single, double, net.unit(net.pool(x, 3, 1, 1, kind="AveragePool"), 192)])
    return net.classifier(x)
