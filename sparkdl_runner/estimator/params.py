"""The Params of ``TorchEstimator``: the options of a training, and those of a fit."""

from __future__ import annotations

from dataclasses import MISSING
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.ml.param import Param, Params

from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.training.description import kinds
from sparkdl_runner.training.description.described import described
from sparkdl_runner.training.description.options import OPTIONS, checked_option, text_of


def _param(name: str, doc: str, kind: kinds.Kind) -> Param[Any]:
    return Param(Params._dummy(), name, doc, partial(kind, name))


class TorchEstimatorParams(Params):
    """The Params of a training, in Spark ML's form: ``OPTIONS``, and these."""

    num_proc = _param(
        "num_proc",
        "how many ranks: positive for so many barrier tasks of Spark, negative for processes on "
        "this host, 0 for all slots",
        kinds.whole(None),
    )
    backend = _param("backend", "'torch' or 'horovod'", kinds.choice("torch", "horovod"))
    run_config = _param(
        "run_config", "a RunConfig: how ranks are started and watched", kinds.instance(RunConfig)
    )
    predictionCol = _param(  # noqa: N815
        "predictionCol", "the column of predictions", kinds.text
    )
    probabilityCol = _param(  # noqa: N815
        "probabilityCol", "the column of a class's probabilities", kinds.text
    )
    rawPredictionCol = _param(  # noqa: N815
        "rawPredictionCol", "the column of the model's own scores", kinds.text
    )
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A Param of an option."""

    DEFAULTS: ClassVar[dict[str, Any]] = {
        "num_proc": 1,
        "backend": "torch",
        "predictionCol": "prediction",
        "probabilityCol": "probability",
        "rawPredictionCol": "rawPrediction",
    }

    def explainParam(self, param: str | Param[Any]) -> str:  # noqa: N802
        """Its name, its meaning, its default and its value, each on one line."""
        chosen = self.getParam(param) if isinstance(param, str) else param
        said = [
            f"{word}: {described(held[chosen])}"
            for word, held in (("default", self._defaultParamMap), ("current", self._paramMap))
            if chosen in held
        ]
        return f"{chosen.name}: {chosen.doc} ({', '.join(said) or 'undefined'})"

    def _value(self, name: str) -> Any:
        """The Param's value, or None where it has none."""
        return self.getOrDefault(name) if self.isDefined(name) else None


# What transform needs of the training is narrower: it pads to the length that the training had.
_OF_TRANSFORM = {"pad": kinds.by_name(kinds.whole(1))}

for _name, _option in OPTIONS.items():
    _kind = _OF_TRANSFORM.get(_name, _option.metadata["kind"])
    setattr(TorchEstimatorParams, _name, _param(_name, text_of(_name), _kind))
    if _option.default not in (None, MISSING):
        TorchEstimatorParams.DEFAULTS[_name] = checked_option(_name, _option.default)
