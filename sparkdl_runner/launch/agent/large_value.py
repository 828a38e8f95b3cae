"""A returned value that is too large for Spark: by the channel to the driver, from a file here.

The file comes first. If the driver has no room for the value, or is gone, the value is still there.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from sparkdl_runner.base.filesystem import join_url, local_path, open_filesystem
from sparkdl_runner.base.private_folder import private_folder
from sparkdl_runner.errors import ResultTooLargeError
from sparkdl_runner.launch.agent.rank_log import remove_file_of_run, remove_old_runs
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import World


class Carrier(Protocol):
    """The channel to the driver."""

    def send_value(self, value: bytes) -> str:
        """Sends a value; returns its SHA-256 once the driver has all of it.

        Raises:
            OSError: The driver has no room for it, or is not heard any more.
        """


@dataclass(frozen=True)
class Delivery:
    """How a rank's value gets to the driver.

    Attributes:
        most_bytes: What Spark carries in all.
        carrier: The channel; None where values may not go by it.
        run: The run's own name.
    """

    most_bytes: int
    carrier: Carrier | None
    run: str

    def deliver(self, outcome: Outcome) -> Outcome:
        """Sends the value of a rank that has returned, if Spark would not carry it.

        Returns:
            The outcome without the value, which the driver has; or a failure that says where the
            value is kept.
        """
        world, value = outcome.world, outcome.payload
        most_bytes = self.most_bytes // (world.size if outcome.of_each else 1)
        if outcome.status != Status.RETURNED or len(value) <= most_bytes:
            return outcome
        kept: Path | str | OSError = keep_value(value, self.run, world)
        if self.carrier is None:
            why = (
                "The channel to the driver is not encrypted, as this application asks for, so "
                "values do not go by it"
            )
        else:
            try:
                sent = replace(outcome, payload=b"", value_sha256=self.carrier.send_value(value))
            except OSError as error:
                why = f"It could not be sent to the driver by the channel: {error}"
            else:
                if isinstance(kept, Path):
                    remove_file_of_run(kept)
                return sent
        if url := _put_beside_checkpoint(outcome, self.run):
            if isinstance(kept, Path):
                remove_file_of_run(kept)
            kept = url
        kind = ResultTooLargeError.__name__
        message = (
            f"The value that rank {world.rank} returned takes {len(value):,} bytes, and Spark "
            f"carries at most {most_bytes:,}. {why}. {where(kept, world.place)} Write large things "
            "to shared storage and return their path; or raise what limits Spark here: "
            "spark.driver.maxResultSize, or eight times the value for spark.driver.memory and "
            "spark.executor.memory."
        )
        return replace(
            outcome,
            status=Status.FAILED,
            payload=b"",
            exception=kind,
            message=message,
            refused_result=kind,
        )


def keep_value(value: bytes, run: str, world: World) -> Path | OSError:
    """Writes a value into a file that only this user can read, and that is kept for a week.

    Args:
        value: The value, pickled.
        run: The run's own name.
        world: The rank whose value it is.

    Returns:
        The file, or why there is none.
    """
    try:
        with new_value_file(run, world) as file:
            file.write(value)
        return Path(file.name)
    except OSError as error:
        return error


def _put_beside_checkpoint(outcome: Outcome, run: str) -> str:
    """Writes a value to where the rank has saved checkpoints, which outlives its host.

    Returns:
        The URL; empty where there are no checkpoints, or this host has no access to their storage.
    """
    folder = outcome.checkpoint.rpartition("/step-")[0]
    if not folder:
        return ""
    url = join_url(folder, f"returned-{run}-rank-{outcome.world.rank}.pickle")
    try:
        if (local := local_path(url)) is not None:
            with open(local, "xb", opener=_private) as file:
                file.write(outcome.payload)
        else:
            filesystem, path = open_filesystem(url)
            with filesystem.open_output_stream(path) as stream:
                stream.write(outcome.payload)
    except Exception:  # Of many libraries. The value is kept on this host.
        return ""
    return url


def new_value_file(run: str, world: World) -> BinaryIO:
    """Makes the file of a rank's value in this host's temporary folder.

    Raises:
        OSError: The folder cannot be written to.
    """
    base = private_folder("sparkdl_runner-values")
    remove_old_runs(base)
    folder = base / run / f"attempt-{world.attempt}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The driver may be on the same host, and has a file of its own.
    return open(folder / f"rank-{world.rank}-{uuid.uuid4()}.pickle", "xb", opener=_private)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def where(kept: Path | str | OSError, place: str) -> str:
    """A sentence on where a value is kept, and how to load it.

    Args:
        kept: A file of a host, or a URL; or why there is none.
        place: The host.
    """
    if isinstance(kept, str):
        return (
            f"It is kept beside the checkpoints, in {kept}: load it with "
            f"cloudpickle.load(fsspec.open({kept!r}).open()). A pickle can run code, so load it "
            "only if nobody else can write there."
        )
    if isinstance(kept, OSError):
        return f"It could not be kept on host {place} either: {kept}."
    return (
        f"It is kept for a week on host {place}, in {kept}: load it with "
        f"cloudpickle.load(open({str(kept)!r}, 'rb'))."
    )
