"""Admission policies of the inference server: each one predicts when a new request would be answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from cotenant.serve.model.scheduling import ModelQueue, View
from cotenant.serve.policy.admit.accept_all import accept_all
from cotenant.serve.policy.admit.deadline import expected_answer_ns
from cotenant.units.instant import Duration

AdmissionPolicy: TypeAlias = Callable[[View, ModelQueue, int], Duration]
"""Return the expected time until the answer to one more request of this queue with the given number of rows."""

ADMISSION_POLICIES: Final[dict[str, AdmissionPolicy]] = {
    "deadline": expected_answer_ns,
    "accept-all": accept_all,
}
