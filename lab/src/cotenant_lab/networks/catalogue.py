"""Networks by the name that published measurements give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cotenant.profile.estimate.onnx_file import Model
from cotenant_lab.networks import convnets, mobile_nets
from cotenant_lab.networks.builder import NetworkBuilder

_BUILDERS: Final[dict[str, Callable[[NetworkBuilder, str, str], str]]] = {
    "alexnet": convnets.alexnet,
    "vgg": convnets.vgg,
    "resne": convnets.resnet,
    "wide_resnet": convnets.resnet,
    "densenet": convnets.densenet,
    "squeezenet": convnets.squeezenet,
    "googlenet": convnets.googlenet,
    "inception_v3": convnets.inception_v3,
    "mobilenet_v2": mobile_nets.mobilenet_v2,
    "mobilenet_v3": mobile_nets.mobilenet_v3,
    "mnasnet": mobile_nets.mnasnet,
    "shufflenet": mobile_nets.shufflenet,
    "efficientnet": mobile_nets.efficientnet,
    "regnet": mobile_nets.regnet,
    "convnext": mobile_nets.convnext,
}
IMAGE_SIDE: Final = 224


def has_network(name: str) -> bool:
    """Return whether the catalogue has this network."""
    return any(name.startswith(prefix) for prefix in _BUILDERS)


def image_network(name: str, side: int = IMAGE_SIDE) -> tuple[Model, int]:
    """Return the graph of an image classifier, and the number of its trainable parameters."""
    net = NetworkBuilder()
    image = net.input("image", 3, side, side)
    builder = next(builder for prefix, builder in _BUILDERS.items() if name.startswith(prefix))
    output = builder(net, image, name)
    return net.model(output), net.parameters
