"""How a client speaks to a relay: Spark asks a table function for its schema on its driver's host.

That takes no slot. It travels by value, since this package may be missing there: so this file
imports the standard library alone, at its top, and the server's own pyspark.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from base64 import b64decode
from importlib import import_module
from typing import Any

ASK_SECONDS = 5.0
# The relay runs in a child, so that nobody waits for its imports, or for its end.
_BEGIN = "import os, sys; text = sys.stdin.read(); os.fork() and os._exit(0); exec(text)"


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
    folder = ""
    try:
        with _listener(str(host), *ports) as agents, socket.socket(socket.AF_UNIX) as questions:
            folder = tempfile.mkdtemp(prefix="sparkdl-relay-")
            place = os.path.join(folder, "questions")
            questions.bind(place)
            questions.listen()
            listeners = agents.fileno(), questions.fileno()
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _BEGIN, *map(str, listeners)],
                input=f"{source}\n\nimport sys\n\nmain(*sys.argv[1:])\n",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=listeners,
                start_new_session=True,
                cwd="/",
                text=True,
                check=True,
                timeout=ASK_SECONDS,
            )
            return json.dumps([*agents.getsockname()[:2], place])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _listener(host: str, first: int, last: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, last + 1):
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            one.bind((host, port))
            one.listen()
        except OSError:
            one.close()
        else:
            return one
    raise OSError(f"no port of {first} to {last} is free at {host}")


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
