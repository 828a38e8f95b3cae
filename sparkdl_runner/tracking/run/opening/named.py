"""A training with a name: the next call of that name continues in its MLflow run.

The run is the record of the training: its tags hold the name, what is trained, who drives it now
and, once it is over, what was returned. Names are those of an experiment.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparkdl_runner.base.parsing import undisturbed
from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.tracking.entries import HIDDEN, Entry, hidden_tag
from sparkdl_runner.tracking.run.opening.changes import changes
from sparkdl_runner.tracking.run.opening.lease import ALIVE_TAG, Holder, Lease
from sparkdl_runner.tracking.run.opening.opened import Opened, create_run, resume
from sparkdl_runner.tracking.run.opening.store import Store, open_store
from sparkdl_runner.tracking.settings import Tracking

TRAINING_TAG = "sparkdl_runner.name"
FUNCTION_TAG = "sparkdl_runner.function"
CODE_TAG = f"{HIDDEN}function_digest"
RETURNED_TAG = f"{HIDDEN}returned"
# MLflow's stores take 5,000 or more.
_MOST_CHARACTERS = 5000
_NEWEST_FIRST = ["attributes.start_time DESC"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The identity of a training's work: the parts that are equal in every process."""

    function: str
    """The name of its function or script."""
    code: str | None
    """A digest of the function's own source, where that can be read."""

    @classmethod
    def of(cls, main: Any) -> Work:
        """Looks a function up."""
        while hasattr(main, "func"):  # functools.partial
            main = main.func
        named = main if hasattr(main, "__qualname__") else type(main)
        code = None
        with suppress(OSError, TypeError):
            source = undisturbed(lambda: inspect.getsource(named))
            code = hashlib.sha256(source.encode()).hexdigest()[:16]
        return cls(function=f"{named.__module__}.{named.__qualname__}", code=code)


