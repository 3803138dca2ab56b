"""The images of the product and of the example manifests, made from what is installed on this machine.

The two images of the product have what deploy/images describes: the wheel with its extra `kubernetes`. The images that
deploy/examples name contain the programs of this project that run on a software GPU, and nothing of the product: the
plugin adds what a container needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import cotenant
from cotenant import __version__
from cotenant.hook.shim import hook_library
from cotenant_lab import programs
from cotenant_lab.kubernetes.images import (
    ENVIRONMENT,
    PACKAGES_DIRECTORY,
    PYTHON_IMAGE,
    ImageEntry,
    Layer,
    add_distribution,
    add_libraries,
    cached_layer,
    distribution_closure,
    python_base,
    write_images,
)

NODE_REPOSITORY: Final = "cotenant/node"
CONTROLLER_REPOSITORY: Final = "cotenant/controller"
SERVICE_IMAGE: Final = "example.org/search-ranking:1"
TRAINING_IMAGE: Final = "example.org/training:1"
"""The names in deploy/examples."""
NEXT_TAG: Final = "next"
"""The tag of images with another version of the product, to which tests upgrade."""
NEXT_VERSION: Final = f"{__version__}.next"
"""The version that these images have; everything else is the same."""

_APPLICATION: Final = "/app"
_PROGRAMS: Final = {"example_service.py": "serve.py", "example_training.py": "train.py"}
_NON_ROOT: Final = "65532:65532"


def write_product_images(directory: Path, cache: Path) -> Path:
    """Write one archive with all images."""
    base, dependencies, product = python_base(cache), _dependencies(cache), _product(directory)
    workloads = _workloads(directory)
    whole = [base, dependencies, product]
    following = [*whole, _next_version(directory)]
    environment = {"Env": [*ENVIRONMENT, "PYTHONDONTWRITEBYTECODE=1"], "Entrypoint": ["cotenant"]}
    node = {**environment, "User": "0:0", "Cmd": ["node"]}
    controller = {**environment, "User": _NON_ROOT, "Cmd": ["kubernetes", "controller"]}
    application = {"Env": list(ENVIRONMENT), "WorkingDir": _APPLICATION, "Cmd": ["python3"]}
    names = [SERVICE_IMAGE, TRAINING_IMAGE, PYTHON_IMAGE]
    images = [
        ImageEntry([f"{NODE_REPOSITORY}:{__version__}"], whole, node),
        ImageEntry([f"{CONTROLLER_REPOSITORY}:{__version__}"], whole, controller),
        ImageEntry([f"{NODE_REPOSITORY}:{NEXT_TAG}"], following, node),
        ImageEntry([f"{CONTROLLER_REPOSITORY}:{NEXT_TAG}"], following, controller),
        ImageEntry(names, [base, workloads], application),
    ]
    return write_images(directory / "product.tar", images)


def _dependencies(cache: Path) -> Path:
    """Return the layer with what the product needs; it is kept, because it seldom changes."""
    layer = Layer()
    for name in distribution_closure(["cotenant[kubernetes]"]):
        if name != "cotenant":
            add_distribution(layer, name)
    add_libraries(layer, [file for file in layer.sources() if ".so" in file.name])
    return cached_layer(layer, cache, "dependencies")


def _product(directory: Path) -> Path:
    layer = Layer()
    add_distribution(layer, "cotenant")
    add_libraries(layer, [file for file in layer.sources() if ".so" in file.name])
    return layer.write(directory / "product-layer.tar")


def _next_version(directory: Path) -> Path:
    """Write the layer that changes the version of the product."""
    text = Path(cotenant.__file__).read_text().replace(f'"{__version__}"', f'"{NEXT_VERSION}"')
    changed = directory / "next-version.py"
    changed.write_text(text)
    layer = Layer()
    layer.add_file(changed, f"{PACKAGES_DIRECTORY}/cotenant/__init__.py")
    libraries = hook_library().parent
    for file in libraries.glob(f"*{__version__}*"):
        name = file.name.replace(__version__, NEXT_VERSION)
        layer.add_file(file, f"{PACKAGES_DIRECTORY}/cotenant/{libraries.name}/{name}")
    return layer.write(directory / "next-version-layer.tar")


def _workloads(directory: Path) -> Path:
    """Write the layer of the example programs; modules that need the product are in it, but cannot be imported."""
    source = Path(programs.__file__).parent
    layer = Layer()
    package = f"{PACKAGES_DIRECTORY}/cotenant_lab"
    layer.add_file(source.parent / "__init__.py", f"{package}/__init__.py")
    layer.add_tree(source, f"{package}/programs")
    for program, name in _PROGRAMS.items():
        layer.add_file(source / program, f"{_APPLICATION}/{name}")
    return layer.write(directory / "workload-layer.tar")
