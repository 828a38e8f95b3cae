"""The templates of this process: workers are forked from them, and so need not import torch.

Each process that starts workers (an agent's Python process, or the driver for ranks of its own
host) holds its own. They end with it.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from sparkdl_runner.launch.agent.spares.start_conditions import StartConditions
from sparkdl_runner.launch.agent.template_process import TemplateProcess, is_possible
from sparkdl_runner.launch.agent.worker_process import WorkerProcess

# How long a template that has imported the backend may take to fork a worker.
ANSWER_SECONDS = 20.0


def start_workers(
    number: int,
    *,
    backend: str,
    environment: Mapping[str, str],
    shutdown_grace_seconds: float,
    with_template: bool = False,
    may_restart: bool = False,
) -> list[WorkerProcess]:
    """Starts workers: from a template that there is and that is like them, or by themselves.

    The calling thread must live until they have ended: see ``WorkerProcess``.

    Args:
        number: How many.
        backend: The backend's name.
        environment: The whole environment of each.
        shutdown_grace_seconds: See ``RunConfig``.
        with_template: Whether to start a template if there is none. It stays until
            ``keep_template`` is called.
        may_restart: Whether these may be followed by others, which go on with their training.

    Raises:
        OSError: One could not be started; none is left.
    """
    start = partial(
        WorkerProcess,
        backend=backend,
        environment=environment,
        shutdown_grace_seconds=shutdown_grace_seconds,
    )
    workers: list[WorkerProcess] = []
    try:
        with _lock:
            template = _template(backend, environment, starts=with_template)
            if template and with_template:
                template.keep(math.inf, for_restart=may_restart)
            while template and len(workers) < number:
                try:
                    workers.append(start(template=template))
                except OSError:
                    template = None  # It has just ended.
        if template and template.is_ready and not workers[0].begins(ANSWER_SECONDS):
            while workers:
                workers.pop().end()
        while len(workers) < number:
            workers.append(start())
    except BaseException:
        for worker in workers:
            worker.end()
        raise
    return workers


def keep_template(seconds: float, *, backend: str, environment: Mapping[str, str]) -> None:
    """Keeps a template for workers to come, and ends those that do not fit and have no workers.

    Args:
        seconds: How long it waits for them from now on; 0 for no template.
        backend: The backend's name.
        environment: What workers start with.
    """
    with _lock:
        kept = _template(backend, environment, starts=True) if seconds else None
        for conditions, template in list(_templates.items()):
            template.keep(seconds if template is kept else 0)
            if template is not kept:
                del _templates[conditions]


def end_spares() -> None:
    """Ends the templates of this process that have no workers, and waits until they are gone."""
    with _lock:
        ended = list(_templates.values())
        _templates.clear()
        for template in ended:
            template.keep(0)
    for template in ended:
        template.join()


_lock = threading.Lock()
_templates: dict[StartConditions, TemplateProcess] = {}


def _template(
    backend: str, environment: Mapping[str, str], *, starts: bool
) -> TemplateProcess | None:
    """The template for such workers, which may be started now. Call it with the lock."""
    if not is_possible() or not (starts or _templates):
        return None
    try:
        conditions = StartConditions.now(backend, environment)
    except OSError:  # The working folder is gone, say.
        return None
    template = _templates.get(conditions)
    if template is not None and not template.is_usable:
        del _templates[conditions]  # It ends with its last worker.
        template = None
    if template is None and starts:
        with suppress(OSError):  # There is no memory for it, say.
            template = _templates[conditions] = TemplateProcess(backend, environment)
    return template


def _forget() -> None:
    """In a process that was forked: templates are the other's children, which has their threads."""
    global _lock
    _lock = threading.Lock()
    _templates.clear()


os.register_at_fork(after_in_child=_forget)
