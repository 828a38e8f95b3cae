"""``TorchModel``: adds a fitted network's predictions to a DataFrame."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.ml import Model
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
)

from sparkdl_runner.base.sent_file import key_of
from sparkdl_runner.base.version import __version__
from sparkdl_runner.data.dataset.place import application_id
from sparkdl_runner.estimator.prediction.frame import (
    as_network_takes,
    require_frame,
    with_float_type,
)
from sparkdl_runner.estimator.prediction.prediction_udf import prediction_udf
from sparkdl_runner.estimator.prediction.sent_network import sent_network
from sparkdl_runner.estimator.spark_folder import OverwritingWriter, folder_of, metadata_place
from sparkdl_runner.estimator.trust import how_to_trust, is_trusted
from sparkdl_runner.tensors import saved
from sparkdl_runner.tensors.columns import Column
from sparkdl_runner.tensors.inputs import FeatureCols, Inputs
from sparkdl_runner.tensors.outputs import PREDICTION, Output, Task
from sparkdl_runner.tensors.predictor import Description
from sparkdl_runner.tensors.saved import Network
from sparkdl_runner.tensors.spark_worker import PackedNetwork, Prediction, field
from sparkdl_runner.training.fitting.network_columns import network_columns

if TYPE_CHECKING:
    import torch
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession


def _param(name: str, doc: str, convert: Any) -> Param[Any]:
    return Param(Params._dummy(), name, doc, convert)


class TorchModel(Model, MLReadable["TorchModel"], MLWritable):
    """A fitted network, whose predictions ``transform`` adds to a DataFrame.

    One output has the columns ``prediction`` and, for classes, ``probability`` and
    ``rawPrediction``, as Spark's own models have them. The columns of several outputs end in
    ``_<label>``.

    Args:
        network: A ``torch.nn.Module``. It stays as it is: a copy is put on the CPU and into
            evaluation mode.
        inputs: Which columns it takes, as ``Inputs`` or as ``TorchEstimator``'s ``feature_cols``.
        outputs: What the output for each label column means: a task or an ``Output``.
        columns: What the columns hold, as ``network_columns`` finds it; by default what they hold
            in the DataFrame that is transformed.
        reading: ``nulls``, ``fill_value``, ``pad`` and ``images`` of the training, for that.
        factory: An importable function or class that makes the network without its weights. It is
            saved by this name where it cannot be exported.
        history: The losses and metrics of each epoch.
        run_id: Of the training's MLflow run.
    """

    # The module in which a saved model finds its class, even if this file moves.
    __module__ = "sparkdl_runner.estimator"

    predictionCol = _param(  # noqa: N815
        "predictionCol", "the column of predictions; '' for none", TypeConverters.toString
    )
    probabilityCol = _param(  # noqa: N815
        "probabilityCol", "the column of probabilities; '' for none", TypeConverters.toString
    )
    rawPredictionCol = _param(  # noqa: N815
        "rawPredictionCol",
        "the column of the model's own scores; '' for none",
        TypeConverters.toString,
    )
    batch_size = _param(
        "batch_size", "rows that the network is given at once", TypeConverters.toInt
    )

    def __init__(
        self,
        network: torch.nn.Module,
        inputs: Inputs | FeatureCols,
        outputs: Mapping[str, Task | Output],
        *,
        columns: Sequence[Column] | None = None,
        reading: Mapping[str, Any] | None = None,
        factory: Callable[[], torch.nn.Module] | None = None,
        history: Sequence[Mapping[str, float]] = (),
        run_id: str | None = None,
    ) -> None:
        super().__init__()
        self._setDefault(
            predictionCol="prediction",
            probabilityCol="probability",
            rawPredictionCol="rawPrediction",
            batch_size=1024,
        )
        self._inputs = inputs if isinstance(inputs, Inputs) else Inputs.of(inputs, network)
        self._outputs = {
            label: output if isinstance(output, Output) else Output(output)
            for label, output in outputs.items()
        }
        self._network = copy.deepcopy(network).to("cpu").eval()
        self._graph: bytes | None = None
        self._factory = factory
        self._columns = None if columns is None else with_float_type(columns, network)
        self._reading = dict(reading or {})
        self._packed: dict[tuple[str, str], PackedNetwork] = {}
        self.history = [dict(metrics) for metrics in history]
        self.run_id = run_id

    def get_model(self) -> torch.nn.Module:
        """The network, on the CPU and in evaluation mode."""
        return self._network

    @property
    def description(self) -> Description:
        """The network's inputs and outputs; ``columns`` is empty if their types are not known."""
        return Description(inputs=self._inputs, columns=self._columns or (), outputs=self._outputs)

    def output_names(self) -> dict[str, dict[str, str]]:
        """The names of the columns that are added, by label and Spark's name for the column."""
        several = len(self._outputs) > 1
        return {
            label: {
                name: f"{column}_{label}" if several else column
                for name in output.columns
                if (column := self.getOrDefault(f"{name}Col"))
            }
            for label, output in self._outputs.items()
        }

    def write(self) -> TorchModelWriter:
        """Writes the model in Spark ML's format: ``model.write().overwrite().save(path)``."""
        return TorchModelWriter(self)

    @classmethod
    def read(cls) -> TorchModelReader:
        """Reads what ``write`` has written."""
        return TorchModelReader(cls)

    @classmethod
    def load(
        cls,
        path: str,
        *,
        trust: bool = False,
        model: torch.nn.Module | None = None,
        trust_pickle: bool = False,
    ) -> TorchModel:
        """Opens a saved model. A saved model is code: load only what you would run.

        Args:
            path: Where it is, as Spark takes it.
            trust: Allows to open the network, which can run any code in every form: a graph, a
                name or a pickle. ``SPARKDL_RUNNER_TRUST=1`` in the environment says the same for
                models in pipelines.
            model: A network that gets the saved weights instead. That needs no trust: only
                safetensors and JSON are read.
            trust_pickle: The earlier name of ``trust``.

        Raises:
            UntrustedModelError: It is not trusted, and no ``model`` is given.
            ValueError: The weights are not those of ``model``.
            RuntimeError: This version of torch cannot open it.
        """
        return cls.read().trusting(is_trusted(trust, trust_pickle)).load(path, model)

    @classmethod
    def _opened(cls, network: Network) -> TorchModel:
        """A model of what was saved."""
        import torch

        description, about = network.description, network.about
        model = cls(
            torch.nn.Identity(),
            description.inputs,
            description.outputs,
            columns=description.columns or None,
            reading=about["reading"],
            factory=network.factory,
            history=about["history"],
            run_id=about["run_id"],
        )
        model._network, model._graph = network.module, network.graph
        return model

    def _transform(self, dataset: DataFrame) -> DataFrame:
        require_frame(dataset, "transform")
        description = self.description
        if not description.columns:
            columns = network_columns(dataset.schema, self._inputs.columns, self._reading)
            description = replace(description, columns=with_float_type(columns, self._network))
        description, given = as_network_takes(dataset, description)
        names = self.output_names()
        taken = [
            name for made in names.values() for name in made.values() if name in dataset.columns
        ]
        if taken:
            raise ValueError(
                f"The DataFrame has a column {taken[0]!r} already, which transform would add. Drop "
                "or rename it, or set predictionCol, probabilityCol or rawPredictionCol."
            )
        packed = self._packed_for(dataset.sparkSession)
        prediction = Prediction(packed, description, self.getOrDefault("batch_size"))
        made_of = f"predictions of {self.uid}"
        frame = dataset.withColumn(made_of, prediction_udf(prediction, description)(*given))
        is_struct = sum(len(output.columns) for output in description.outputs.values()) > 1
        added = [
            _typed(
                f"`{made_of}`.{field(number, name)}" if is_struct else f"`{made_of}`",
                is_vector=description.outputs[label].columns[name] and name != PREDICTION,
            ).alias(column)
            for number, (label, made) in enumerate(names.items())
            for name, column in made.items()
        ]
        return frame.select("*", *added).drop(made_of)

    def _packed_for(self, session: SparkSession) -> PackedNetwork:
        """The network for the workers of a Spark session, as it was sent to them already."""
        import cloudpickle

        content = self._graph or cloudpickle.dumps(self._network)
        place = application_id(session), key_of(content)
        if place not in self._packed:
            packed = sent_network(session, content, is_graph=self._graph is not None)
            self._packed.clear()
            self._packed[place] = packed
        return self._packed[place]


