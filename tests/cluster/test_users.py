"""Tests of accounting of users."""

import pytest

from cotenant.cluster.state.jobs import Users
from cotenant.units.instant import SECOND_NS

_DAY_S = 86_400


def test_gpu_time_of_a_day_ago_counts_half() -> None:
    users = Users()
    users.hold("old", 4)
    users.account(1000 * SECOND_NS)
    used = users.used["old"]
    assert used == pytest.approx(4 * 1000, rel=0.01)
    users.hold("old", -4)
    users.account((1000 + _DAY_S) * SECOND_NS)
    assert users.used["old"] == pytest.approx(used / 2)


def test_accounting_interval_does_not_change_the_result() -> None:
    often, seldom = Users(), Users()
    for users in (often, seldom):
        users.hold("ann", 2)
    for second in range(300, _DAY_S + 1, 300):
        often.account(second * SECOND_NS)
    seldom.account(_DAY_S * SECOND_NS)
    assert often.used["ann"] == pytest.approx(seldom.used["ann"])


def test_users_with_negligible_gpu_time_are_forgotten() -> None:
    users = Users()
    users.hold("once", 1)
    users.account(60 * SECOND_NS)
    users.hold("once", -1)
    users.account(30 * _DAY_S * SECOND_NS)
    assert users.used == {}
