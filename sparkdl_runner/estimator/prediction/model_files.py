"""A ``TorchModel`` in Spark ML's format: its metadata as Spark's own, and its network beside it."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from sparkdl_runner.estimator.trust import how_to_trust, is_trusted
from sparkdl_runner.network import saved

if TYPE_CHECKING:
    import torch

    from sparkdl_runner.estimator.model import TorchModel

_FOLDER = "network"


class TorchModelWriter(MLWriter):
    """Writes a model: ``metadata`` as Spark's writer does, and a folder ``network``."""

    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:  # noqa: N802 - the name is Spark's
        """Writes the model to any store that Spark writes to."""
        import sparkdl_runner

        model = self._model
        with tempfile.TemporaryDirectory(prefix="sparkdl_runner-model-") as temporary:
            folder = Path(temporary)
            form, reason = saved.save(
                folder,
                model.get_model(),
                graph=model._graph,
                description=model.description,
                factory=model._factory,
                about={
                    "sparkdl_runner": sparkdl_runner.__version__,
                    "reading": model._reading,
                    "history": model.history,
                    "run_id": model.run_id,
                },
            )
            if form == "pickle":
                warnings.warn(
                    f"The network of {model.uid} cannot be exported ({reason}) and was saved as a "
                    "pickle, which maybe no other version of Python or torch opens again. Give the "
                    "model as an importable function that makes it, and it is saved by that name.",
                    stacklevel=4,
                )
            DefaultParamsWriter.saveMetadata(model, path, self.sc)
            for file in sorted(folder.iterdir()):
                _copy(self.sc, str(file), f"{path}/{_FOLDER}/{file.name}", out=True)


class TorchModelReader(MLReader["TorchModel"]):
    """Reads what ``TorchModelWriter`` has written."""

    def __init__(self, cls: type[TorchModel]) -> None:
        super().__init__()
        self._class = cls
        self._trust = False

    def trusting(self, trust: bool) -> TorchModelReader:
        """Whether the network may run code when it is opened."""
        self._trust = trust
        return self

    def load(self, path: str, into: torch.nn.Module | None = None) -> TorchModel:
        """Opens a model.

        Args:
            path: Where it is.
            into: A network that gets the saved weights; then no trust is needed.

        Raises:
            UntrustedModelError: It is not trusted.
            ValueError: Its weights are not those of ``into``.
            RuntimeError: This version of torch cannot open it.
        """
        metadata = DefaultParamsReader.loadMetadata(path, self.sc)
        with tempfile.TemporaryDirectory(prefix="sparkdl_runner-model-") as temporary:
            folder = Path(temporary)
            for name in _listed(self.sc, f"{path}/{_FOLDER}"):
                _copy(self.sc, f"{path}/{_FOLDER}/{name}", str(folder / name), out=False)
            network = saved.load(
                folder,
                trust=is_trusted(self._trust),
                how_to_trust=how_to_trust("TorchModel"),
                into=into,
            )
        model = self._class._opened(network)
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        _tell_of_versions(network.about)
        return model


def _tell_of_versions(about: Any) -> None:
    import torch

    import sparkdl_runner

    now = {"torch": torch.__version__, "sparkdl_runner": sparkdl_runner.__version__}
    there = {name: about.get(name) for name in now}
    others = [f"{name} {there[name]}" for name, version in now.items() if there[name] != version]
    if others:
        warnings.warn(
            f"The model was saved with {' and '.join(others)}, and is opened with "
            + " and ".join(f"{name} {version}" for name, version in now.items())
            + ". If its predictions differ, use the versions that it was saved with.",
            stacklevel=4,
        )


def _filesystem(context: Any, path: str) -> tuple[Any, Any]:
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(context._jsc.hadoopConfiguration()), place


def _listed(context: Any, folder: str) -> list[str]:
    filesystem, place = _filesystem(context, folder)
    return [str(one.getPath().getName()) for one in filesystem.listStatus(place)]


def _copy(context: Any, source: str, target: str, *, out: bool) -> None:
    """Copies a file from this host to a store of Spark's, or back."""
    path = context._jvm.org.apache.hadoop.fs.Path
    filesystem, _ = _filesystem(context, target if out else source)
    if out:
        filesystem.copyFromLocalFile(False, True, path(f"file://{source}"), path(target))
    else:
        # With the raw local filesystem, which leaves no checksum file beside it.
        filesystem.copyToLocalFile(False, path(source), path(f"file://{target}"), True)
