"""What a training on a table needs before slots are taken, for the estimator and for jobs.

In this order: the options fit together (``check_settings``), the table has their columns
(``selection``), it is converted (``converted``), and a few of its rows are sent through the model
(``trial``). Each refuses in a sentence what the ranks could not train.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkdl_runner.data.convert.plan import quoted
from sparkdl_runner.training.description.options import TrainingPlan, columns_of
from sparkdl_runner.training.fitting.checks import check_rows
from sparkdl_runner.training.fitting.checks import check_settings as check_settings
from sparkdl_runner.training.fitting.columns import check_types, is_list, require_columns
from sparkdl_runner.training.fitting.conversions import FitData, Selection, convert
from sparkdl_runner.training.fitting.first_batch import check_first_batch, network_of
from sparkdl_runner.training.fitting.tasks import tasks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from torch import nn

    from sparkdl_runner.data import SparkDatasetConverter
    from sparkdl_runner.tensors.outputs import Task


def selection(df: DataFrame, plan: TrainingPlan) -> Selection:
    """The rows and columns of a DataFrame that a training reads.

    Raises:
        ValueError: A column is not there.
        TypeError: One cannot become a tensor of numbers.
    """
    columns, weight, validation = columns_of(plan), plan.sample_weight_col, plan.validation
    require_columns(
        df,
        {
            "label_cols": plan.label_cols,
            "sample_weight_col": [weight] if weight else [],
            "validation": [validation] if isinstance(validation, str) else [],
            "feature_cols": columns,
        },
    )
    lists = [name for name in plan.label_cols if is_list(df.schema[name].dataType)]
    tasks = tasks_of(plan.label_cols, plan.loss, plan.task, lists)
    read = df.select(*(F.col(quoted(name)) for name in columns))
    check_types(read, tasks, weight, plan.reading.get("images", {}))
    return Selection(
        columns=tuple(columns),
        classes=tuple(name for name, task in tasks.items() if task == "multiclass"),
        validation=validation,
        seed=plan.seed if isinstance(validation, float) else 0,
    )


def converted(df: DataFrame, plan: TrainingPlan) -> FitData:
    """The data sets of a training, converted by one Spark job.

    Raises:
        ValueError: There are no rows, or none to validate with, or a label is no class.
        Exception: What ``selection`` and ``make_spark_converter`` raise.
    """
    return convert(df, selection(df, plan))


def trial(
    plan: TrainingPlan,
    train_data: SparkDatasetConverter,
    validation_data: SparkDatasetConverter | None,
    num_proc: int,
) -> tuple[dict[str, Task], nn.Module]:
    """Checks the rows, and sends a few of them through the model.

    Returns:
        The task of each label, and a new network for this training.

    Raises:
        ValueError: Rows, labels, the model and its loss do not fit together.
        TypeError: A function makes something else than it should.
        DatasetError: A column cannot become a tensor.
    """
    data = FitData(train=train_data, validation=validation_data)
    check_rows(data, plan, num_proc)
    manifest = train_data.open()[0]
    lists = [label for label in plan.label_cols if manifest.column(label).list_lengths]
    tasks = tasks_of(plan.label_cols, plan.loss, plan.task, lists)
    network = network_of(plan.model)
    check_first_batch(plan, network, data, tasks)
    return tasks, network
