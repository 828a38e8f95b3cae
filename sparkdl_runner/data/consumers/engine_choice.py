"""From the arguments of ``make_torch_dataloader`` to an engine and its own arguments.

Code written for petastorm keeps working: what only petastorm can do chooses petastorm's engine,
what has a counterpart is translated, and what only tunes petastorm's threads is accepted.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.data.batches.shard_group import shard_of
from sparkdl_runner.data.order.plan import Tail
from sparkdl_runner.data.order.shard import global_batch
from sparkdl_runner.data.remote.cache_choice import CACHE_TYPES, DECODED
from sparkdl_runner.rank import world

ENGINES = ("arrow", "petastorm")

PETASTORM_ONLY = frozenset(
    {
        "data_loader_fn",
        "filters",
        "predicate",
        "rowgroup_selector",
        "steps_per_epoch",
        "transform_spec",
        "trust_unischema",
    }
)
"""Arguments that need petastorm's readers."""

TUNING = frozenset(
    {
        "cache_extra_settings",
        "cache_row_size_estimate",
        "hdfs_driver",
        "pyarrow_serialize",
        "reader_pool_type",
        "results_queue_size",
        "shard_seed",
        "shuffle_row_drop_partitions",
        "shuffle_rows",
        "zmq_copy_buffers",
    }
)
"""Arguments of petastorm's readers that change how it works, not what comes out of an epoch."""

SHARED = frozenset(
    {
        "cache_location",
        "cache_size_limit",
        "cache_type",
        "columns",
        "cur_shard",
        "schema_fields",
        "seed",
        "shard_by",
        "shard_count",
        "shuffle",
        "shuffle_row_groups",
    }
)
"""Arguments that both engines understand; ``columns`` and ``schema_fields`` mean the same."""

# Arguments of ArrowLoader that make_torch_dataloader names itself, or fills in.
_HANDLED = frozenset(
    {"self", "manifest", "filesystem", "directory", "converted"}
    | {"batch_size", "num_epochs", "workers_count"}
)


def arrow_arguments() -> frozenset[str]:
    """The names that ``ArrowLoader`` takes beyond the data set, the batch and the epochs."""
    from sparkdl_runner.data.batches.loader import ArrowLoader

    return frozenset(inspect.signature(ArrowLoader.__init__).parameters) - _HANDLED


def choose_engine(engine: str | None, arguments: Iterable[str], *, unischema: bool) -> str:
    """Chooses the engine and refuses arguments that it does not know.

    Args:
        engine: What the caller asked for; ``None`` to choose.
        arguments: The names of what was given, beyond petastorm's five.
        unischema: Whether petastorm's codecs wrote the data set, by a schema that cannot be read
            without running it.

    Raises:
        TypeError: An argument is unknown, or does not belong to this engine.
        ValueError: The engine is unknown, or cannot read this data set.
    """
    given = set(arguments)
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"engine must be 'arrow' or 'petastorm', not {engine!r}.")
    arrow_only = arrow_arguments() - SHARED
    known = PETASTORM_ONLY | TUNING | SHARED | arrow_only
    for name in sorted(given - known):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise TypeError(
            f"make_torch_dataloader() got an unexpected keyword argument {name!r}{hint}"
        )
    needs_petastorm = sorted(given & PETASTORM_ONLY)
    if engine == "arrow":
        if needs_petastorm:
            raise TypeError(
                f"{needs_petastorm[0]} is petastorm's own: leave out engine='arrow', or use "
                "transform= for a function of a batch and filter the DataFrame before converting."
            )
        if unischema:
            raise ValueError(
                "This data set was encoded by petastorm's codecs, by a schema that only "
                "engine='petastorm' can read."
            )
    chosen = engine or ("petastorm" if needs_petastorm or unischema else "arrow")
    if chosen == "petastorm" and given & arrow_only:
        reason = f" ({needs_petastorm[0]} chose it)" if needs_petastorm and not engine else ""
        raise TypeError(
            f"{min(given & arrow_only)} is known to engine='arrow' only, and this is "
            f"engine='petastorm'{reason}."
        )
    return chosen


def require_cache_type(cache_type: str) -> None:
    """Raises a ValueError unless petastorm has such a cache."""
    if cache_type == DECODED:
        raise ValueError(
            f"cache_type={DECODED!r} keeps the images that engine='arrow' decodes, and this is "
            "engine='petastorm'. Give cache_type='local-disk', or leave out what chose petastorm."
        )
    if cache_type not in CACHE_TYPES:
        expected = ", ".join(name for name in CACHE_TYPES if name != DECODED)
        raise ValueError(f"cache_type is {cache_type!r}; expected one of {expected}.")


def wants_shuffle(arguments: dict[str, Any], shuffling_queue_capacity: int) -> bool:
    """Whether the order should be random: yes, unless it was switched off explicitly.

    petastorm code switches it off with ``shuffle_row_groups=False`` and no shuffling queue.
    """
    shuffle = arguments.get("shuffle")
    if shuffle is not None:
        return bool(shuffle)
    return bool(arguments.get("shuffle_row_groups", True)) or shuffling_queue_capacity > 0


def wanted_tail(arguments: dict[str, Any], rows: int) -> Tail:
    """The default for rows that fill no global batch.

    Sharded data in ranks lose them, different ones in each epoch, so that all batches are of one
    size. If nothing is sharded, or the rows fill no global batch, they all come, as in petastorm,
    and an endless reader begins again.

    Args:
        arguments: Of the arrow engine, ``tail`` not among them.
        rows: Of the data set.

    Raises:
        TypeError, ValueError: The shard or the batch size is not possible.
    """

    shard_by = arguments.get("shard_by")
    _, shard_count = shard_of(shard_by, arguments.get("cur_shard"), arguments.get("shard_count"))
    batch_size, global_batch_size = (
        whole_number(name, arguments.get(name)) for name in ("batch_size", "global_batch_size")
    )
    batch_rows = global_batch(batch_size, global_batch_size, shard_count)
    # A single rank may resume a run of several, whose steps it must keep.
    alone = world.in_worker() and world.current_world().size == 1
    is_sharded = shard_count > 1 or shard_by is not None or alone
    if is_sharded and rows >= batch_rows:
        return "drop"
    return "wrap" if arguments.get("num_epochs") is None else "uneven"


def wanted_columns(arguments: dict[str, Any], names: Sequence[str]) -> list[str] | None:
    """The columns by name, from ``columns`` or from petastorm's patterns in ``schema_fields``.

    Raises:
        TypeError: Both are given.
        ValueError: A pattern matches no column.
    """
    columns, patterns = arguments.get("columns"), arguments.get("schema_fields")
    if columns is not None and patterns is not None:
        raise TypeError("columns and schema_fields say the same: give one of them.")
    if patterns is None:
        return None if columns is None else [columns] if isinstance(columns, str) else list(columns)
    texts = [getattr(pattern, "name", pattern) for pattern in patterns]
    for text in texts:
        if not any(re.fullmatch(text, name) for name in names):
            near = difflib.get_close_matches(text, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}."
            raise ValueError(f"schema_fields: no column matches {text!r}{hint}")
    return [name for name in names if any(re.fullmatch(text, name) for text in texts)]
