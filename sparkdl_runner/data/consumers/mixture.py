"""Batches of several loaders in turn, drawn by weight: the same turns on every rank, resumable."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.data.batch_iterator import CLOSED, BatchIterator
from sparkdl_runner.data.batches.batch_queue import Batch
from sparkdl_runner.data.batches.loader import ArrowLoader
from sparkdl_runner.data.errors import StateError
from sparkdl_runner.rank import rank_facts

Stop = Literal["first", "all"]

_STOPS = ("first", "all")
_LEAST_DRAWN = 1024
_REPLACED = (
    "this iterator was replaced by a later one, or the mix was moved: it has one place, not two. "
    "Use the later one, or make a second mix."
)
_STREAM = 2
"""Apart from the random numbers by which a loader orders its rows."""
_REPEATED = 32
"""A source that is read again in one epoch takes its epoch plus ``times << 32``: none twice."""


class MixedLoader:
    """Iterates over the batches of several loaders, each step's from one of them.

    Which one a step takes is drawn by the weights, and follows from the seed, the epoch and the
    step alone. So all ranks take the same, and the same number of steps. In its epoch e, the mix
    reads each source's epoch e, whatever ``num_epochs`` the source has.

    Args:
        sources: Loaders of ``make_torch_dataloader``, and their weights: of how many steps each
            gives one on average. Their batches may differ in size and columns.
        seed: Of the draws; up to 2**64 - 1.
        stop: ``"first"`` ends an epoch with the last batch of the source that ends first; of the
            others, some batches are left out, other ones in each epoch. ``"all"`` goes on until
            each source has given all of its batches; those that end before begin again, in
            another order.

    Raises:
        TypeError: A source is no loader of the arrow engine.
        ValueError: A weight is not above 0, a source has no step, or an argument is out of range.
    """

    def __init__(
        self, sources: Sequence[tuple[ArrowLoader, float]], *, seed: int = 0, stop: Stop = "first"
    ) -> None:
        self._seed = whole_number("seed", seed, least=0, most=(1 << 64) - 1) or 0
        if stop not in _STOPS:
            raise ValueError(f"stop is {stop!r}; expected one of {', '.join(_STOPS)}.")
        self._stop = stop
        self._sources = [source for source, _ in sources]
        self._weights = [float(weight) for _, weight in sources]
        for number, (source, weight) in enumerate(sources):
            if not isinstance(source, ArrowLoader):
                raise TypeError(
                    f"source {number} is a {type(source).__name__}; expected a loader of "
                    "make_torch_dataloader(), with engine='arrow'."
                )
            if not 0 < weight < float("inf"):
                raise ValueError(f"source {number} has the weight {weight}; expected above 0.")
            if source.steps_per_epoch == 0:
                raise ValueError(f"source {number} has no step: it does not fill a global batch.")
        if len({id(source) for source in self._sources}) < max(1, len(self._sources)):
            raise ValueError(
                "sources is empty, or names a loader twice: it has one place, not two."
            )
        self._lengths = np.array([source.steps_per_epoch for source in self._sources])
        self._epoch = self._step = 0
        self._is_resumed = self._is_closed = False
        self._iterators: dict[int, Any] = {}
        self._batches: BatchIterator | None = None
        self._turns = self._draw(0)
        rank_facts.note(steps_per_epoch=len(self))

    def __len__(self) -> int:
        """Steps of the epoch that the next batch is of, the same on every rank.

        They differ a little between epochs, as the draws do.
        """
        return len(self._turns)

    @property
    def steps_per_epoch(self) -> int:
        """The same as the length."""
        return len(self)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self._epoch

    @property
    def step(self) -> int:
        """Steps of that epoch that are done."""
        return self._step

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch, except right after ``load_state_dict`` of that epoch."""
        epoch = whole_number("epoch", epoch, least=0) or 0
        if not (self._is_resumed and epoch == self._epoch):
            self._move(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """A few numbers, and those of each source; equal on every rank, valid after any step."""
        return {
            "version": 1,
            "epoch": self._epoch,
            "step": self._step,
            "seed": self._seed,
            "stop": self._stop,
            "weights": self._weights,
            "sources": [source.state_dict() for source in self._sources],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on after ``state``, with ranks that divide the sources' lanes.

        Raises:
            StateError: It is of another mix, or of other sources.
        """
        mine = self.state_dict()
        for name in ("version", "seed", "stop", "weights"):
            if state.get(name) != mine[name]:
                raise StateError(
                    f"the state is of a mix with {name}={state.get(name)!r}, and this one has "
                    f"{mine[name]!r}: it could not go on with the same batches."
                )
        epoch, step, states = state.get("epoch"), state.get("step"), state.get("sources")
        if (
            not isinstance(states, list)
            or len(states) != len(self._sources)
            or type(epoch) is not int
            or type(step) is not int
            or epoch < 0
        ):
            raise StateError("this is not the state of a mix of so many loaders: it was altered.")
        if not 0 <= step < len(self._draw(epoch)):
            raise StateError(f"epoch {epoch} has no step {step}: the state was altered.")
        for source, source_state in zip(self._sources, states, strict=True):
            source.load_state_dict(source_state)
        self._move(epoch, step)
        self._is_resumed = True

    def __iter__(self) -> Iterator[Batch]:
        """Begins the next epoch, or goes on from a state; takes one epoch, or the rest of it.

        Raises:
            RuntimeError: The mix is closed.
        """
        if self._is_closed:
            raise RuntimeError(CLOSED)
        is_left = self._step > 0 and not self._is_resumed
        self._move(self._epoch + is_left, 0 if is_left else self._step)
        self._batches = BatchIterator(self._run())
        return self._batches

    def _run(self) -> Generator[Batch, None, None]:
        epoch, turns, iterators = self._epoch, self._turns, self._iterators
        taken = np.bincount(turns[: self._step], minlength=len(self._sources))
        for step in range(self._step, len(turns)):
            number = int(turns[step])
            times, done = divmod(int(taken[number]), int(self._lengths[number]))
            if done == 0:
                if number in iterators:
                    iterators.pop(number).close()
                self._begin(self._sources[number], epoch + (times << _REPEATED))
            if number not in iterators:
                iterators[number] = iter(self._sources[number])
            batch = next(iterators[number])
            taken[number] += 1
            self._is_resumed = False
            self._step = step + 1
            if step + 1 == len(turns):  # One who counts batches asks for no more.
                self._batches = None
                self._end_sources()
                self._epoch, self._step, self._turns = epoch + 1, 0, self._draw(epoch + 1)
            yield batch

    @staticmethod
    def _begin(source: ArrowLoader, epoch: int) -> None:
        # Not by set_epoch, which would keep the step of a state of this epoch.
        place = {"epoch": epoch, "step": 0, "first_epoch": epoch}
        source.load_state_dict({**source.state_dict(), **place})

    def _end_sources(self) -> None:
        """Ends the iterations of the sources that are under way."""
        while self._iterators:
            self._iterators.popitem()[1].close()

    def _end(self, reason: str) -> None:
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close(reason)
        self._end_sources()

    def _move(self, epoch: int, step: int) -> None:
        self._end(_REPLACED)
        self._epoch, self._step, self._turns = epoch, step, self._draw(epoch)

    def _draw(self, epoch: int) -> npt.NDArray[np.int64]:
        """The turns of an epoch, ``[steps]``: the number of the source of each step."""
        philox = np.random.Philox(
            key=np.array([self._seed, epoch], dtype=np.uint64),
            counter=np.array([0, 0, 0, _STREAM], dtype=np.uint64),
        )
        random = np.random.Generator(philox)
        bounds = np.cumsum(self._weights)[:-1] / sum(self._weights)
        drawn = np.empty(0, dtype=np.int64)
        while True:
            more = random.random(max(_LEAST_DRAWN, len(drawn)))
            drawn = np.concatenate([drawn, np.searchsorted(bounds, more, side="right")])
            ends = []
            for number, length in enumerate(self._lengths):
                steps = np.flatnonzero(drawn == number)
                if len(steps) >= length:
                    ends.append(int(steps[length - 1]) + 1)
            if ends and self._stop == "first":
                return drawn[: min(ends)]
            if len(ends) == len(self._lengths):
                return drawn[: max(ends)]

    def close(self) -> None:
        """Closes every source."""
        self._is_closed = True
        self._end(CLOSED)
        for source in self._sources:
            source.close()

    def __enter__(self) -> MixedLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
