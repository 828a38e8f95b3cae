"""Batches of a conversion as a ``tf.data.Dataset``."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sparkdl_runner.data.consumers.engine_choice import PETASTORM_ONLY, choose_engine
from sparkdl_runner.data.consumers.loader_context import TorchLoaderContext
from sparkdl_runner.data.decode.columns import ROW_MASK, CollatedColumn
from sparkdl_runner.data.errors import DatasetError

if TYPE_CHECKING:
    from sparkdl_runner.data.batches.loader import ArrowLoader

_BY_MAP = frozenset({"data_loader_fn", "device", "sample_transform", "transform", "transform_spec"})


def check_arguments(given: Mapping[str, Any], *, unischema: bool) -> None:
    """Refuses what ``make_tf_dataset`` does not take.

    Raises:
        TypeError: An argument is unknown, or a loader's for torch or of petastorm's own readers.
        DatasetError: petastorm's codecs encoded the data set.
    """
    for name in sorted(given):
        if name in _BY_MAP:
            raise TypeError(f"make_tf_dataset() takes no {name}: use map() of the data set.")
        if name in PETASTORM_ONLY:
            raise TypeError(
                f"{name} is petastorm's own, and make_tf_dataset() reads without petastorm: "
                "choose rows before converting, and give tf.data's take() the number of steps."
            )
    if unischema:
        raise DatasetError(
            "This data set was encoded by petastorm's codecs, by a schema that only petastorm can "
            "read, and make_tf_dataset() reads without it: write the data again from a DataFrame."
        )
    choose_engine("arrow", given, unischema=False)


class TFDatasetContext:
    """Gives a ``tf.data.Dataset`` on entering a ``with`` block, and ends its reads on leaving.

    Its elements are named tuples of the columns, each of one batch of this rank. It is not to be
    sharded or batched again: give it to a strategy by
    ``strategy.distribute_datasets_from_function(lambda _: dataset)``.

    TensorFlow reads ahead, by a number of batches that it does not tell. So where the data stand is
    not asked of what was read, but computed from the number of steps that were trained.
    """

    def __init__(
        self,
        make_loader: Callable[[], TorchLoaderContext],
        num_epochs: int | None,
        prefetch: int | None,
    ) -> None:
        """Made by ``SparkDatasetConverter.make_tf_dataset``."""
        self._make_loader = make_loader
        self._num_epochs = num_epochs
        self._prefetch = prefetch
        self._loader: ArrowLoader | None = None
        self._is_iterated = False
        self._origin: dict[str, Any] | None = None
        """The state from which steps are counted."""
        self._next: dict[str, Any] = {}
        """The state from which the next iteration begins."""

    def __enter__(self) -> Any:
        import tensorflow as tf

        if self._loader is not None:
            raise RuntimeError("this data set is open already; make another one.")
        loader = self._open()
        row_type = _row_type(loader)
        dataset = tf.data.Dataset.from_generator(
            functools.partial(self._batches, row_type),
            output_signature=row_type(**_signature(loader)),
        )
        if self._num_epochs is None:
            endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            dataset = dataset.apply(endless)
        ahead = tf.data.AUTOTUNE if self._prefetch is None else self._prefetch
        options = tf.data.Options()
        # Each rank has its own rows already; TensorFlow would leave out all but a part of them.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.prefetch(ahead).with_options(options)

    def __exit__(self, *error: object) -> None:
        self._close()

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch, the same on every rank.

        Raises:
            RuntimeError: Asked outside of the ``with`` block.
        """
        return self._opened().steps_per_epoch

    def state_dict(self, steps: int) -> dict[str, Any]:
        """A few numbers that say where the data stand, equal on every rank, as a loader's.

        Args:
            steps: How many were trained since the data set's start, or since the state that
                ``load_state_dict`` was given: for Keras ``model.optimizer.iterations`` if that
                began with this data set.

        Raises:
            RuntimeError: Called outside of the ``with`` block.
        """
        loader = self._opened()
        state = dict(self._origin or {})
        epochs, step = divmod(state["step"] + steps, loader.steps_per_epoch)
        epoch, first_epoch = state["epoch"] + epochs, state["first_epoch"]
        if self._num_epochs is not None:  # An iteration that ended was followed by another one.
            first_epoch = epoch - (epoch - first_epoch) % self._num_epochs
        return {**state, "epoch": epoch, "step": step, "first_epoch": first_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration begin where ``state`` was taken.

        On any number of ranks that divides its lanes. An iteration under way ends.

        Raises:
            RuntimeError: Called outside of the ``with`` block.
            StateError: It is of another data set, seed, order or global batch size.
        """
        self._opened()
        loader = self._open()
        loader.load_state_dict(state)
        self._origin = self._next = loader.state_dict()

    def _opened(self) -> ArrowLoader:
        if self._loader is None:
            raise RuntimeError("this data set is not open: call this inside of its with block.")
        return self._loader

    def _open(self) -> ArrowLoader:
        """Opens a loader in place of the one before."""
        self._close()
        self._loader = self._make_loader().__enter__()
        self._is_iterated = False
        if self._origin is None:
            self._origin = self._next = self._loader.state_dict()
        return self._loader

    def _close(self) -> None:
        loader, self._loader = self._loader, None
        if loader is not None:
            with suppress(ValueError):  # A thread of TensorFlow's is in it, and will end it.
                loader.close()

    def _batches(self, row_type: Callable[..., Any]) -> Iterator[Any]:
        """The batches of one iteration. TensorFlow calls this in a thread of its own.

        An iteration that did not end is begun anew by the next one; one that ended is followed by
        the next epochs.
        """
        loader = self._opened()
        if self._is_iterated:
            loader = self._open()
        self._is_iterated = True
        loader.load_state_dict(self._next)
        for batch in loader:
            yield row_type(**batch)
        if self._loader is loader:  # Else it was closed, which ends its iteration as well.
            self._next = loader.state_dict()
            self._is_iterated = False


def _row_type(loader: ArrowLoader) -> Callable[..., Any]:
    names = list(_names(loader))
    try:
        return namedtuple("Batch", names)
    except ValueError as error:
        raise DatasetError(
            f"the elements of a tf.data.Dataset are named tuples here, and {error}: rename the "
            "column before converting, or leave it out with columns=[…]."
        ) from None


def _tail(loader: ArrowLoader) -> str:
    return str(loader.state_dict()["tail"])


def _names(loader: ArrowLoader) -> Iterator[str]:
    yield from (output.name for output in loader.layout.batch_outputs)
    if loader.has_row_mask:
        yield ROW_MASK
    for column in loader.layout.ragged:
        yield from column.entries


def _signature(loader: ArrowLoader) -> dict[str, Any]:
    """The TensorSpec of each entry of a batch."""
    import tensorflow as tf

    rows = None
    if _tail(loader) != "uneven":
        rows = loader.global_batch_size // loader.world_size
    specs = {
        output.name: tf.TensorSpec((rows, *output.shape), tf.as_dtype(output.dtype))
        for output in loader.layout.batch_outputs
    }
    if loader.has_row_mask:
        specs[ROW_MASK] = tf.TensorSpec((rows,), tf.bool)
    for column in loader.layout.ragged:
        if isinstance(column, CollatedColumn):
            raise DatasetError(
                f"column {column.name!r} is packed or padded batch by batch, which tf.data cannot "
                "say beforehand: give pad a length, or ragged."
            )
        if column.depth:
            raise DatasetError(
                f"column {column.name!r} holds lists of texts or bytes of different lengths, which "
                "tf.data cannot hold: leave it out with columns=[…], or flatten it."
            )
        if column.leaf is not None and column.kind == "ragged":
            specs[column.name] = tf.TensorSpec((None,), tf.as_dtype(column.leaf.dtype))
            offsets = None if rows is None else rows + 1
            specs[f"{column.name}_offsets"] = tf.TensorSpec((offsets,), tf.int64)
        else:
            specs[column.name] = tf.TensorSpec((rows,), tf.string)
    return specs
