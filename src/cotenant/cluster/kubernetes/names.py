"""Names that the kubelet plugin, the controller, the webhook and the Helm chart have in common."""

from __future__ import annotations

from typing import Final

GROUP: Final = "cotenant.dev"
"""The API group, and the prefix of annotations, labels, gates and conditions."""
DRIVER: Final = "gpu.cotenant.dev"
"""The DRA driver."""
DEVICE_CLASS: Final = "gpu.cotenant.dev"
"""The DeviceClass that claims name."""
ALLOCATION_CLAIM: Final = "claim"
ALLOCATION_DEVICE_PLUGIN: Final = "device-plugin"
"""How containers get the GPUs of a node, in its GpuNode."""
EXTENDED_RESOURCE: Final = "cotenant.dev/gpu"
"""The extended resource of the device plugin, for clusters without DRA."""

ATTRIBUTE_UUID: Final = "uuid"
ATTRIBUTE_PRODUCT_NAME: Final = "productName"
ATTRIBUTE_ARCHITECTURE: Final = "architecture"
ATTRIBUTE_STATE: Final = "state"
ATTRIBUTE_INDEX: Final = "index"
CAPACITY_MEMORY: Final = "memory"
"""Bytes of device memory."""
CAPACITY_SHARE: Final = "share"
"""Percent of the compute of a GPU."""
CAPACITY_OFFLINE_PLACES: Final = "offlinePlaces"
"""Offline tenants that may be placed on a GPU."""

ANNOTATION_KIND: Final = "cotenant.dev/kind"
ANNOTATION_PRIORITY: Final = "cotenant.dev/priority"
ANNOTATION_SLO: Final = "cotenant.dev/slo"
ANNOTATION_SHARE: Final = "cotenant.dev/share"
ANNOTATION_MEMORY: Final = "cotenant.dev/memory"
ANNOTATION_TASK: Final = "cotenant.dev/task"
ANNOTATION_GPUS: Final = "cotenant.dev/gpus"
ANNOTATION_PROFILE: Final = "cotenant.dev/profile"
ANNOTATION_GANG: Final = "cotenant.dev/gang"
ANNOTATION_GANG_SIZE: Final = "cotenant.dev/gang-size"
ANNOTATION_AVOID: Final = "cotenant.dev/avoid"
"""Online tenants and groups with which an offline pod must not share a GPU or a node, separated by commas."""
ANNOTATION_GROUP: Final = "cotenant.dev/group"
"""A name that other offline pods can avoid."""
ANNOTATIONS: Final = (
    ANNOTATION_KIND,
    ANNOTATION_PRIORITY,
    ANNOTATION_SLO,
    ANNOTATION_SHARE,
    ANNOTATION_MEMORY,
    ANNOTATION_TASK,
    ANNOTATION_GPUS,
    ANNOTATION_PROFILE,
    ANNOTATION_GANG,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_AVOID,
    ANNOTATION_GROUP,
)
"""Every annotation of a pod or of a pod template that the webhook reads."""

GATE: Final = "cotenant.dev/round"
"""The scheduling gate of a pod that waits for a placement round."""
CONDITION_PLACED: Final = "cotenant.dev/Placed"
"""The condition of a pod that says why it waits, or that it is placed."""
LABEL_CLAIM: Final = "cotenant.dev/claim"
"""Label of a pod: the name of the claim that the controller creates for it."""
LABEL_KIND: Final = "cotenant.dev/kind"
"""Label of every pod that the webhook translated: online or offline."""
LABEL_POD_UID: Final = "cotenant.dev/pod-uid"
"""Label of a claim that the controller created: the uid of its pod."""
POD_CLAIM: Final = "gpu"
"""Name of the entry in spec.resourceClaims of a pod, and in resources.claims of its containers."""
CLAIM_PREFIX_LENGTH: Final = 40
"""Characters of the name of a pod, or of its generateName, that begin the name of its claim."""
CLAIM_SUFFIX_DIGITS: Final = 10
"""Hexadecimal digits at the end of the name of a claim."""

GPU_NODE_KIND: Final = "GpuNode"
GPU_NODE_PLURAL: Final = "gpunodes"
GPU_NODE_VERSION: Final = "v1alpha1"

PREDICTIONS_CONFIG_MAP: Final = "cotenant-predictions"
PREDICTIONS_KEY: Final = "learned.json"
LEASE: Final = "cotenant-controller"


def claim_name(prefix: str, suffix: str) -> str:
    """Return the name of the claim of a pod from the pod's name or generateName, and hexadecimal digits.

    The result is a DNS subdomain, which is what the name of a claim must be: the prefix of a pod's name may end with
    a dash or a dot after it was cut.
    """
    start = prefix[:CLAIM_PREFIX_LENGTH].rstrip("-.") or "pod"
    return f"{start}-gpu-{suffix[:CLAIM_SUFFIX_DIGITS]}"
