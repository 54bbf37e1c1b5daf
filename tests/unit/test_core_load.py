"""Leases cannot leak, in any thread."""

from __future__ import annotations

import gc
import threading
from collections import Counter

import pytest
from epd_router._core import Lease, Load, least_loaded


def test_release_is_idempotent() -> None:
    load = Load(2.0)
    lease = load.lease(3.5)
    assert (load.active, load.outstanding, load.weight, lease.released) == (1, 3.5, 2.0, False)
    lease.release()
    lease.release()
    assert (load.active, load.outstanding, lease.released) == (0, 0.0, True)


def test_a_dropped_lease_is_released() -> None:
    load = Load()
    leases = [load.lease(0.1) for _ in range(1000)]
    cycle: list[object] = [load.lease(1.0)]
    cycle.append(cycle)
    del leases, cycle
    gc.collect()
    assert (load.active, load.outstanding) == (0, 0.0)


def test_threads() -> None:
    load = Load()

    def work() -> None:
        held: list[Lease] = []
        for index in range(2000):
            held.append(load.lease(0.1 * index))
            if index % 3 == 0:
                held.pop(0).release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (load.active, load.outstanding) == (0, 0.0)


def test_least_loaded() -> None:
    small, large = Load(1.0), Load(4.0)
    held = [small.lease(10.0), large.lease(20.0)]
    assert least_loaded([small, large], 1.0) == 1
    assert least_loaded([], 1.0) == -1
    assert len(held) == 2
    ties = Counter(least_loaded([Load(), Load(), Load()], 1.0) for _ in range(600))
    assert set(ties) == {0, 1, 2}
    assert min(ties.values()) > 100


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_no_strange_numbers(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Load(value)
    with pytest.raises(ValueError, match="finite"):
        Load().lease(value)
