"""Which tests are run, and how their own launcher starts them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from foreign.launches import Launch, as_ranks, by_command
from foreign.ranks import STAND_INS

HERE = Path(__file__).parent
NUM_PROC = 2

PETASTORM_DIFFERENCES = {
    f"test_spark_dataset_converter.py::test_{name}": reason
    for name, reason in {
        "df_delete_caching_meta": "it looks into petastorm's own list of conversions.",
        "torch_primitive": "booleans come as torch.bool, not as torch.uint8.",
        "torch_data_loader_fn": "the loader it makes is inside of ours, which counts the steps.",
        "torch_dataloader_advanced_params": "it looks at how petastorm's reader is called.",
    }.items()
}


# test_encryption_fails passes for a wrong reason: the AttributeError, too, has "encryption" in it.
_OF_DISTRIBUTOR = {
    "test_encryption_passes": "_check_encryption",
    "test_execute_command": "_execute_command",
    "test_create_torchrun_command": "_create_torchrun_command",
    "test_get_num_tasks_locally": "_get_num_tasks",
    "test_get_num_tasks_distributed": "_get_num_tasks",
    "test_local_training_succeeds": "_run_local_training",
    "test_dist_training_succeeds": "_run_distributed_training",
}
DISTRIBUTOR_DIFFERENCES = {
    f"test_distributor.py::TorchDistributor{kind}UnitTests{again}::{name}": f"it calls {method}, "
    "which is private, and which this package's class does not have."
    for name, method in _OF_DISTRIBUTOR.items()
    for kind, again in (
        (("Local", ""), ("Local", "II"))
        if "local" in name
        else (("Distributed", ""),)
        if "dist" in name
        else (("Baseline", ""),)
    )
}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Files of tests, or scripts that end well or not.

    Attributes:
        name: What it is called on the command line.
        here: How it is started here.
        there: How its own launcher starts it.
        starts: The arguments of ``foreign.ranks`` from the kind on, each for a start of its own.
        num_proc: How many processes run it.
        known: The tests that do not pass here, and why that is right.
    """

    name: str
    here: Launch
    there: Launch
    starts: tuple[tuple[str, ...], ...]
    num_proc: int = NUM_PROC
    known: Mapping[str, str] = field(default_factory=dict)


def suites() -> list[Suite]:
    """All suites that can be run here."""
    return [_torch(), _accelerate(), _petastorm(), *_spark(), *_horovod()]


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise SystemExit(f"{name} is not installed: start this by make foreign.")
    return Path(found.origin).parent


def _torchrun() -> Launch:
    run = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    return by_command(*run, f"--nproc-per-node={NUM_PROC}")


def _torch() -> Suite:
    return Suite(
        name="torch",
        here=as_ranks("torch"),
        there=_torchrun(),
        starts=(("tests", str(HERE / "torch_distributed.py")),),
    )


def _accelerate() -> Suite:
    """Left out is what downloads models and tables (``external_deps``), or starts processes."""
    scripts = _package("accelerate") / "test_utils" / "scripts"
    names = ("script", "sync", "ops", "distributed_data_loop", "merge_weights", "ddp_comm_hook")
    return Suite(
        name="accelerate",
        here=as_ranks("torch"),
        there=_torchrun(),
        starts=tuple(("script", str(scripts / f"test_{name}.py")) for name in names),
    )


def _petastorm() -> Suite:
    """One process, with petastorm's ``make_spark_converter`` and with this package's."""
    file = _package("petastorm") / "tests" / "test_spark_dataset_converter.py"
    python = {"PYSPARK_PYTHON": sys.executable}
    return Suite(
        name="petastorm",
        here=by_command(sys.executable, **python, FOREIGN_CONVERTER="sparkdl_runner"),
        there=by_command(sys.executable, **python),
        starts=(("tests", str(file), "-p", "foreign.petastorm_names"),),
        num_proc=1,
        known=PETASTORM_DIFFERENCES,
    )


def _spark() -> list[Suite]:
    """Spark's tests are in no wheel: SPARK_SOURCE names an unpacked source of it.

    Of those of tuning, OneVsRest is left out, which takes Spark's own classifiers, and what looks
    at their Params.
    """
    source = os.environ.get("SPARK_SOURCE")
    if not source:
        return []
    tests = Path(source, "python/pyspark/ml/tests").absolute()
    # Spark has them in a folder since 3.5.
    files = sorted(tests.glob("tuning/test_*_basic.py")) + sorted(tests.rglob("test_tuning.py"))
    python = {"PYSPARK_PYTHON": sys.executable}
    chosen = "not nested and not pipeline and not coercion"
    return [
        Suite(
            name="spark-tuning",
            here=by_command(sys.executable, **python, FOREIGN_ESTIMATOR="sparkdl_runner"),
            there=by_command(sys.executable, **python),
            starts=tuple(
                ("tests", str(file), "-p", "foreign.spark_names", "-k", chosen) for file in files
            ),
            num_proc=1,
            known={
                "test_tuning.py::CrossValidatorTests::test_expose_sub_models": "Spark's reader of "
                "models that are not Java's gives each fold the submodels of the last one."
            },
        ),
        _spark_distributor(Path(source)),
    ]


