"""Who is named by a preflight, and who is not."""

from __future__ import annotations

import pytest

from sparkdl_runner.launch.preflight.findings import findings, rates_of_hosts

SAME = {"torch": "2.13.0", "processors": "8"}


def rank(number, *, host=None, matrices=100e9, same=(), **more):
    rates = {"matrices": matrices, **more.pop("rates", {})}
    host = number if host is None else host
    return {
        "rank": number,
        "host_rank": host,
        "place": f"host{host}",
        "rates": rates,
        "faults": [],
        "same": {**SAME, **dict(same)},
        "clock": [100.0, 200.0],
        **more,
    }


def found(*ranks, factor=1.3, **more):
    return list(findings(ranks, factor, **more))


def test_healthy_ranks_are_not_named():
    assert found(rank(0), rank(1, matrices=85e9), rank(2, matrices=110e9)) == []
    assert found(rank(0, matrices=1.0)) == []


@pytest.mark.parametrize("slow", [0, 1])
def test_of_two_ranks_the_slow_one_is_named(slow):
    ranks = [rank(number, matrices=50e9 if number == slow else 99e9) for number in range(2)]
    text = "slow: matrices 50 GFLOP/s, 99 GFLOP/s elsewhere"
    assert found(*ranks) == [([slow], text, True)]
    assert found(*ranks, factor=2.5) == []


def test_slow_ranks_of_one_host_are_one_finding():
    ranks = [rank(number, host=number // 4, matrices=200e9) for number in range(12)]
    slow = [rank(number, host=3, matrices=9e7) for number in range(12, 16)]
    text = "slow: matrices 90 MFLOP/s, 200 GFLOP/s elsewhere"
    assert found(*ranks, *slow) == [([12, 13, 14, 15], text, True)]


def test_disks_and_networks_are_named_only_where_they_are_much_slower():
    rates = [{"writing to the disk": rate} for rate in (1e9, 0.3e9, 0.2e9)]
    ranks = [rank(number, rates=own) for number, own in enumerate(rates)]
    text = "slow: writing to the disk 200 MB/s, 650 MB/s elsewhere"
    assert found(*ranks) == []
    ranks[2]["rates"]["writing to the disk"] = 0.1e9
    assert found(*ranks) == [([2], text.replace("200", "100"), True)]


def test_faults_are_named_for_all_ranks_of_the_host():
    ranks = [rank(0), rank(1, host=1, faults=["Xid 79 since it started"]), rank(2, host=1)]
    assert found(*ranks) == [([1, 2], "Xid 79 since it started", True)]


def test_differences_are_named_and_are_no_reason_to_do_without_a_host():
    ranks = [rank(0), rank(1, same={"torch": "2.12.0"}), rank(2)]
    assert found(*ranks) == [([1], "torch 2.12.0, 2.13.0 elsewhere", False)]
    # Where none is most ranks', the lower one is odd.
    ranks = [rank(0, same={"processors": "0.5"}), rank(1)]
    assert found(*ranks) == [([0], "processors 0.5, 8 elsewhere", False)]


def test_a_clock_is_compared_with_rank_0s_and_the_drivers():
    ranks = [rank(0), rank(1, clock=[97.0, 203.0]), rank(2, clock=[102.5, 202.5])]
    assert found(*ranks) == [([2], "clock +2.5 s from the driver's", False)]
    own, *_ = found(rank(0), ahead=-9.0)
    assert own == ([0], "clock -9.0 s from the driver's", False)


def test_a_host_is_compared_with_its_own_last_runs():
    ranks = [rank(0, matrices=50e9), rank(1, matrices=51e9)]
    earlier = [{"host0": 49e9, "host1": 100e9}, {"host1": 98e9}, {"elsewhere": 1e12}]
    text = "slower than before: matrices 51 GFLOP/s, 99 GFLOP/s in earlier runs"
    assert found(*ranks, earlier=earlier) == [([1], text, False)]


def test_a_hosts_rate_is_the_median_of_its_ranks():
    ranks = [rank(0, host=0, matrices=1e9), rank(1, host=0, matrices=3e9), rank(2, rates={})]
    del ranks[2]["rates"]["matrices"]
    assert rates_of_hosts(ranks) == {"host0": 2e9}