def _typed(place: str, *, is_vector: bool) -> SparkColumn:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as f

    return array_to_vector(f.col(place)) if is_vector else f.col(place)


_FOLDER = "network"


class TorchModelWriter(OverwritingWriter):
    """Writes a model: ``metadata`` as Spark's writer does, and a folder ``network``."""

    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:  # noqa: N802 - the name is Spark's
        """Writes the model to any store that Spark writes to."""
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
                    "sparkdl_runner": __version__,
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
            DefaultParamsWriter.saveMetadata(model, path, metadata_place(self))
            folder_of(self).put(folder, f"{path}/{_FOLDER}")


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
        metadata = DefaultParamsReader.loadMetadata(path, metadata_place(self))
        with tempfile.TemporaryDirectory(prefix="sparkdl_runner-model-") as temporary:
            folder = Path(temporary)
            folder_of(self).get(f"{path}/{_FOLDER}", folder)
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

    now = {"torch": torch.__version__, "sparkdl_runner": __version__}
    there = {name: about.get(name) for name in now}
    others = [f"{name} {there[name]}" for name, version in now.items() if there[name] != version]
    if others:
        warnings.warn(
            f"The model was saved with {' and '.join(others)}, and is opened with "
            + " and ".join(f"{name} {version}" for name, version in now.items())
            + ". If its predictions differ, use the versions that it was saved with.",
            stacklevel=4,
        )
