"""Do hosts reach one another and the driver, under which addresses, and do their clocks agree?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sparkdl_runner.doctor.findings.finding import Finding, not_checked, ok, problem, warning

# MLflow's charts and the ages of checkpoints go by each host's clock; tokens expire by it.
MOST_SECONDS_APART = 5.0
MOST_SECONDS_FOR_TOKENS = 300.0


def place_of(answer: dict[str, Any], *, single_host: bool) -> str:
    """How the report names an executor."""
    if single_host:
        return "executor"  # There is one, in the driver's JVM.
    return f"executor {answer['place']} ({answer['host']})"


def judge_network(answers: Sequence[dict[str, Any]], *, single_host: bool) -> Iterator[Finding]:
    """Everything about the network, from what the executors say.

    Args:
        answers: One for each executor.
        single_host: Whether all runs in the driver's own process.
    """
    names = Counter(answer["host"] for answer in answers)
    addresses = {answer["place"]: answer.get("address") for answer in answers}
    hosts_of_name: dict[str, set[Any]] = {}
    for answer in answers:
        hosts_of_name.setdefault(answer["host"], set()).add(answer.get("address"))
    for answer in answers:
        where = place_of(answer, single_host=single_host)
        yield _judge_address(answer, where, alone=len(answers) == 1 or single_host)
        yield _judge_driver(answer["driver"], where)
        if answer["peers"]:
            yield from _judge_peers(answer, addresses, where)
    if not single_host and len(answers) == 1:
        yield not_checked("network.executors", "there is one executor, which has no other to reach")
    shared = {name: found for name, found in hosts_of_name.items() if len(found) > 1}
    for name, found in shared.items():
        yield warning(
            "network.names",
            f"{len(found)} hosts are called {name}: {', '.join(sorted(map(str, found)))}.",
            expected="a name of its own for each host",
            advice="Ranks run so, but logs and MLflow's system metrics are hard to tell apart: "
            "give each host or container its own name (hostnamectl, docker run --hostname).",
        )
    if names and not shared and not single_host:
        yield ok("network.names", f"{len(names)} host name(s), each of one host")


def _judge_address(answer: dict[str, Any], where: str, *, alone: bool) -> Finding:
    check, address, interface = "network.address", answer.get("address"), answer.get("interface")
    advice = (
        "Set SPARK_LOCAL_IP (or SPARK_LOCAL_HOSTNAME) on that host to the address by which the "
        "others reach it, before its Spark worker starts."
    )
    if "listen_error" in answer:
        return problem(
            check,
            f"Ranks would use {address}, on which this host cannot listen: "
            f"{answer['listen_error']}.",
            expected="an address of this host",
            advice=advice,
            where=where,
        )
    if str(address).startswith("127.") and not alone:
        return problem(
            check,
            f"Ranks would use {address} ({interface}), which other hosts cannot reach.",
            expected="an address that the other hosts reach",
            advice=advice,
            where=where,
        )
    return ok(check, f"ranks use {address}{f' on {interface}' if interface else ''}", where)


def _judge_driver(visit: dict[str, Any], where: str) -> Finding:
    check = "network.driver"
    if "error" not in visit:
        return ok(check, "reaches the driver's log channel", where)
    return problem(
        check,
        f"This host cannot reach the driver's log channel at {visit.get('to', 'the driver')}: "
        f"{visit['error']}.",
        expected="executors may connect to any port of the driver that is its own (a new one for "
        "each run)",
        advice="Open TCP from the executors to the driver (ports from "
        "/proc/sys/net/ipv4/ip_local_port_range), or set spark.driver.host to an address that they "
        "reach. Without it runs work, and their output and first errors stay on the executors.",
        where=where,
    )


def _judge_peers(
    answer: dict[str, Any], addresses: dict[str, Any], where: str
) -> Iterator[Finding]:
    check, failed = "network.executors", False
    for place, visit in answer["peers"].items():
        if "error" in visit:
            failed = True
            silent = "no answer" in visit["error"]
            yield problem(
                check,
                f"This host cannot reach {addresses.get(place)} ({place}): {visit['error']}"
                f"{', as where a firewall drops packets' if silent else ''}.",
                expected="every host reaches every other at any port",
                advice="Open TCP between the executors (security group, firewalld, "
                "NetworkPolicy), for the ports of /proc/sys/net/ipv4/ip_local_port_range.",
                where=where,
            )
    if not failed:
        yield ok(check, f"reaches {len(answer['peers'])} other(s)", where)


def judge_clock(seconds_ahead: float | None, where: str) -> Finding:
    """Whether an executor's clock agrees with the driver's."""
    check = "clock"
    if seconds_ahead is None:
        return not_checked(check, "the driver was not reached", where)
    apart = abs(seconds_ahead)
    if apart <= MOST_SECONDS_APART:
        return ok(check, "agrees with the driver's", where)
    words = f"{apart:.0f} s {'ahead of' if seconds_ahead > 0 else 'behind'} the driver's"
    return (problem if apart > MOST_SECONDS_FOR_TOKENS else warning)(
        check,
        f"This host's clock is {words}.",
        expected=f"within {MOST_SECONDS_APART:g} s",
        advice="Start a time service there (systemctl enable --now chronyd or systemd-timesyncd); "
        "until then charts and logs disagree, and storage and servers may refuse its credentials.",
        where=where,
    )


def judge_name(facts: dict[str, Any], where: str, *, single_host: bool) -> Finding:
    """Whether a host's own name leads to an address that others can use."""
    check, name = "network.name", facts["name"]["name"]
    advice = (
        f"In that host's /etc/hosts, give {name} the address by which the others reach it, or set "
        "SPARK_LOCAL_IP before Spark starts there."
    )
    if "error" in facts["name"]:
        return (ok if single_host else _warned(advice))(
            check, f"the host's name {name} leads nowhere ({facts['name']['error']})", where=where
        )
    address = facts["name"]["leads_to"]
    found = f"the host's name {name} leads to {address}"
    if not address.startswith("127.") or single_host:
        return ok(check, found, where)
    return _warned(advice)(check, f"{found}, the loopback interface", where=where)


def _warned(advice: str) -> Callable[..., Finding]:
    def warned(check: str, found: str, *, where: str) -> Finding:
        return warning(
            check,
            f"{found[0].upper()}{found[1:]}. Ranks are told their address and work; what asks for "
            "the host by its name does not.",
            expected="an address that other hosts reach",
            advice=advice,
            where=where,
        )

    return warned
