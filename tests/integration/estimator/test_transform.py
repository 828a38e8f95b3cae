"""``TorchModel.transform``, persistence and MLflow, on real Spark."""

from __future__ import annotations

import io
import json
import os
import time
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sparkdl_runner.tensors.columns import Column
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tensors.outputs import Output
from sparkdl_runner.tensors.saved import ABOUT_FILE

pytestmark = pytest.mark.integration


def linear(inputs: int, outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


def words_network() -> nn.Module:
    """A class that Python workers cannot import, and so travels by value."""

    class Words(nn.Module):
        """Takes padded numbers of words with their mask, and numbers; returns two outputs."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.kind, self.price = nn.Embedding(9, 3), nn.Linear(5, 4), nn.Linear(5, 1)

        def forward(self, words, others, words_mask):
            mean = (self.words(words) * words_mask[..., None]).sum(1)
            both = torch.cat([mean, others], 1)
            return {"kind": self.kind(both), "price": self.price(both)}

    torch.manual_seed(0)
    return Words().eval()


@pytest.fixture(scope="module")
def frame(sessions):
    """Rows 0 to 99 of every kind of column; one partition is empty."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F
    from spark_sessions import session_on

    spark = session_on(sessions, "local[2]")
    numbers = [(F.col("id") * i % 7 / 7).alias(f"c{i}") for i in range(1, 4)]
    made = spark.range(0, 100, 1, 4).select("id", *numbers)
    return (
        made.where("id < 50 or id >= 75")
        .select(
            "*",
            F.array("c1", "c2", "c3").alias("numbers"),
            array_to_vector(F.array("c1", "c2", "c3")).alias("vector"),
            F.expr("transform(sequence(0L, id % 6), i -> (id + i) % 9)").alias("words"),
            F.expr("array(array(c1, c2), array(c2, c3))").alias("nested"),
            F.when(F.col("id") != 3, F.col("c1")).alias("holes"),
            F.expr("array(c1, if(id = 3, null, c2), c3)").alias("holed"),
            (F.col("id") % 2 == 0).alias("even"),
            F.col("id").alias("dotted.name"),
        )
        .cache()
    )


def rows_of(frame, *columns: str):
    """The rows in the order of ``id``, by column as arrays."""
    found = sorted(frame.select("id", *columns).collect(), key=lambda row: row.id)
    return {name: [row[name] for row in found] for name in ("id", *columns)}


def matrix(frame) -> torch.Tensor:
    return torch.tensor(rows_of(frame, "numbers")["numbers"], dtype=torch.float32)


def model_of(network, names, outputs, **options):
    from sparkdl_runner.estimator import TorchModel

    return TorchModel(network, names, outputs, **options)


def known(frame, network, names, outputs, reading=None, lengths=None, **options):
    from sparkdl_runner.training.fitting.network_columns import network_columns

    columns = network_columns(frame.schema, names, reading, lengths)
    return model_of(network, names, outputs, columns=columns, **options)


@pytest.mark.parametrize("columns", [["c1", "c2", "c3"], ["numbers"], ["vector"]])
@pytest.mark.parametrize("batch_size", [1024, 7])
def test_predictions_are_the_networks_own(frame, columns, batch_size):
    network = linear(3, 4)
    model = model_of(network, columns, {"label": "multiclass"})
    model.set(model.batch_size, batch_size)
    found = model.transform(frame)
    assert found.columns == [*frame.columns, "rawPrediction", "probability", "prediction"]
    assert found.schema["prediction"].dataType.simpleString() == "double"
    rows = rows_of(found, "rawPrediction", "probability", "prediction")
    assert rows["id"] == [*range(50), *range(75, 100)]
    scores = network(matrix(frame)).detach()
    assert np.allclose([row.toArray() for row in rows["rawPrediction"]], scores, atol=1e-5)
    assert np.allclose(
        [row.toArray() for row in rows["probability"]], scores.double().softmax(1), atol=1e-6
    )
    assert rows["prediction"] == scores.argmax(1).tolist()


def test_rows_keep_their_order_and_other_columns_and_no_job_runs_early(frame):
    tracker = frame.sparkSession.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup())
    found = model_of(linear(3, 1), ["numbers"], {"y": "regression"}).transform(frame)
    assert len(tracker.getJobIdsForGroup()) == before
    plan = found._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("of_pandas(") + plan.count("of_arrow(") == 1
    assert [row.id for row in found.collect()] == [row.id for row in frame.collect()]
    assert "dotted.name" in found.columns
    assert (
        model_of(linear(3, 1), ["numbers"], {"y": "regression"}).transform(frame.limit(0)).collect()
        == []
    )