class NamedRun:
    """The run of a named training, if there is one; no other driver holds it.

    Attributes:
        run: As MLflow knows it; None if this is to be its first.
    """

    def __init__(
        self,
        settings: Tracking,
        name: str,
        work: Work,
        *,
        rerun_finished: bool,
        secrets: Sequence[str] = (),
    ) -> None:
        """Finds the run, and waits until a driver that is not heard of any more has lost it.

        Args:
            settings: Of the training's tracking; its experiment is where to look.
            name: Of the training.
            work: What it is to train.
            rerun_finished: Whether one that has finished is as good as none.
            secrets: What neither the run nor a message shows, besides those of the driver's
                environment.

        Raises:
            LaunchError: Another driver runs it, it trains something else, or MLflow refuses.
        """
        self.lease = Lease(settings.lease_seconds)
        self._settings = settings
        self._redact = Redactor([*secrets_of(), *secrets])
        self.name = self._redact.name(name)
        self._work = work
        self._store: Store = open_store(settings)
        self.run: Any = self._released()
        if self.run is not None:
            self._require_same(self.run.data.tags)
            if self.is_finished and rerun_finished:
                self.run = None

    @property
    def run_id(self) -> str | None:
        """The run's id; None if this is to be its first."""
        return None if self.run is None else str(self.run.info.run_id)

    @property
    def is_finished(self) -> bool:
        """Whether the training is over: not if it was asked to end early, which keeps no value.

        The value is kept last, so a driver that was lost before it ended the run changes nothing.
        """
        return self.run is not None and hidden_tag(self.run.data.tags, RETURNED_TAG) is not None

    def tag(self, name: str) -> str | None:
        """The value of a tag of the run; None without it, or without a run."""
        value = None if self.run is None else self.run.data.tags.get(name)
        return None if value is None else str(value)

    def returned(self, arguments: Mapping[str, Any], converters: Mapping[str, Any]) -> Any:
        """Says that the training has finished, and returns what it returned.

        Args:
            arguments: Of the function in this call, by name: others than it was trained with are
                told.
            converters: The conversions that the function uses in this call; as they are.

        Returns:
            The value, as JSON keeps it; None where it could not be kept.
        """
        record = json.loads(hidden_tag(self.run.data.tags, RETURNED_TAG) or "{}")
        if self.run.info.status != "FINISHED":
            self._end()
        info = self.run.info
        ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime((info.end_time or 0) / 1000))
        what = "its value is returned again"
        if "value" not in record:
            what = f"its value ({record.get('lost')}) was not kept, and None is returned"
        asked = changes(self.run, arguments, converters, self._redact)
        other = f" This call asks for another training: {'; '.join(asked)}." if asked else ""
        _tell(
            f"the training {self.name!r} finished at {ended} in MLflow run {info.run_id}. It is "
            f"not run again; {what}.{other} To train anew, set rerun_finished"
            f"{', or give it another name' if asked else ''}."
        )
        return record.get("value")

    def _end(self) -> None:
        run_id, client = self.run.info.run_id, self._store.client
        end = partial(client.set_terminated, run_id, "FINISHED")
        self._store.call(end, f"end run {run_id}")
        self.run = self._store.call(partial(client.get_run, run_id), f"read run {run_id}")

    def open(self) -> Opened:
        """Opens the run, or a new one, for this driver alone.

        A new one is called what the settings say, or else by the training's name.

        Raises:
            LaunchError: Another driver was faster, or MLflow refuses.
        """
        if self.run is None:
            opened = self._create()
        else:
            run_id = self.run.info.run_id
            opened = resume(self._store.client, self._store.call, run_id, self.lease)
            self._claim(run_id)
        code = hidden_tag(opened.run.data.tags, CODE_TAG)
        if self._work.code is not None and code not in (None, self._work.code):
            _tell(f"the code of {self._work.function} has changed since {self.name!r} last began.")
        return opened

    def entries(self) -> list[Entry]:
        """The tags that say what is trained now."""
        return [["tag", name, text] for name, text in self._tags().items()]

    def _tags(self) -> dict[str, str]:
        code = {} if self._work.code is None else {CODE_TAG: self._work.code}
        return {TRAINING_TAG: self.name, FUNCTION_TAG: self._work.function, **code}

    def _newest(self) -> Any:
        runs = self._search()
        return runs[0] if runs else None

    def _search(self) -> list[Any]:
        client, experiment_id = self._store.client, self._store.experiment_id
        which = f"tags.`{TRAINING_TAG}` = '{self.name}'"
        search = partial(client.search_runs, [experiment_id], which, order_by=_NEWEST_FIRST)
        return list(self._store.call(search, f"find the training {self.name!r}"))

    def _released(self) -> Any:
        """The newest run of this name, once no other driver holds it."""
        first_alive_at: str | None = None
        while True:
            run = self._newest()
            if run is None or run.info.status != "RUNNING":
                return run
            tags = run.data.tags
            holder = self.lease.held_by_another(tags)
            if holder is None:
                return run
            alive_at = tags.get(ALIVE_TAG, "")
            # A holder on this machine is known to live. Another is, once it renews its lease.
            if holder.is_on_this_machine() or first_alive_at not in (None, alive_at):
                raise LaunchError(self._is_taken(run, holder))
            if first_alive_at is None:
                first_alive_at = alive_at
                _tell(
                    f"the training {self.name!r} is held: {holder}. If it does not show itself, "
                    f"it is over {holder.seconds:g} s after that, and this one goes on."
                )
            time.sleep(holder.renew_seconds / 10)

    def _create(self) -> Opened:
        held = {name: text for _, name, text in self.lease.entries()}
        given = self._redact.value(dict(self._settings.tags))
        opened = create_run(
            self._store, self._settings.run_name or self.name, {**given, **self._tags(), **held}
        )
        # If several drivers found no run and each made one, the first one goes on.
        own = opened.run.info
        for other in self._search():
            if other.info.status != "RUNNING":
                continue
            if (other.info.start_time, other.info.run_id) >= (own.start_time, own.run_id):
                continue
            holder = self.lease.wait_for_sign(
                other.data.tags,
                partial(self._tags_of, other.info.run_id),
                lambda holder: _tell(f"an earlier run of {self.name!r} is held: {holder}."),
            )
            if holder is not None:
                delete = partial(self._store.client.delete_run, own.run_id)
                self._store.call(delete, "delete a second run")
                raise LaunchError(self._is_taken(other, holder))
        return opened

    def _tags_of(self, run_id: str) -> Mapping[str, str]:
        run = self._store.call(partial(self._store.client.get_run, run_id), f"read run {run_id}")
        tags: Mapping[str, str] = run.data.tags
        return tags

    def _claim(self, run_id: str) -> None:
        """Takes the lease, and looks whether another driver took it at the same moment."""
        client, call = self._store.client, self._store.call
        for _, name, text in self.lease.entries():
            call(partial(client.set_tag, run_id, name, text), f"take run {run_id}")
        run = call(lambda: client.get_run(run_id), f"read run {run_id}")
        holder = self.lease.held_by_another(run.data.tags)
        if holder is not None:
            raise LaunchError(self._is_taken(run, holder))

    def _is_taken(self, run: Any, holder: Holder) -> str:
        return (
            f"The training {self.name!r} runs already, in MLflow run {run.info.run_id}: {holder}. "
            "Wait until it is over, end it, or give this one another name."
        )

    def _require_same(self, tags: Mapping[str, str]) -> None:
        known = tags.get(FUNCTION_TAG, self._work.function)
        if known != self._work.function:
            raise LaunchError(
                f"The training {self.name!r} trains {known} (MLflow run {self.run.info.run_id}), "
                f"and this call would train {self._work.function}. Give it another name; or, if "
                f"{known} was only renamed, change the run's tag {FUNCTION_TAG}."
            )


def returned_entry(value: Any) -> Entry:
    """The tag that keeps what a training returned, where JSON can hold it in a tag's length."""
    record: dict[str, Any] = {"lost": type(value).__name__}
    with suppress(TypeError, ValueError, RecursionError):
        if len(text := json.dumps({"value": value})) <= _MOST_CHARACTERS:
            return ["tag", RETURNED_TAG, text]
    return ["tag", RETURNED_TAG, json.dumps(record)]


def _tell(text: str) -> None:
    tell(text, sys.stdout)
