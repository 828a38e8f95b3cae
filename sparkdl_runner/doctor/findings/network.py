"""Do hosts reach one another and the driver, under which addresses, and do their clocks agree?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkdl_runner.doctor.findings.checks import EXECUTOR, HOST, SESSION, Place
from sparkdl_runner.doctor.findings.finding import Finding, not_checked, ok, problem, warning

# MLflow's charts, the ages of checkpoints and the expiry of tokens follow each host's clock.
MOST_SECONDS_APART = 5.0
MOST_SECONDS_FOR_TOKENS = 300.0


@EXECUTOR("network.address", expected="an address of this host that the other hosts reach")
def address(executor: Place) -> Finding:
    """Whether ranks would use an address at which others reach them."""
    answer = executor.answer
    address, interface = answer.get("address"), answer.get("interface")
    if "listen_error" in answer:
        wrong = f"on which this host cannot listen: {answer['listen_error']}"
    elif str(address).startswith("127.") and answer["peers"]:
        wrong = f"on {interface}, which other hosts cannot reach"
    else:
        return ok(f"ranks use {address}{f' on {interface}' if interface else ''}")
    return problem(
        f"Ranks would use {address}, {wrong}.",
        advice="Set SPARK_LOCAL_IP (or SPARK_LOCAL_HOSTNAME) on that host to the address by which "
        "the others reach it, before its Spark worker starts.",
    )


@EXECUTOR(
    "network.driver",
    expected="executors may connect to any port of the driver that is its own (a new one for each "
    "run)",
)
def driver(executor: Place) -> Finding:
    """Whether an executor reaches the driver's log channel."""
    probe = executor.answer["driver"]
    if "error" not in probe:
        return ok("reaches the driver's log channel")
    return problem(
        f"This host cannot reach the driver's log channel at {probe['to']}: {probe['error']}.",
        advice="Open TCP from the executors to the driver (ports from "
        "/proc/sys/net/ipv4/ip_local_port_range), or set spark.driver.host to an address that they "
        "reach. Without it runs work, and their output and first errors stay on the executors.",
    )


@EXECUTOR("network.executors", expected="every host reaches every other at any port")
def executors(executor: Place) -> Iterator[Finding]:
    """Whether an executor reaches the others."""
    peers = executor.answer["peers"]
    failed = {peer: probe["error"] for peer, probe in peers.items() if "error" in probe}
    for peer, error in failed.items():
        firewall = ", as where a firewall drops packets" if "no answer" in error else ""
        yield problem(
            f"This host cannot reach {peer}: {error}{firewall}.",
            advice="Open TCP between the executors (security group, firewalld, NetworkPolicy), for "
            "the ports of /proc/sys/net/ipv4/ip_local_port_range.",
        )
    if peers and not failed:
        yield ok(f"reaches {len(peers)} other(s)")
    elif not peers and executor.on_cluster:
        yield not_checked("there is one executor, which has no other to reach")


@EXECUTOR("clock", expected=f"within {MOST_SECONDS_APART:g} s")
def clock(executor: Place) -> Finding | None:
    """Whether an executor's clock agrees with the driver's."""
    if not executor.on_cluster:
        return None
    ahead = executor.answer["driver"].get("seconds_ahead")
    if ahead is None:
        return not_checked("the driver was not reached")
    if abs(ahead) <= MOST_SECONDS_APART:
        return ok("agrees with the driver's")
    return (problem if abs(ahead) > MOST_SECONDS_FOR_TOKENS else warning)(
        f"This host's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the "
        "driver's.",
        advice="Start a time service there (systemctl enable --now chronyd or systemd-timesyncd); "
        "until then charts and logs disagree, and storage and servers may refuse its credentials.",
    )


@SESSION("network.names", expected="a name of its own for each host")
def names(session: dict[str, Any]) -> Iterator[Finding]:
    """Whether several hosts have one name."""
    answers = session["stage"].get("hosts", [])
    if session["single_host"] or not answers:
        return
    addresses: dict[str, set[str]] = {}
    for answer in answers:
        addresses.setdefault(answer["host"], set()).add(str(answer.get("address")))
    shared = {name: of_name for name, of_name in addresses.items() if len(of_name) > 1}
    for name, of_name in shared.items():
        yield warning(
            f"{len(of_name)} hosts are called {name}: {', '.join(sorted(of_name))}.",
            advice="Ranks run so, but logs and MLflow's system metrics are hard to tell apart: "
            "give each host or container its own name (hostnamectl, docker run --hostname).",
        )
    if not shared:
        yield ok(f"{len(addresses)} host name(s), each of one host")


@HOST("network.name", expected="an address that other hosts reach")
def name(host: Place) -> Finding:
    """Whether a host's own name leads to an address that others can use."""
    seen = host.facts["name"]
    if "error" in seen:
        text = f"the host's name {seen['name']} leads nowhere ({seen['error']})"
    else:
        text = f"the host's name {seen['name']} leads to {seen['leads_to']}"
        if not seen["leads_to"].startswith("127."):
            return ok(text)
        text += ", the loopback interface"
    if not host.on_cluster:
        return ok(text)
    return warning(
        f"{text[0].upper()}{text[1:]}. Ranks are told their address and work; what asks for the "
        "host by its name does not.",
        advice=f"In that host's /etc/hosts, give {seen['name']} the address by which the others "
        "reach it, or set SPARK_LOCAL_IP before Spark starts there.",
    )