def test_several_inputs_and_outputs_and_padded_lists(frame):
    network = words_network()
    names = {"words": "words", "others": ["c1", "c2"]}
    from sparkdl_runner.estimator import TorchModel
    from sparkdl_runner.training.fitting.network_columns import network_columns

    columns = network_columns(frame.schema, ["words", "c1", "c2"], {"pad": {"words": 4}})
    outputs = {"kind": "multiclass", "price": "regression"}
    found = TorchModel(network, names, outputs, columns=columns).transform(frame)
    rows = rows_of(found, "words", "c1", "c2", "prediction_kind", "prediction_price")
    words = torch.zeros((len(rows["id"]), 4), dtype=torch.int64)
    mask = torch.zeros(words.shape, dtype=torch.bool)
    for place, row in enumerate(rows["words"]):
        words[place, : len(row)] = torch.tensor(row[:4])
        mask[place, : len(row)] = True
    expected = network(words, torch.tensor([rows["c1"], rows["c2"]]).T.float(), mask)
    assert rows["prediction_kind"] == expected["kind"].argmax(1).tolist()
    assert np.allclose(rows["prediction_price"], expected["price"][:, 0].detach(), atol=1e-5)


def test_sparks_evaluators_take_the_columns(frame):
    from pyspark.ml import evaluation
    from pyspark.sql import functions as F

    names = ["c1", "c2", "c3"]
    labelled = frame.withColumn("label", F.col("id") % 2 * 1.0)
    binary = model_of(linear(3, 1), names, {"label": "binary"}).transform(labelled).cache()
    area = evaluation.BinaryClassificationEvaluator().evaluate(binary)
    rows = rows_of(binary, "label", "probability", "prediction")
    likely = np.array([row[1] for row in rows["probability"]])
    label = np.array(rows["label"]) == 1
    above = likely[label][:, None] - likely[~label]
    assert area == pytest.approx((np.sign(above).mean() + 1) / 2, abs=1e-6)
    accuracy = evaluation.MulticlassClassificationEvaluator(metricName="accuracy")
    assert accuracy.evaluate(binary) == np.mean(np.equal(rows["label"], rows["prediction"]))
    losses = evaluation.MulticlassClassificationEvaluator(metricName="logLoss")
    assert 0 < losses.evaluate(binary) < 10
    numbers = model_of(linear(3, 1), names, {"label": "regression"}).transform(labelled)
    assert evaluation.RegressionEvaluator().evaluate(numbers) > 0
    several = model_of(linear(3, 4), names, {"label": "multilabel"}).transform(
        frame.withColumn("label", F.expr("array(0D, 2D)"))
    )
    score = evaluation.MultilabelClassificationEvaluator(metricName="accuracy")
    rows = rows_of(several, "prediction", "probability")
    shared = [len({0.0, 2.0} & set(row)) / len({0.0, 2.0} | set(row)) for row in rows["prediction"]]
    assert score.evaluate(several) == pytest.approx(np.mean(shared))
    for labels, likely in zip(rows["prediction"], rows["probability"], strict=True):
        assert labels == np.flatnonzero(likely.toArray() > 0.5).tolist()


