"""Does a standalone master answer at its address? Spark itself tries for minutes to reach one."""

from __future__ import annotations

import socket

from sparkdl_runner.doctor.findings.finding import Finding, ok, problem
from sparkdl_runner.doctor.installation import INSTALLATION, Installation
from sparkdl_runner.doctor.question import is_under_submit
from sparkdl_runner.launch.wire.network import split_host_port

ANSWER_SECONDS = 5.0
"""How long the masters together may take to answer."""
_SCHEME = "spark://"


@INSTALLATION("spark.master", expected="a master that answers at its address")
def standalone_master(installed: Installation) -> Finding | None:
    """Whether anyone answers at the address of a standalone master."""
    master = installed.master or installed.settings.get("spark.master", "")
    if not master.startswith(_SCHEME) or is_under_submit(installed.environment):
        return None
    addresses = master.removeprefix(_SCHEME).split(",")
    silent = []
    for address in addresses:
        reason = _silence(address, ANSWER_SECONDS / len(addresses))
        if not reason:
            return ok(f"somebody answers at {address}")
        silent.append(f"{address} ({reason})")
    return problem(
        f"Nobody answers at {' or '.join(silent)}, which is the master.",
        advice="Start the master there (sbin/start-master.sh), or take the address that its own "
        "page and log name: spark://HOST:PORT, by default port 7077.",
    )


def _silence(address: str, seconds: float) -> str:
    """Why nobody answers there; empty if somebody does."""
    try:
        host, port = split_host_port(address)
        socket.create_connection((host, port), seconds).close()
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""
