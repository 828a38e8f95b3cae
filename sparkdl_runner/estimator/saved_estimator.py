"""``TorchEstimator`` in Spark ML's format: a folder with its Params as JSON."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter
from pyspark.sql.utils import is_remote

from sparkdl_runner.base.version import __version__
from sparkdl_runner.estimator.saved_values import decode, encode
from sparkdl_runner.estimator.trust import is_trusted

if TYPE_CHECKING:
    from sparkdl_runner.estimator.estimator import TorchEstimator

_FORMAT = 1


class EstimatorWriter(MLWriter):
    """Writes an estimator."""

    def __init__(self, instance: TorchEstimator) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:  # noqa: N802
        """Writes it into a new folder."""
        params = {
            param.name: encode(param.name, value)
            for param, value in self._instance._paramMap.items()
        }
        about = {"sparkdl_runner": {"format": _FORMAT, **_versions()}}
        DefaultParamsWriter.saveMetadata(self._instance, path, _place(self), about, params)


class EstimatorReader(MLReader["TorchEstimator"]):
    """Reads an estimator.

    Args:
        kind: Its class.
        trust: Whether Params that are no plain data may be opened, which can run any code.
    """

    def __init__(self, kind: type[TorchEstimator], *, trust: bool = False) -> None:
        super().__init__()
        self._kind = kind
        self._trust = trust

    def load(self, path: str) -> TorchEstimator:
        """Reads it from a folder.

        Raises:
            UntrustedModelError: It holds more than plain data, and is not trusted.
            ValueError: It is no estimator of this package, of a later format, or refers to what
                cannot be imported.
        """
        metadata = DefaultParamsReader.loadMetadata(path, _place(self))
        about = metadata.get("sparkdl_runner")
        if not isinstance(about, dict) or "format" not in about:
            raise ValueError(
                f"{path} holds a {metadata.get('class', 'thing of no known class')}, and no "
                f"{self._kind.__name__}: load it by its own class."
            )
        _check_versions(about)
        estimator = self._kind()
        estimator._resetUid(metadata["uid"])
        trusted = is_trusted(self._trust)
        for name, value in metadata["paramMap"].items():
            estimator._set(**{name: decode(name, value, trust=trusted)})
        return estimator


def _check_versions(about: dict[str, Any]) -> None:
    if about["format"] > _FORMAT:
        raise ValueError(
            f"The estimator was saved in format {about['format']} by sparkdl_runner "
            f"{about.get('version')}, and this version {__version__} opens format {_FORMAT}: open "
            "it with that version or a later one."
        )
    for name, here in _versions().items():
        if about.get(name) != here:
            package = "sparkdl_runner" if name == "version" else name
            warnings.warn(
                f"The estimator was saved with {package} {about.get(name)}, and this is {here}: "
                "its Params are the same, and what they make may differ.",
                stacklevel=4,
            )


def _versions() -> dict[str, str]:
    import torch

    return {"version": __version__, "torch": str(torch.__version__)}


def _place(side: Any) -> Any:
    """The session or context that Spark's functions need: Spark Connect has no SparkContext."""
    return side.sparkSession if is_remote() else side.sc
