"""The start of a run in MLflow: its data sets, and its name in the run above it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sparkdl_runner.tracking.run import datasets
from sparkdl_runner.tracking.run.opening.opened import PARENT_TAG, Opened
from sparkdl_runner.tracking.run.parameters_and_tags import tell_parent
from sparkdl_runner.tracking.run.run_end import RunEnd
from sparkdl_runner.tracking.run.server import REQUEST_SECONDS


def start_run(
    opened: Opened, converters: Mapping[str, Any], steps: RunEnd, problems: list[str]
) -> None:
    """Shows what belongs to the run; a page without it is better than no training.

    Args:
        opened: The run.
        converters: The conversions that the function uses, by what it calls them.
        steps: Takes each step, and notes the problem of one that fails.
        problems: Gets a sentence for each data set that is not as in the attempts before.
    """
    client, run = opened.client, opened.run
    parent_id = run.data.tags.get(PARENT_TAG)
    if parent_id is not None and not opened.first_attempt:
        steps.try_step(
            partial(tell_parent, client, parent_id, run),
            REQUEST_SECONDS,
            f"the run {parent_id} does not name this one",
        )
    for name, converter in converters.items():
        if change := datasets.difference(run, name, converter):
            problems.append(
                f"{change}. A loader that is restored refuses them; a function that restores none "
                "goes on with them"
            )
        steps.try_step(
            partial(datasets.log, client, run.info.run_id, name, converter),
            REQUEST_SECONDS,
            f"the data set {name!r} is not in MLflow",
        )