def test_nested_arrays_sparse_vectors_images_and_switches(frame):
    from pyspark.ml.linalg import Vectors

    flat = nn.Sequential(nn.Flatten(), linear(4, 1))
    found = model_of(flat, ["nested"], {"y": "regression"}).transform(frame)
    rows = rows_of(found, "nested", "prediction")
    expected = flat(torch.tensor(rows["nested"], dtype=torch.float32))[:, 0].detach()
    assert np.allclose(rows["prediction"], expected, atol=1e-5)

    spark = frame.sparkSession
    dense = [[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]]
    vectors = [(0, Vectors.dense(dense[0])), (1, Vectors.sparse(3, {2: 3.0}))]
    streams = [io.BytesIO(), io.BytesIO()]
    Image.new("RGB", (6, 4), (10, 20, 30)).save(streams[0], format="PNG")
    Image.new("L", (2, 2), 40).save(streams[1], format="PNG")
    made = spark.createDataFrame(
        [(*one, bytearray(two.getvalue())) for one, two in zip(vectors, streams, strict=True)],
        ["id", "vector", "image"],
    )
    network = linear(3, 1)
    rows = rows_of(model_of(network, ["vector"], {"y": "regression"}).transform(made), "prediction")
    assert np.allclose(rows["prediction"], network(torch.tensor(dense))[:, 0].detach(), atol=1e-5)

    class Mean(nn.Module):
        def forward(self, image):
            return image.mean((1, 2, 3)) * 255

    reading = {"images": {"image": (4, 6)}}
    found = model_of(Mean(), ["image"], {"y": "regression"}, reading=reading).transform(made)
    assert np.allclose(rows_of(found, "prediction")["prediction"], [20, 40], atol=1e-4)


def test_nulls_are_refused_or_filled_as_in_training(frame):
    network = linear(3, 1)
    for columns in (["holes", "c2", "c3"], ["holed"]):
        model = model_of(network, columns, {"y": "regression"})
        with pytest.raises(Exception, match=f"The column '{columns[0]}' holds a null"):
            model.transform(frame).select("prediction").collect()
        reading = {"nulls": "fill", "fill_value": 0.5}
        found = model_of(network, columns, {"y": "regression"}, reading=reading).transform(frame)
        rows = rows_of(found, "c1", "c2", "c3", "prediction")
        given = torch.tensor([rows["c1"], rows["c2"], rows["c3"]]).T.float()
        given[3, 0 if len(columns) == 3 else 1] = 0.5
        assert np.allclose(rows["prediction"], network(given)[:, 0].detach(), atol=1e-5)


def test_a_null_is_found_beside_any_number(spark):
    made = spark.createDataFrame([(0, [-3.0e-39, None, 1.0])], "id int, holed array<double>")
    taken = (linear(3, 1), ["holed"], {"y": "regression"})
    with pytest.raises(Exception, match="The column 'holed' holds a null"):
        model_of(*taken).transform(made).collect()
    model = model_of(*taken, reading={"nulls": "fill", "fill_value": 0.5})
    (found,) = rows_of(model.transform(made), "prediction")["prediction"]
    assert found == pytest.approx(linear(3, 1)(torch.tensor([0.0, 0.5, 1.0])).item(), abs=1e-5)


def test_a_null_vector_is_refused_or_filled_as_any_null(frame):
    made = frame.where("id < 5").selectExpr("id", "if(id = 3, null, vector) AS vector")
    taken = (linear(3, 1), ["vector"], {"y": "regression"})
    with pytest.raises(Exception, match="The column 'vector' holds a null"):
        model_of(*taken).transform(made).collect()
    model = model_of(*taken, reading={"nulls": "fill", "fill_value": 0.5})
    found = rows_of(model.transform(made), "prediction")["prediction"][3]
    assert found == pytest.approx(linear(3, 1)(torch.full((3,), 0.5)).item(), abs=1e-5)


