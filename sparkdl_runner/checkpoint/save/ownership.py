"""Whether ranks hold different parts of a training, so that each of them has to write its own."""

from __future__ import annotations

import warnings
from collections.abc import Set
from typing import Any

from sparkdl_runner.base.unwrapping import is_sharded
from sparkdl_runner.checkpoint import sharded
from sparkdl_runner.checkpoint.names import in_none, names_of_ranks
from sparkdl_runner.checkpoint.peers import Peers

# Of a parameter, to tell a rank's own from a copy.
_FIRST_NUMBERS = 8
_SHOWN = 3
_NOTHING_YET = object()


class Ownership:
    """The facts that ranks agree on at the first save of a model.

    Args:
        in_shards: What the user says; None goes by model and optimizer.
    """

    def __init__(self, in_shards: bool | None) -> None:
        self._in_shards = in_shards
        self._asked_of: Any = _NOTHING_YET
        self._differ = False
        self._shared: frozenset[str] | None = None
        self._own: frozenset[str] = frozenset()

    def differ(self, peers: Peers, model: Any, optimizer: Any) -> bool:
        """Whether each rank is to write its own part; to be called by all ranks."""
        if self._in_shards is not None:
            return self._in_shards
        if sharded.is_partitioned(optimizer):
            return True
        if self._asked_of is not model:
            self._asked_of = model
            self._differ = _ask(peers, model)
        return self._differ

    def own_of(self, peers: Peers, shared: Set[str]) -> Set[str]:
        """Which keys are for this rank to write, as no lower rank has them; called by all ranks.

        Ranks tell one another their keys at the first save, and when those of any have changed.

        Args:
            peers: All ranks.
            shared: Keys that other ranks may have too.
        """
        if peers.any_rank(shared != self._shared):
            self._shared = frozenset(shared)
            lower_ranks = names_of_ranks(peers, shared)[: peers.rank]
            self._own = frozenset(in_none(shared, lower_ranks))
        return self._own

    def let_go(self) -> None:
        """Forgets the model."""
        self._asked_of = _NOTHING_YET


def _ask(peers: Peers, model: Any) -> bool:
    """Whether the ranks' models differ; warns of parameters that would not be saved."""
    if peers.any_rank(is_sharded(model)):
        return True
    if peers.size == 1:
        return False
    parameters = {} if model is None else dict(model.named_parameters())
    names = {f"{name} {list(parameter.shape)}": name for name, parameter in parameters.items()}
    values = {
        f"{name} {parameters[names[name]].detach().flatten()[:_FIRST_NUMBERS].tolist()}": name
        for name in names
    }
    of_names = names_of_ranks(peers, names)
    of_values = names_of_ranks(peers, values)
    shared = names.keys() - in_none(names, of_names[: peers.rank])
    own = {values[text] for text in in_none(values, of_values[: peers.rank])}
    lost = sorted(names[name] for name in shared & own)
    if lost:
        more = ", …" if len(lost) > _SHOWN else ""
        warnings.warn(
            f"Rank {peers.rank}'s {', '.join(lost[:_SHOWN])}{more} differ from those of a lower "
            "rank, and a checkpoint holds that rank's. If ranks hold different layers, such as a "
            "pipeline's stages, give each layer a name of its own; if they hold copies, make "
            "these equal before they are saved.",
            stacklevel=5,
        )
    return len(set(of_names)) > 1
