"""``deliver``: brings to MLflow what trainings could not, once its server is back."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sparkdl_runner.errors import ConfigError, LaunchError
from sparkdl_runner.private_folder import private_folder
from sparkdl_runner.redaction import Redactor, secrets_of
from sparkdl_runner.tracking.run import undelivered
from sparkdl_runner.tracking.run.delivery import Delivery
from sparkdl_runner.tracking.run.opening.lease import Lease
from sparkdl_runner.tracking.run.opening.opened import Opened
from sparkdl_runner.tracking.run.opening.store import connect
from sparkdl_runner.tracking.run.server import TrackingServer
from sparkdl_runner.tracking.run.spool import SPOOLS, Spool
from sparkdl_runner.tracking.settings import Tracking

_DELIVER_SECONDS = 600.0


def add_parser(subparsers: Any) -> None:
    """Adds ``deliver``."""
    summary = "Bring to MLflow what trainings could not, while its server was down."
    parser = subparsers.add_parser("deliver", help=summary, description=summary)
    parser.add_argument(
        "folder",
        nargs="*",
        help="folders of checkpoints, by URL or absolute path; what this host keeps is delivered "
        "without them",
    )
    parser.add_argument("--tracking-uri", help="MLflow's store, if not MLFLOW_TRACKING_URI")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        client, call = connect(Tracking(tracking_uri=arguments.tracking_uri))
    except LaunchError as error:
        raise ConfigError(str(error)) from None
    left = 0
    for run_id, url in _found(arguments.folder):
        try:
            run = call(partial(client.get_run, run_id), f"find run {run_id}")
            opened = Opened(client=client, uri=call.uri, run=run, is_ours=False, first_attempt=1)
            told, is_left = _deliver(opened, url)
        except LaunchError as error:
            told, is_left = str(error), True
        left += is_left
        print(f"run {run_id}: {told}", flush=True)
    return 1 if left else 0


def _found(folders: list[str]) -> Iterator[tuple[str, str]]:
    """Runs, and where their entries are: on this host, then beside checkpoints.

    Raises:
        ConfigError: A folder cannot be read.
    """
    own = sorted(private_folder(SPOOLS).glob("*.jsonl"))
    found = [(path.stem, "") for path in own if path.stat().st_size]
    for folder in folders:
        url = Path(folder).absolute().as_uri() if folder.startswith((".", "/")) else folder
        try:
            found += undelivered.files_in(url).items()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{Redactor()(folder)} cannot be read: {error}.") from None
    if not found:
        print("There is nothing to deliver.")
    yield from found


def _deliver(opened: Opened, url: str) -> tuple[str, bool]:
    """Delivers what one file holds. Returns what became of it, and whether something is left."""
    run_id = opened.run.info.run_id
    holder = Lease().held_by_another(opened.run.data.tags)
    if opened.run.info.status == "RUNNING" and holder is not None:
        return f"it is being trained by {holder}, who delivers it", False
    try:
        spool = Spool(private_folder(SPOOLS) / f"{run_id}.jsonl")
    except BlockingIOError:
        return "another process of this host delivers it", False
    if url and not len(spool):
        redact = Redactor(secrets_of())
        spool.put(undelivered.not_known(opened, undelivered.read(url), redact))
    count = len(spool)
    delivery = Delivery(spool, TrackingServer(opened.uri, run_id))
    left = delivery.close(_DELIVER_SECONDS)
    if left:
        return f"{left} of {count} entries could not be delivered ({delivery.trouble})", True
    if url:
        undelivered.delete(url)
    refused = "".join(f"; MLflow refused {one}" for one in delivery.refused)
    return f"{count} entries delivered{refused}", False