def test_columns_of_a_matrix_keep_their_rules_whatever_their_type(frame):
    from pyspark.sql import functions as F

    made = frame.withColumns(
        {
            "filled": F.when(F.col("id") != 3, F.col("c1")),
            "kept": F.when(F.col("id") == 4, F.lit(float("nan"))).otherwise(F.col("c2")),
            "count": F.when(F.col("id") != 5, F.col("id").cast("int")),
            "other": F.col("id").cast("int") * 2,
        }
    )

    def predicted(columns, **reading):
        model = model_of(linear(2, 1), columns, {"y": "regression"}, reading=reading)
        rows = rows_of(model.transform(made), *columns, "prediction")
        return torch.tensor(rows["prediction"]), [rows[name] for name in columns]

    def expected(columns):
        return linear(2, 1)(torch.tensor(columns, dtype=torch.float32).T)[:, 0].detach()

    found, (filled, kept) = predicted(
        ["filled", "kept"], nulls={"filled": "fill", "kept": "nan"}, fill_value=-2
    )
    wanted = expected([[-2 if one is None else one for one in filled], kept])
    assert wanted.isnan().sum() == 1
    assert torch.allclose(found.float(), wanted, atol=1e-5, equal_nan=True)
    # Whole numbers become fractions, as in training.
    found, (count, other) = predicted(["count", "other"], nulls="fill", fill_value=7)
    wanted = expected([[7 if one is None else one for one in count], other])
    assert torch.allclose(found.float(), wanted, atol=1e-4)
    found, (even, again) = predicted(["even", "even"])
    assert torch.allclose(found.float(), expected([even, again]), atol=1e-5)


def test_a_changed_frame_is_refused_before_a_job(frame):
    model = known(frame, linear(3, 1), ["numbers"], {"y": "regression"}, lengths={"numbers": [3]})
    with pytest.raises(ValueError, match=r"no column 'numbers'.*Did you mean 'number'"):
        model.transform(frame.withColumnRenamed("numbers", "number"))
    with pytest.raises(ValueError, match=r"'numbers' is of type string.*arrays of numbers"):
        model.transform(frame.withColumn("numbers", frame.id.cast("string")))
    with pytest.raises(ValueError, match="has a column 'prediction' already"):
        model.transform(frame.withColumn("prediction", frame.id))
    whole = model_of(
        nn.Identity(), ["c1"], {"y": "regression"}, columns=[Column(name="c1", dtype="int64")]
    )
    with pytest.raises(Exception, match=r"'c1' holds a value that is lost.*the model takes int64"):
        whole.transform(frame).collect()
    from pyspark.sql import functions as F

    longer = frame.withColumn("numbers", F.array("c1", "c2"))
    with pytest.raises(
        Exception, match=r"'numbers' has a row with.*length 2, and the model takes 3"
    ):
        model.transform(longer).collect()


def test_each_worker_loads_the_network_once(frame):
    class Marked(nn.Module):
        """Says in which process it is, and when it was unpacked there."""

        def __setstate__(self, state):
            super().__setstate__(state)
            self.unpacked = time.monotonic()

        def forward(self, numbers):
            return torch.tensor([[os.getpid(), self.unpacked]], dtype=torch.float64).repeat(
                len(numbers), 1
            )

    outputs = {"y": Output("regression", size=2)}
    model = model_of(Marked(), Inputs({"": ("numbers",)}), outputs)
    found = set()
    for _ in range(2):
        rows = rows_of(model.transform(frame.repartition(6)), "prediction")
        found |= set(map(tuple, rows["prediction"]))
    assert len(found) == len({process for process, _ in found}) <= 4


