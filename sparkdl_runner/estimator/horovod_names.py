"""Names of Horovod's TorchEstimator that are others here, or that nothing here needs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from sparkdl_runner.base.nearest import did_you_mean

Init = TypeVar("Init", bound=Callable[..., None])

RENAMED = {
    "backward_passes_per_step": "gradient_accumulation_steps",
    "loss_constructors": "loss",
    "random_seed": "seed",
    "run_id": "checkpoint_dir",
    "train_minibatch_fn": "train_step",
    "val_batch_size": "batch_size",
    "verbose": "run_config",
}
_LOADER = "the loader shuffles and shares out all rows by itself; leave it out"
_COLUMNS = "select or compute the columns in the DataFrame, and leave it out"
_EVERY_ROW = "every row of an epoch comes once; leave it out"
NOT_NEEDED = {
    "categorical_cols": _COLUMNS,
    "compress_sparse_cols": _COLUMNS,
    "continuous_cols": _COLUMNS,
    "data_module": _LOADER,
    "gradient_compression": "write it into a training_fn",
    "inmemory_cache_all": _LOADER,
    "input_shapes": "shapes follow from the columns; reshape in the model",
    "label_shapes": "shapes follow from the columns; reshape in the loss",
    "mp_start_method": "write it into a training_fn",
    "partitions_per_process": _LOADER,
    "reader_pool_type": _LOADER,
    "shuffle": _LOADER,
    "shuffle_buffer_size": _LOADER,
    "store": "data go to the cache folder, and checkpoints to checkpoint_dir; leave it out",
    "train_reader_num_workers": _LOADER,
    "train_steps_per_epoch": _EVERY_ROW,
    "transformation_edit_fields": _COLUMNS,
    "transformation_removed_fields": _COLUMNS,
    "use_gpu": "ranks use the GPUs that Spark gives them; leave it out",
    "val_reader_num_workers": _LOADER,
    "validation_steps_per_epoch": _EVERY_ROW,
}


def refuses_other_names(init: Init) -> Init:
    """Makes a constructor tell of a name that it does not take what to write in its place."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def call(self: Any, *args: Any, **params: Any) -> None:
        refuse_other_names(type(self).__name__, params, known)
        init(self, *args, **params)

    return call  # type: ignore[return-value]


def refuse_other_names(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError for the first name that is none of ``known``."""
    for name in given:
        if name in known:
            continue
        if name in NOT_NEEDED:
            raise TypeError(f"{what} has no {name}, as Horovod's has: {NOT_NEEDED[name]}.")
        if name in RENAMED:
            raise TypeError(
                f"{what} has no {name}, as Horovod's has; did you mean {RENAMED[name]!r}?"
            )
        raise TypeError(f"{what} has no {name}{did_you_mean(name, known)}")
