"""How a client speaks to a relay: Spark asks a table function for its schema on its driver's host.

That takes no slot. It travels by value, since this package may be missing there: so this file
imports the standard library alone, at its top, and the server's own pyspark.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from base64 import b64decode
from importlib import import_module
from typing import Any

ASK_SECONDS = 5.0


class RelayCall:
    """A table function without rows: its answer is in its schema."""

    @staticmethod
    def analyze(question: Any) -> Any:
        """Spark calls this; the question is JSON in base64."""
        from pyspark.sql.types import StringType, StructField, StructType

        udtf: Any = import_module("pyspark.sql.udtf")  # pyspark 3.5 has no such answer.
        name, *arguments = json.loads(b64decode(question.value))
        answer = start(*arguments) if name == "start" else ask(*arguments)
        field = StructField("answer", StringType(), metadata={"answer": answer})
        return udtf.AnalyzeResult(schema=StructType([field]))

    def eval(self, question: str) -> Any:
        """Spark wants to see this, and does not call it."""
        yield ("",)


def start(source: str, advertised: str | None, ports: list[int]) -> str:
    """Starts a relay on this host.

    Args:
        source: The text of the relay's file.
        advertised: The name under which executors know this host; None for its own.
        ports: The first and the last port that it may take.

    Returns:
        Its address, port and place of questions, as JSON.
    """
    host = socket.getaddrinfo(advertised or socket.gethostname(), None)[0][4][0]
    relay = subprocess.Popen(
        [sys.executable, "-I", "-", str(host), *map(str, ports)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
        text=True,
    )
    where, problem = relay.communicate(
        f"{source}\n\nimport sys\n\nmain(*sys.argv[1:])\n", ASK_SECONDS
    )
    if relay.returncode:
        raise OSError(problem.strip().rpartition("\n")[2])
    return where


def ask(place: str, question: str) -> str:
    """Asks a relay.

    Args:
        place: Where its socket for questions is.
        question: JSON in a line.

    Returns:
        Its answer, as JSON.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ASK_SECONDS)
        connection.connect(place)
        connection.sendall(question.encode() + b"\n")
        with connection.makefile() as answer:
            return answer.readline()