def test_a_pipeline_is_saved_and_opened(frame, tmp_path, monkeypatch):
    from pyspark.ml import PipelineModel
    from pyspark.ml.feature import VectorAssembler

    from sparkdl_runner.estimator import TorchModel

    assembled = VectorAssembler(inputCols=["c1", "c2", "c3"], outputCol="features")
    given = assembled.transform(frame)
    network = linear(3, 4)
    model = known(
        given,
        network,
        ["features"],
        {"label": "multiclass"},
        lengths={"features": [3]},
        history=[{"loss": 0.5}],
        run_id="abc",
    )
    model.set(model.predictionCol, "guess")
    path = f"file://{tmp_path}/pipeline"
    PipelineModel([assembled, model]).write().overwrite().save(path)
    with pytest.raises(ValueError, match=r"is a graph, which can run any code.*RUNNER_TRUST=1"):
        PipelineModel.load(path)
    monkeypatch.setenv("SPARKDL_RUNNER_TRUST", "1")
    opened = PipelineModel.load(path)
    again = opened.stages[1]
    assert isinstance(again, TorchModel)
    assert (again.uid, again.history, again.run_id) == (model.uid, [{"loss": 0.5}], "abc")
    expected = rows_of(PipelineModel([assembled, model]).transform(frame), "probability", "guess")
    found = rows_of(opened.transform(frame), "probability", "guess")
    assert found["guess"] == expected["guess"]
    assert np.allclose(
        [row.toArray() for row in found["probability"]],
        [row.toArray() for row in expected["probability"]],
        atol=1e-5,
    )
    assert not list(tmp_path.rglob("*.pkl"))
    assert torch.allclose(again.get_model()(torch.ones(2, 3)), network(torch.ones(2, 3)))
    about = next(tmp_path.rglob(ABOUT_FILE))
    about.write_text(json.dumps({**json.loads(about.read_text()), "sparkdl_runner": "0.0.1"}))
    with pytest.warns(UserWarning, match=r"was saved with sparkdl_runner 0.0.1, and is opened"):
        TorchModel.load(about.parents[1].as_uri())


def test_a_pickle_is_opened_only_where_it_is_trusted(frame, tmp_path, monkeypatch):
    from sparkdl_runner.estimator import TorchModel
    from sparkdl_runner.estimator.trust import TRUST_VARIABLE

    class Branching(nn.Linear):
        def forward(self, numbers):
            return super().forward(numbers) if float(numbers.sum()) > 0 else numbers[:, :1]

    model = known(
        frame, Branching(3, 1), ["numbers"], {"y": "regression"}, lengths={"numbers": [3]}
    )
    path = f"file://{tmp_path}/model"
    with pytest.warns(UserWarning, match="was saved as a pickle"):
        model.write().overwrite().save(path)
    with pytest.raises(ValueError, match="trust=True"):
        TorchModel.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert TorchModel.load(path, trust=True).transform(frame).count() == 75
    monkeypatch.setenv(TRUST_VARIABLE, "1")
    assert TorchModel.load(path).run_id is None
    monkeypatch.delenv(TRUST_VARIABLE)
    # Weights alone need no trust.
    into = Branching(3, 1)
    assert TorchModel.load(path, model=into).transform(frame).count() == 75
    assert torch.equal(into.weight, model.get_model().weight)


def test_mlflow_scores_it_by_its_spark_udf(frame, tmp_path, monkeypatch, new_store):
    import mlflow
    from pyspark.sql import functions as F

    from sparkdl_runner.estimator.prediction.mlflow_model import log_torch_model

    store = new_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    mlflow.set_tracking_uri(store)
    client = mlflow.MlflowClient()
    experiment = client.create_experiment("transform", artifact_location=f"file://{tmp_path}/files")
    run = client.create_run(experiment)
    try:
        names = ["c1", "numbers"]

        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(4, 3)

            def forward(self, c1, numbers):
                return self.inner(torch.cat([c1[:, None], numbers], 1))

        model = known(frame, Both(), names, {"y": "multiclass"}, lengths={"numbers": [3]})
        info = log_torch_model(model, run_id=run.info.run_id)
        score = mlflow.pyfunc.spark_udf(frame.sparkSession, info.model_uri, env_manager="local")
        found = frame.withColumn("made", score(F.struct(*names))).select("id", "made.*")
        ours = rows_of(model.transform(frame), "prediction", "probability")
        theirs = rows_of(found, "prediction", "probability")
        assert ours["prediction"] == theirs["prediction"]
        assert np.allclose(
            [row.toArray() for row in ours["probability"]], theirs["probability"], atol=1e-5
        )
        assert client.get_run(run.info.run_id).info.status == "RUNNING"
    finally:
        mlflow.set_tracking_uri(None)
