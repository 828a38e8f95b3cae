"""The Params of ``TorchEstimator``: their names, their meaning and their defaults."""

from __future__ import annotations

from typing import Any, ClassVar

from pyspark.ml.param import Param, Params, TypeConverters

from sparkdl_runner.estimator import values
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.training.description.described import described
from sparkdl_runner.training.loop.early_stopping import EarlyStopping


def _param(name: str, doc: str, convert: Any = TypeConverters.identity) -> Param[Any]:
    return Param(Params._dummy(), name, doc, convert)


class TorchEstimatorParams(Params):
    """The Params of a training, in Spark ML's form."""

    num_proc = _param(
        "num_proc",
        "how many ranks: positive for so many barrier tasks of Spark, negative for processes on "
        "this host, 0 for all slots",
        values.whole("num_proc"),
    )
    backend = _param(
        "backend", "'torch' or 'horovod'", values.choice("backend", "torch", "horovod")
    )
    model = _param(
        "model", "a torch.nn.Module, or a function or class that makes one", values.model
    )
    optimizer = _param(
        "optimizer",
        "makes the optimizer of parameters: functools.partial(torch.optim.Adam, lr=1e-3)",
        values.factory("optimizer", "functools.partial(torch.optim.Adam, lr=1e-3)"),
    )
    loss = _param(
        "loss", "compares an output and a label; one for all label columns, or by name", values.loss
    )
    metrics = _param("metrics", "torchmetrics by name, or by label column and name", values.metrics)
    feature_cols = _param(
        "feature_cols",
        "the columns that the model takes; or the columns of each of its arguments",
        values.feature_cols,
    )
    label_cols = _param(
        "label_cols", "the columns of what is to be predicted", values.names("label_cols")
    )
    task = _param(
        "task",
        "what the outputs mean: regression, binary, multiclass or multilabel; for all label "
        "columns or by name; by default as the loss has it",
        values.task,
    )
    sample_weight_col = _param(
        "sample_weight_col",
        "the column that says what a row counts in the loss",
        values.text("sample_weight_col"),
    )
    class_weights = _param(
        "class_weights",
        "what a row counts in the loss, by the class that is its label; 1 where none is given",
        values.numbers_by_name("class_weights"),
    )
    loss_weights = _param(
        "loss_weights",
        "what the loss of each label column counts",
        values.numbers_by_name("loss_weights"),
    )
    validation = _param(
        "validation",
        "a share of the rows, or the column that is true for the rows to validate with",
        values.validation,
    )
    batch_size_per_rank = _param(
        "batch_size_per_rank",
        "rows in a batch of one rank",
        values.whole("batch_size_per_rank", 1),
    )
    epochs = _param("epochs", "passes over the rows", values.whole("epochs", 1))
    lr_scheduler = _param(
        "lr_scheduler",
        "makes the scheduler of an optimizer, which takes a step after each epoch: "
        "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=10)",
        values.factory(
            "lr_scheduler", "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=10)"
        ),
    )
    warmup_epochs = _param(
        "warmup_epochs",
        "epochs in which the learning rate grows to that of the optimizer times the ranks",
        values.number("warmup_epochs", 0),
    )
    gradient_accumulation_steps = _param(
        "gradient_accumulation_steps",
        "batches of a rank to a step of the optimizer",
        values.whole("gradient_accumulation_steps", 1),
    )
    gradient_clip_norm = _param(
        "gradient_clip_norm",
        "to what norm gradients are cut",
        values.number("gradient_clip_norm", 0, above=True),
    )
    precision = _param("precision", "'fp32' or 'bf16'", values.choice("precision", "fp32", "bf16"))
    strategy = _param(
        "strategy",
        "'ddp': each rank has the whole model; 'fsdp2': a part of it",
        values.choice("strategy", "ddp", "fsdp2"),
    )
    early_stopping = _param(
        "early_stopping",
        "an EarlyStopping, which ends the training and takes back the best weights",
        values.instance("early_stopping", EarlyStopping),
    )
    checkpoint_dir = _param(
        "checkpoint_dir",
        "the folder in which a fit that was cut off finds its checkpoints and goes on; each other "
        "fit has a folder of its own in there",
        values.text("checkpoint_dir"),
    )
    seed = _param(
        "seed",
        "of the model's first weights, the order of rows, and which rows a share is",
        values.whole("seed", 0),
    )
    transformation_fn = _param(
        "transformation_fn",
        "changes each batch, a dict of tensors, in training and validation, not in transform",
        values.function("transformation_fn", "transformation_fn(batch)"),
    )
    train_step = _param(
        "train_step",
        "returns the loss of a batch, in place of the Trainer's own",
        values.function("train_step", "train_step(trainer, batch)"),
    )
    training_fn = _param(
        "training_fn",
        "trains, in place of the Trainer's own loop",
        values.function("training_fn", "training_fn(trainer, train_data, validation_data)"),
    )
    callbacks = _param(
        "callbacks", "objects with on_step(trainer) or on_epoch(trainer)", values.callbacks
    )
    nulls = _param("nulls", "'error', 'fill', 'nan' or 'mask', for all columns or by column")
    fill_value = _param("fill_value", "what nulls become")
    pad = _param(
        "pad",
        "to what length lists are cut or filled up, for all columns or by column",
        values.lengths("pad"),
    )
    images = _param(
        "images",
        "(height, width), (height, width, mode) or a dict with exif, to which encoded images are "
        "brought, by column",
    )
    config = _param(
        "config",
        "a RunConfig: how ranks are started and watched",
        values.instance("config", RunConfig),
    )
    predictionCol = _param(  # noqa: N815
        "predictionCol", "the column of predictions", values.text("predictionCol")
    )
    probabilityCol = _param(  # noqa: N815
        "probabilityCol", "the column of a class's probabilities", values.text("probabilityCol")
    )
    rawPredictionCol = _param(  # noqa: N815
        "rawPredictionCol", "the column of the model's own scores", values.text("rawPredictionCol")
    )

    REQUIRED: ClassVar[tuple[str, ...]] = ("model", "optimizer", "loss")
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "num_proc": 1,
        "backend": "torch",
        "batch_size_per_rank": 32,
        "epochs": 1,
        "feature_cols": ["features"],
        "label_cols": ["label"],
        "warmup_epochs": 0.0,
        "gradient_accumulation_steps": 1,
        "precision": "fp32",
        "strategy": "ddp",
        "seed": 0,
        "callbacks": [],
        "nulls": "error",
        "predictionCol": "prediction",
        "probabilityCol": "probability",
        "rawPredictionCol": "rawPrediction",
    }

    def explainParam(self, param: str | Param[Any]) -> str:  # noqa: N802
        """Its name, its meaning, its default and its value, each on one line."""
        found = self.getParam(param) if isinstance(param, str) else param
        said = [
            f"{word}: {described(held[found])}"
            for word, held in (("default", self._defaultParamMap), ("current", self._paramMap))
            if found in held
        ]
        return f"{found.name}: {found.doc} ({', '.join(said) or 'undefined'})"

    def _value(self, name: str) -> Any:
        """The Param's value, or None where it has none."""
        return self.getOrDefault(name) if self.isDefined(name) else None
