"""Connection limits: idle connections make way, one client cannot take all, and health checks have a reserve."""

import pytest

from cotenant.serve.frontend.connections import IDLE_CHECKS, Admission, ConnectionTable


class Connection:
    """A connection without a socket."""

    def __init__(self, table: ConnectionTable, *, idle: bool = True, requests: int = 0) -> None:
        self.table = table
        self.is_idle = idle
        self.requests = requests
        self.idle_checks = 0
        self.closed = False

    def close_idle(self) -> None:
        assert self.is_idle
        self.closed = True


def connect(table: ConnectionTable, address: str, *, idle: bool = True, requests: int = 0) -> Connection:
    connection = Connection(table, idle=idle, requests=requests)
    assert table.admit(connection, address) is Admission.FULL
    return connection


def test_new_connection_replaces_one_that_never_sent_a_request() -> None:
    table = ConnectionTable(32, 32)
    used = [connect(table, "a", requests=1) for _ in range(16)]
    unused = [connect(table, "a") for _ in range(16)]
    connect(table, "b")
    assert not any(connection.closed for connection in used)
    assert any(connection.closed for connection in unused)
    assert len(table) <= 32


def test_client_at_its_limit_loses_its_own_idle_connections_only() -> None:
    table = ConnectionTable(100, 10)
    other = connect(table, "other")
    own = [connect(table, "a") for _ in range(10)]
    connect(table, "a")
    assert not other.closed
    assert sum(connection.closed for connection in own) == 1
    for connection in own:
        connection.is_idle = False
    busy = ConnectionTable(100, 2)
    for _ in range(2):
        connect(busy, "a", idle=False)
    assert busy.admit(Connection(busy), "a") is Admission.REFUSED
    connect(busy, "b")


def test_without_an_idle_connection_health_checks_have_a_reserve() -> None:
    table = ConnectionTable(4, 4)
    for number in range(4):
        connect(table, str(number), idle=False)
    admissions = [table.admit(Connection(table, idle=False), f"new {number}") for number in range(100)]
    assert set(admissions[:64]) == {Admission.HEALTH}
    assert set(admissions[64:]) == {Admission.REFUSED}


@pytest.mark.parametrize("requests", [0, 5])
def test_idle_connection_is_closed_after_the_timeout_and_a_used_one_is_not(requests: int) -> None:
    table = ConnectionTable(10, 10)
    idle, used, busy = connect(table, "a", requests=requests), connect(table, "b"), connect(table, "c", idle=False)
    for _ in range(IDLE_CHECKS + 2):
        used.requests += 1
        table.check_idle()
    assert [connection.closed for connection in (idle, used, busy)] == [True, False, False]
    table.remove(used)
    table.remove(used)
    assert len(table) == 1
