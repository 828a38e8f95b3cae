"""The ticket: the facts about an open run that ranks need."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from sparkdl_runner.tracking.rank_run import RunTicket, StoreFile
from sparkdl_runner.tracking.run.opening.opened import Opened
from sparkdl_runner.tracking.run.server import is_remote
from sparkdl_runner.tracking.settings import Tracking

_SQLITE = "sqlite:///"


def ticket_of(
    opened: Opened,
    settings: Tracking,
    *,
    run_name: str,
    credentials: Mapping[str, str],
    single_host: bool,
) -> RunTicket:
    """The ticket of a run.

    Args:
        opened: The run.
        settings: What was asked for.
        run_name: What it is called.
        credentials: Environment variables by which its store is reached.
        single_host: Whether all ranks are on this host, in this working folder.
    """
    info = opened.run.info
    uri, store_file = opened.uri, None
    if not single_host and not is_remote(uri):
        # Executors of this host reach it too, from a working folder of their own.
        uri, path = _absolute(uri)
        store_file = StoreFile.at(path)
    return RunTicket(
        run_id=info.run_id,
        run_name=run_name,
        experiment_id=info.experiment_id,
        artifact_uri=info.artifact_uri,
        tracking_uri=uri,
        given_uri=opened.uri,
        credentials=credentials,
        is_named=settings.run_name is not None,
        source=opened.source_tags,
        store_file=store_file,
        other_ranks=settings.other_ranks,
        system_metrics=settings.system_metrics,
        trace_steps=settings.torch_profiler,
        horovod_timeline=settings.horovod_timeline,
    )


def _absolute(uri: str) -> tuple[str, str]:
    """The URI of a store that is a file or a folder, and its path, for any working folder."""
    if uri.startswith(_SQLITE):
        path, mark, options = uri.removeprefix(_SQLITE).partition("?")
        path = os.path.abspath(path)
        return f"{_SQLITE}{path}{mark}{options}", path
    path = os.path.abspath(unquote(urlsplit(uri).path))
    return (uri if uri.startswith("file:///") else path), path
