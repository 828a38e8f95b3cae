"""``deliver``: brings to MLflow what trainings could not, once its server is back."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sparkdl_runner.base.foreign_file import ForeignFileError
from sparkdl_runner.base.private_folder import private_folder
from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.base.shown_text import line, lines
from sparkdl_runner.errors import ConfigError, LaunchError
from sparkdl_runner.tracking.report.run_folder import RunFolder
from sparkdl_runner.tracking.run import left_run, undelivered
from sparkdl_runner.tracking.run.delivery import Delivery, TrackingServer
from sparkdl_runner.tracking.run.left_run import LeftRun
from sparkdl_runner.tracking.run.opening.lease import Holder, Lease
from sparkdl_runner.tracking.run.opening.opened import Opened
from sparkdl_runner.tracking.run.opening.store import connect
from sparkdl_runner.tracking.run.run_end import RunEnd
from sparkdl_runner.tracking.run.server_calls import ServerCalls
from sparkdl_runner.tracking.run.spool import SPOOLS, Spool
from sparkdl_runner.tracking.settings import Tracking

_DELIVER_SECONDS = 600.0
_NAME_A_STORE = {"MLFLOW_TRACKING_URI", "DATABRICKS_RUNTIME_VERSION"}
# A run of which nothing is known but what waits.
_LOST = LeftRun(tracking_uri="")


def add_parser(subparsers: Any) -> None:
    """Adds ``deliver``."""
    summary = "Bring to MLflow what trainings could not, while its server was down."
    parser = subparsers.add_parser(
        "deliver",
        help=summary,
        description=summary,
        epilog="for example:\n"
        "  sparkdl-runner deliver\n"
        "  sparkdl-runner deliver s3a://bucket/checkpoints --tracking-uri http://mlflow:5000\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder",
        nargs="*",
        help="folders of checkpoints, by URL or absolute path; what this host keeps is delivered "
        "without them",
    )
    parser.add_argument(
        "--tracking-uri",
        help="MLflow's store; by default that of the training, or MLFLOW_TRACKING_URI where this "
        "host does not know it",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    stores: dict[str | None, tuple[Any, ServerCalls]] = {}
    runs: list[dict[str, Any]] = []
    for run_id, url in _found(arguments.folder):
        known = left_run.left_run(run_id)
        uri = arguments.tracking_uri or (None if known is None else known.tracking_uri)
        try:
            if uri is None and not (os.environ.keys() & _NAME_A_STORE):
                raise LaunchError("its server is not known here: name it with --tracking-uri")
            if uri not in stores:
                stores[uri] = connect(Tracking(tracking_uri=uri))
            client, call = stores[uri]
            run = call(partial(client.get_run, run_id), f"find run {run_id}")
            is_ours = known is not None and known.is_ours and run.info.status == "RUNNING"
            opened = Opened(client=client, uri=call.uri, run=run, is_ours=is_ours, first_attempt=1)
            outcome, is_left = _deliver(opened, url, known)
        except LaunchError as error:
            outcome, is_left = str(error), True
        runs.append({"run_id": run_id, "outcome": outcome, "is_left": is_left})
        print(f"run {run_id}: {lines(outcome)}", flush=True)
    return {"exit_code": int(any(run["is_left"] for run in runs)), "runs": runs}


def _found(folders: list[str]) -> Iterator[tuple[str, str]]:
    """Runs, and where their entries are: on this host, then beside checkpoints.

    Raises:
        ConfigError: A folder cannot be read.
    """
    own = private_folder(SPOOLS).glob("*.jsonl")
    waiting = {path.stem for path in own if path.stat().st_size}
    unended = {
        run_id for run_id in left_run.left_runs() if (left_run.left_run(run_id) or _LOST).status
    }
    runs = [(run_id, "") for run_id in sorted(waiting | unended)]
    for folder in folders:
        url = Path(folder).absolute().as_uri() if folder.startswith((".", "/")) else folder
        try:
            runs += undelivered.files_in(url).items()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{Redactor()(folder)} cannot be read: {error}.") from None
    if not runs:
        print("There is nothing to deliver.")
    yield from runs


def _deliver(opened: Opened, url: str, known: LeftRun | None) -> tuple[str, bool]:
    """Delivers what is left of a run. Returns what became of it, and whether something is left."""
    run_id = opened.run.info.run_id
    lease, tags = Lease(), opened.run.data.tags
    holder = lease.held_by_another(tags)
    if known is not None and known.status and holder is not None and holder.lease == known.lease:
        holder = None  # A notebook, say, that lives on; its training is over.
    elif opened.run.info.status == "RUNNING":
        look = partial(opened.client.get_run, run_id)
        holder = lease.wait_for_sign(tags, lambda: look().data.tags, partial(_tell_wait, run_id))
    if opened.run.info.status == "RUNNING" and holder is not None:
        return f"it is being trained by {holder}, who delivers it", False
    try:
        spool = Spool(private_folder(SPOOLS) / f"{run_id}.jsonl")
    except BlockingIOError:
        return "another process of this host delivers it", False
    if url and not len(spool):
        try:
            left_there = undelivered.read(url)
        except (OSError, ForeignFileError) as error:
            spool.close()
            raise LaunchError(f"{Redactor()(url)} cannot be read: {error}") from None
        spool.put(undelivered.not_known(opened, left_there, Redactor(secrets_of())))
    count = len(spool)
    delivery = Delivery(spool, TrackingServer(opened.uri, run_id))
    left = delivery.close(_DELIVER_SECONDS)
    if left:
        return f"{left} of {count} entries could not be delivered ({delivery.trouble})", True
    if url:
        undelivered.delete(url)
    refused = "".join(f"; MLflow refused {refusal}" for refusal in delivery.refused)
    outcome = f"{count} entries delivered{refused}"
    if known is None or not known.status:
        left_run.forget(run_id)
        return outcome, False
    ended, is_left = _end(opened, known)
    return f"{outcome}; {ended}", is_left


def _tell_wait(run_id: str, holder: Holder) -> None:
    message = f"waiting up to {holder.seconds:g} s for a sign of {holder}"
    print(f"run {run_id}: {line(message)}", flush=True)


def _end(opened: Opened, known: LeftRun) -> tuple[str, bool]:
    """Sends the files of a run whose training is over, and ends it as the training ended."""
    folder = Path(known.folder)
    problems: list[str] = []
    is_there = folder.is_dir()
    if is_there:
        end = RunEnd(opened, RunFolder(folder), problems)
        summarize = None if known.report is None else known.summary
        end.finish(known.status, summarize, Tracking.delivery_timeout_seconds, known.ended_at)
    else:
        opened.set_status(known.status, known.ended_at)
    if problems:
        return "; ".join(problems), True
    left_run.forget(opened.run.info.run_id)
    sent = "logs and report are sent" if is_there else f"its files in {folder} are gone"
    status = f"the run has ended as {known.status}" if opened.is_ours else "others have ended it"
    return f"{sent}; {status}", False
