"""Spare workers in the Python processes of a Spark Connect session's executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from sparkdl_runner.launch.agent.spares.pool import end_spares
from sparkdl_runner.launch.driver.connect.probe import slots_of
from sparkdl_runner.launch.driver.connect.query import ServerQuery
from sparkdl_runner.launch.driver.connect.session import in_a_sentence, require_session


def end_spares_of_session() -> None:
    """Ends them, in a stage of as many tasks as there are slots.

    Raises:
        LaunchError: The session cannot be used.
    """
    session = require_session()
    slots = slots_of(session)
    if not slots:  # Nothing has run in it, or nobody knows: they end by themselves.
        return
    # In a barrier stage all tasks run at once, and so each in a Python process of its own.
    tasks = session.range(0, slots, 1, slots).mapInArrow(_end_spares, "id long", barrier=True)
    with in_a_sentence(session), closing(ServerQuery(session, tasks.collect, slots=slots)) as query:
        query.result()


def _end_spares(batches: Iterable[Any]) -> Iterator[Any]:
    for _ in batches:  # Spark drops a Python process that has not read all of its input.
        pass
    end_spares()
    return iter(())
