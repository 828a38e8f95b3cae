"""Whether what was saved may be opened: a model or an estimator can run any code then."""

from __future__ import annotations

import os
import warnings

TRUST_VARIABLE = "SPARKDL_RUNNER_TRUST"
"""An environment variable; 1 stands for ``trust=True``, which ``PipelineModel.load`` lacks."""
# Their names in earlier versions, in which only pickles needed trust.
_EARLIER_VARIABLE, _EARLIER_ARGUMENT = "SPARKDL_RUNNER_TRUST_PICKLE", "trust_pickle"


def how_to_trust(kind: str) -> str:
    """The words that tell a user how to open it: the end of an error's sentence."""
    return (
        f"open it with {kind}.load(path, trust=True), or in a pipeline with {TRUST_VARIABLE}=1 in "
        "the environment"
    )


def is_trusted(trust: bool, trust_pickle: bool = False) -> bool:
    """Whether a caller or the environment says that what is opened may run code.

    Args:
        trust: The caller's argument.
        trust_pickle: The same by its earlier name, for which there is a warning.
    """
    if trust or os.environ.get(TRUST_VARIABLE) == "1":
        return True
    is_in_environment = os.environ.get(_EARLIER_VARIABLE) == "1"
    if trust_pickle or is_in_environment:
        earlier, now = (
            (_EARLIER_ARGUMENT, "trust") if trust_pickle else (_EARLIER_VARIABLE, TRUST_VARIABLE)
        )
        warnings.warn(
            f"{earlier} is called {now} now: a graph or a name can run any code as a pickle can. "
            "The earlier name works as well.",
            FutureWarning,
            stacklevel=3,
        )
    return trust_pickle or is_in_environment
