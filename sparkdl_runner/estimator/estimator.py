"""``TorchEstimator``: fits a torch model to a DataFrame."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import keyword_only
from pyspark.ml import Estimator
from pyspark.ml.base import _FitMultipleIterator
from pyspark.ml.param import Param
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
)

from sparkdl_runner.base.renamed import renamed, sentence, warn, with_todays_names
from sparkdl_runner.base.version import __version__
from sparkdl_runner.estimator.horovod_names import refuse_other_names, refuses_other_names
from sparkdl_runner.estimator.model import TorchModel
from sparkdl_runner.estimator.params import TorchEstimatorParams
from sparkdl_runner.estimator.prediction.frame import in_session_of, require_frame
from sparkdl_runner.estimator.prediction.logged_model import log_fitted
from sparkdl_runner.estimator.saved_values import decode, encode
from sparkdl_runner.estimator.search_names import SearchNames
from sparkdl_runner.estimator.spark_folder import OverwritingWriter, metadata_place
from sparkdl_runner.estimator.trust import is_trusted
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.runner import DistributedRunner
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tracking.run.opening.run_name import RunName
from sparkdl_runner.training.description.described import maker_of, parameters
from sparkdl_runner.training.description.options import (
    OPTIONS,
    REQUIRED,
    TrainingPlan,
    checked,
    documented,
)
from sparkdl_runner.training.description.plan import train_with_parameters
from sparkdl_runner.training.fitting.conversions import Conversions, columns_as_trained
from sparkdl_runner.training.fitting.fit_identity import checkpoint_folder
from sparkdl_runner.training.fitting.preparation import check_settings, selection, trial

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The rank's own batch is logged by the runner, as batch_size_per_rank.
_LOGGED = sorted(OPTIONS.keys() - {"batch_size"})
_EARLIER = {"batch_size_per_rank": "batch_size", "config": "run_config"}


@documented
class TorchEstimator(
    Estimator[TorchModel], TorchEstimatorParams, MLWritable, MLReadable["TorchEstimator"]
):
    """Fits a ``torch.nn.Module`` to a DataFrame, on all ranks of a run.

    Every argument is a Param of Spark ML, with ``set…`` and ``get…`` methods as Spark's own
    estimators have (``setBatchSize``), so that grids can go over it; ``explainParams()``
    prints what each means. None leaves a Param at its default.

    Args:
        num_proc: How many ranks: positive for so many barrier tasks of Spark, negative for
            processes on this host, 0 for all slots; by default 1.
        backend: "torch", the default, or "horovod".
        run_config: A ``RunConfig``: how ranks are started and watched.
        predictionCol: The column of predictions.
        probabilityCol: The column of a class's probabilities.
        rawPredictionCol: The column of the model's own scores.
    """

    # Of a copy that a search makes for one fit.
    _search_names: SearchNames | None = None
    _run_name: RunName | None = None

    @renamed(**_EARLIER)
    @refuses_other_names
    @keyword_only
    def __init__(
        self,
        *,
        model: Any = None,
        optimizer: Any = None,
        loss: Any = None,
        feature_cols: Sequence[str] | Mapping[str, Any] | None = None,
        label_cols: Sequence[str] | None = None,
        num_proc: int | None = None,
        backend: str | None = None,
        metrics: Any = None,
        task: str | Mapping[str, str] | None = None,
        sample_weight_col: str | None = None,
        class_weights: Any = None,
        loss_weights: Any = None,
        validation: float | str | None = None,
        batch_size: int | None = None,
        epochs: int | None = None,
        lr_scheduler: Any = None,
        warmup_epochs: float | None = None,
        gradient_accumulation_steps: int | None = None,
        gradient_clip_norm: float | None = None,
        precision: str | None = None,
        strategy: str | None = None,
        early_stopping: Any = None,
        checkpoint_dir: str | None = None,
        seed: int | None = None,
        transformation_fn: Any = None,
        train_step: Any = None,
        training_fn: Any = None,
        callbacks: Sequence[Any] | None = None,
        nulls: Any = None,
        fill_value: float | None = None,
        pad: Any = None,
        images: Any = None,
        run_config: Any = None,
        predictionCol: str | None = None,  # noqa: N803
        probabilityCol: str | None = None,  # noqa: N803
        rawPredictionCol: str | None = None,  # noqa: N803
    ) -> None:
        super().__init__()
        self._setDefault(**self.DEFAULTS)
        self.setParams(**self._input_kwargs)

    def setParams(self, **params: Any) -> TorchEstimator:  # noqa: N802
        """Sets Params by name."""
        params = with_todays_names(params, _EARLIER, lambda message: warn(message, stacklevel=4))
        known = [param.name for param in self.params]
        refuse_other_names(type(self).__name__, params, known)
        return self._set(**params)

    def write(self) -> EstimatorWriter:
        """The writer of the estimator; ``save(path)`` writes at once.

        Functions and classes are saved by name. What has none that can be imported is pickled,
        with a warning.
        """
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> EstimatorReader:
        """The reader of estimators; opens code only if SPARKDL_RUNNER_TRUST is 1."""
        return EstimatorReader(cls)

    @classmethod
    def load(cls, path: str, *, trust: bool = False, trust_pickle: bool = False) -> TorchEstimator:
        """Loads what ``save`` wrote. A saved estimator is code: load only what you would run.

        Args:
            path: Its folder.
            trust: Allows functions, classes, objects and pickles, any of which can run any code
                here or in ``fit``. Without it only Params that are numbers and texts, or lists and
                mappings of them, are loaded. ``SPARKDL_RUNNER_TRUST=1`` in the environment says
                the same for estimators in pipelines.
            trust_pickle: The earlier name of ``trust``.

        Raises:
            ValueError: See ``EstimatorReader.load``.
        """
        return EstimatorReader(cls, trust=is_trusted(trust, trust_pickle)).load(path)

    def fitMultiple(  # noqa: N802
        self,
        dataset: DataFrame,
        paramMaps: Sequence[Mapping[Param[Any], Any]],  # noqa: N803
    ) -> Iterator[tuple[int, TorchModel]]:
        """Fits once for each map of Params, in threads if the caller's ask at once.

        Those that read the same columns share one conversion. Their MLflow runs are named by the
        values that differ, such as ``lr=0.1 epochs=2``, and by the fold of a CrossValidator. The
        fitted models are not logged to the fits' MLflow runs, since most of them are tried only:
        ``log_torch_model`` logs one.
        """
        estimators = [self.copy(param_map) for param_map in paramMaps]
        conversions = Conversions(dataset, len(estimators))

        def fit(index: int) -> TorchModel:
            return estimators[index]._fit_on(dataset, conversions)

        return _FitMultipleIterator(fit, len(estimators))

    def copy(self, extra: Mapping[Param[Any], Any] | None = None) -> TorchEstimator:
        """Copies it, with other values of Params.

        Args:
            extra: Values by Param. Those of other stages are left alone.
        """
        made = super().copy(None if extra is None else dict(extra))
        names = SearchNames.of_caller(self.uid) or self._search_names
        made._search_names = names
        made._run_name = None if names is None else names.name_of(extra)
        return made

    def _fit(self, dataset: DataFrame) -> TorchModel:
        model = self._fit_on(dataset, Conversions(dataset))
        if model.run_id is not None and self._run_name is None:
            log_fitted(model, self._value("run_config") or RunConfig())
        return model

    def _fit_on(self, dataset: DataFrame, conversions: Conversions) -> TorchModel:
        with conversions, in_session_of(dataset):
            require_frame(dataset, "fit")
            plan = self._plan()
            check_settings(
                plan,
                backend=self.getOrDefault("backend"),
                has_validation=plan.validation is not None,
            )
            selected = selection(dataset, plan)
            runner = self._runner()
            name = self._run_name or RunName(text="")
            called = maker_of(plan.model).__name__.strip("<>")
            runner.run_name = name if name.text else replace(name, text=called)
            num_proc = runner.num_proc
            data = conversions.get(selected)
            tasks, network = trial(plan, data.train, data.validation, num_proc)
            inputs = Inputs.of(plan.feature_cols, network)
            columns = columns_as_trained(dataset.schema, inputs.columns, plan.reading, data.train)
            if plan.checkpoint_dir is not None:
                plan = replace(plan, checkpoint_dir=checkpoint_folder(plan, data, num_proc))
            trained: Any = runner.run(
                train_with_parameters,
                plan=plan,
                train_data=data.train,
                validation_data=data.validation,
                parameters=[*parameters({name: self._value(name) for name in _LOGGED}).items()],
            )
        from safetensors.torch import load
        from torch.nn import Module

        network.load_state_dict(load(trained.weights))
        model = TorchModel(
            network,
            inputs,
            tasks,
            columns=columns,
            reading=plan.reading,
            factory=None if isinstance(plan.model, Module) else plan.model,
            history=trained.history,
            run_id=runner.mlflow_run_id,
        )
        # The types of the training, even if the network computes in another type.
        model._columns = columns
        return self._copyValues(model)

    def _runner(self) -> DistributedRunner:
        """The runner of the ranks; refuses a session that cannot start them before converting."""
        runner = DistributedRunner(
            num_proc=self.getOrDefault("num_proc"),
            backend=self.getOrDefault("backend"),
            run_config=self._value("run_config"),
        )
        if runner.num_proc >= 0:
            runner._launcher(StopRequest())
        return runner

    def _plan(self) -> TrainingPlan:
        missing = [name for name in REQUIRED if not self.isDefined(name)]
        if missing:
            raise ValueError(f"{' and '.join(missing)} not set: a fit needs {', '.join(REQUIRED)}.")
        return checked({name: self._value(name) for name in OPTIONS})


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _add_accessors(name: str) -> None:
    """Gives ``batch_size`` a ``setBatchSize`` and a ``getBatchSize``."""
    camel = _camel(name)

    def setter(self: TorchEstimator, value: Any) -> TorchEstimator:
        return self._set(**{name: value})

    def getter(self: TorchEstimator) -> Any:
        return self.getOrDefault(name)

    for prefix, method, doc in (("set", setter, "Sets"), ("get", getter, "Returns")):
        method.__name__, method.__doc__ = prefix + camel, f"{doc} the Param ``{name}``."
        method.__qualname__ = f"{TorchEstimator.__name__}.{method.__name__}"
        setattr(TorchEstimator, method.__name__, method)


def _add_earlier(name: str, today: str) -> None:
    """Gives a Param its attribute and accessors of an earlier name, which warn."""

    def earlier_of(of_today: str) -> Any:
        def get(self: TorchEstimator) -> Any:
            warn(sentence(name, today), stacklevel=3)
            return getattr(self, of_today)

        return property(get)

    setattr(TorchEstimator, name, earlier_of(today))
    for prefix in ("set", "get"):
        setattr(TorchEstimator, prefix + _camel(name), earlier_of(prefix + _camel(today)))


for _name, _param in vars(TorchEstimatorParams).items():
    if isinstance(_param, Param):
        _add_accessors(_name)
for _name, _today in _EARLIER.items():
    _add_earlier(_name, _today)


_FORMAT = 1


class EstimatorWriter(OverwritingWriter):
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
        DefaultParamsWriter.saveMetadata(self._instance, path, metadata_place(self), about, params)


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
        metadata = DefaultParamsReader.loadMetadata(path, metadata_place(self))
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
            today = _EARLIER.get(name, name)
            estimator._set(**{today: decode(today, value, trust=trusted)})
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
