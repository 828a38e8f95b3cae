"""The ticket: the facts about an open run that ranks need."""

from __future__ import annotations

from collections.abc import Mapping

from sparkdl_runner.tracking.rank_run import RunTicket
from sparkdl_runner.tracking.run.opening.opened import Opened
from sparkdl_runner.tracking.run.server import is_remote
from sparkdl_runner.tracking.settings import Tracking


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
        single_host: Whether all ranks are on this host, and so reach a store that is a file.
    """
    info = opened.run.info
    reaches = single_host or is_remote(opened.uri)
    return RunTicket(
        run_id=info.run_id,
        run_name=run_name,
        experiment_id=info.experiment_id,
        artifact_uri=info.artifact_uri,
        tracking_uri=opened.uri,
        credentials=credentials if reaches else {},
        is_named=settings.run_name is not None,
        source=opened.source_tags,
        store_is_elsewhere=not reaches,
        other_ranks=settings.other_ranks,
        system_metrics=settings.system_metrics,
        trace_steps=settings.torch_profiler,
        horovod_timeline=settings.horovod_timeline,
    )
