"""Ranks that never joined one another: each has trained a model of its own, and all succeeded."""

from __future__ import annotations

from collections.abc import Sequence

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import RanksApartError
from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.wire.outcome import Outcome, Status


def check_joined(outcomes: Sequence[Outcome], config: RunConfig) -> str:
    """Warns if several ranks returned and none has ever joined the others.

    The ranks of ``gather``, which asks for each one's value, may well be independent.

    Args:
        outcomes: How the ranks ended.
        config: Says whether that is meant, or an error.

    Returns:
        The warning; empty if there is none.

    Raises:
        RanksApartError: ``require_collectives`` is True.
    """
    required = config.require_collectives
    if required is False or len(outcomes) < 2:
        return ""
    if any(outcome.has_joined or outcome.status != Status.RETURNED for outcome in outcomes):
        return ""
    if required is None and outcomes[0].of_each:
        return ""
    text = _sentence(len(outcomes), outcomes[0].world.backend)
    if required:
        raise RanksApartError(
            f"{text} This is an error since require_collectives is True. If the ranks are meant to "
            "be independent, leave it out."
        )
    text += " If the ranks are meant to be independent, set RunConfig(require_collectives=False)."
    tell(text)
    return text


def _sentence(ranks: int, backend: str) -> str:
    return (
        f"The {ranks} ranks never joined one another: each ran by itself. If they trained, each "
        "trained a model of its own, and only rank 0's was kept. The usual causes: the function "
        f"does not call {get_backend(backend).join_call}; an object that calls it was made on the "
        "driver and came along (Hugging Face's TrainingArguments, an Accelerator, a Lightning "
        "Trainer), so make it inside the function; a setting asks for one process (devices=1, "
        "num_nodes=1, strategy='auto')."
    )