def _spark_distributor(source: Path) -> Suite:
    """Those of TorchDistributor, with this package's class in its place and with Spark's."""
    file = (source / "python/pyspark/ml/torch/tests/test_distributor.py").absolute()
    # Of local-cluster's executors, and of the modules that the training imports there.
    path = os.pathsep.join([STAND_INS, str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    spark = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": path,
        "SPARK_HOME": str(_package("pyspark")),
    }
    return Suite(
        name="spark-distributor",
        here=by_command(sys.executable, **spark, FOREIGN_DISTRIBUTOR="sparkdl_runner"),
        there=by_command(sys.executable, **spark),
        starts=(("tests", str(file), "-p", "foreign.spark_distributor_names"),),
        num_proc=1,
        known=DISTRIBUTOR_DIFFERENCES,
    )


def _horovod() -> list[Suite]:
    """Those of Horovod are in no wheel: HOROVOD_SOURCE names an unpacked source of 0.28.1.

    ``horovodrun`` does not come to the end of a file of tests that call ``hvd.shutdown()`` and
    ``hvd.init()``: when one scope is done its server forgets which ranks have finished with the
    others (``finished_list.clear()`` in ``http_server.py``), whose addresses therefore stay.
    """
    source = os.environ.get("HOROVOD_SOURCE")
    if not source:
        return []
    run = (sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(NUM_PROC))
    horovodrun = by_command(*run, "--gloo-timeout-seconds", "600", sys.executable)
    ours = as_ranks("horovod")
    files = {
        f"horovod-{name}": Path(source, "test", "parallel", f"test_{name}.py").absolute()
        for name in ("torch", "timeline", "common", "adasum_pytorch")
    }
    tests = [
        Suite(name=name, here=ours, there=horovodrun, starts=(("tests", str(file)),))
        for name, file in files.items()
    ]
    few = ("--num-warmup-batches", "1", "--num-batches-per-iter", "2", "--num-iters", "2")
    examples = {
        "pytorch/pytorch_mnist.py": ("--epochs", "1"),
        "pytorch/pytorch_synthetic_benchmark.py": (*few, "--batch-size", "4"),
        "elastic/pytorch/pytorch_mnist_elastic.py": ("--epochs", "1"),
        "elastic/pytorch/pytorch_synthetic_benchmark_elastic.py": (*few, "--batch-size", "4"),
    }
    starts = tuple(
        ("script", str(Path(source, "examples", file).absolute()), *arguments)
        for file, arguments in examples.items()
    )
    run_examples = Suite(name="horovod-examples", here=ours, there=horovodrun, starts=starts)
    return [*tests, run_examples, _horovod_spark(Path(source)), _horovod_spark_run(Path(source))]


def _horovod_spark_run(source: Path) -> Suite:
    """Tests of ``horovod.spark.run`` and ``run_elastic``, with this package's and with Horovod's.

    Left out is what needs MPI, and what looks at how Horovod starts its ranks.
    """
    file = (source / "test" / "integration" / "test_spark.py").absolute()
    path = os.pathsep.join([str(file.parent), STAND_INS, os.environ.get("PYTHONPATH", "")])
    python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
    chosen = "happy_run_with_gloo or happy_run_elastic or timeout_with_gloo"
    return Suite(
        name="horovod-spark-run",
        here=by_command(sys.executable, **python, FOREIGN_RUN="sparkdl_runner"),
        there=by_command(sys.executable, **python),
        starts=(("tests", str(file), "-p", "foreign.horovod_names", "-k", chosen),),
        num_proc=1,
        known={
            "test_spark.py::SparkTests::test_timeout_with_gloo": "the error names the slots that "
            "are needed and there, in other words than Horovod's.",
        },
    )


def _horovod_spark(source: Path) -> Suite:
    """Horovod's TorchEstimator, with this package's backend and with ``horovod.spark.run``.

    Left out is ``horovod.spark.run_elastic``, which knows no backend; see ``_horovod_spark_run``.
    """
    file = (source / "test" / "integration" / "test_spark_torch.py").absolute()
    # Spark's Python processes unpickle classes of the file, and import what that imports.
    path = os.pathsep.join([str(file.parent), STAND_INS, os.environ.get("PYTHONPATH", "")])
    python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
    return Suite(
        name="horovod-spark",
        here=by_command(sys.executable, **python, FOREIGN_BACKEND="sparkdl_runner"),
        there=by_command(sys.executable, **python),
        starts=(("tests", str(file), "-p", "foreign.horovod_names", "-k", "not run_elastic"),),
        num_proc=1,
    )
