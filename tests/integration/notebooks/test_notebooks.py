"""Each notebook runs from top to bottom in Jupyter, and looks well."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
from jupyter import Page

from browser import Browser
from browser import programs as browser_programs

# A notebook takes half a minute; on a machine that is busy, several times as long.
pytestmark = pytest.mark.integration

NOTEBOOKS = {
    path.stem.partition("_")[0]: path
    for path in sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))
}
each = pytest.mark.parametrize("number", NOTEBOOKS)


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]
) -> Callable[[str], Page]:
    """The notebook of that number, after it ran in Jupyter: once for all tests here."""
    done: dict[str, Page] = {}

    def run(number: str) -> Page:
        if number not in done:
            folder = tmp_path_factory.mktemp(f"notebook-{number}-")
            new_store(folder)
            done[number] = Page(NOTEBOOKS[number], folder)
        return done[number]

    return run


def runs_of(folder: Path) -> dict[str, Any]:
    """The MLflow runs that were left in a folder, oldest first, by name."""
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name != 'Default'")
    found = client.search_runs([experiment.experiment_id], order_by=["start_time"])
    return {run.info.run_name: run for run in found}


def history(folder: Path, run: Any, metric: str) -> list[int]:
    """The steps at which a metric was logged, in order."""
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    return sorted(one.step for one in client.get_metric_history(run.info.run_id, metric))


def models_of(folder: Path, run: Any) -> list[Any]:
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    return client.search_logged_models([run.info.experiment_id])


def number_after(words: str, text: str) -> float:
    return float(re.search(rf"{re.escape(words)}\s*([0-9.e+-]+)", text)[1])


@pytest.mark.one_lane
def test_01_learns_keeps_the_model_and_shows_a_failure(ran: Callable[[str], Page]) -> None:
    page = ran("01")
    trials = page.shown("for np in (-1, -2)")
    assert number_after("np=-1: accuracy", trials) > 0.5
    assert number_after("np=-2: accuracy", trials) > 0.5
    training = page.shown("HorovodRunner(np=2).run(train")
    assert number_after("np=2: accuracy", training) > 0.93
    assert "460/460" in training
    assert "rank 1 on " in page.shown("HorovodRunner(np=2).run(fail)")
    assert "ValueError('rank 1 has met bad data')" in page.shown("HorovodRunner(np=2).run(fail)")
    assert page.images() == 1

    runs = list(runs_of(page.folder).values())
    assert [run.info.status for run in runs] == ["FINISHED"] * 3 + ["FAILED"]
    assert [run.data.tags["sparkdl_runner.num_proc"] for run in runs] == ["-1", "-2", "2", "2"]
    assert runs[2].data.metrics["accuracy"] > 0.93
    assert history(page.folder, runs[2], "loss") == list(range(1, 461))
    assert [one.source_run_id for one in models_of(page.folder, runs[2])] == [runs[2].info.run_id]


# What it calls of Spark is called in both lanes by test_jobs.
@pytest.mark.one_lane
def test_02_spark_scores_what_the_ranks_have_learnt(ran: Callable[[str], Page]) -> None:
    page = ran("02")
    assert "features: torch.float32, (4, 64)" in page.shown("next(iter(loader))")
    by_ranks = number_after("on the test rows:", page.shown("accuracy = runner.run("))
    by_spark = number_after("Spark's predictions:", page.shown("mlflow.pyfunc.spark_udf("))
    assert by_ranks > 0.93
    assert by_spark == by_ranks
    table = [line.split() for line in page.shown("mlflow.pyfunc.spark_udf(").splitlines()]
    rows = table[table.index(["id", "label", "prediction", "correct"]) + 1 :]
    assert len(rows) == 8
    for _, _, label, prediction, is_correct in rows:
        assert is_correct == str(label == prediction)
    assert page.images() == 1

    run = runs_of(page.folder)["from a table"]
    assert run.info.status == "FINISHED"
    assert run.data.metrics["accuracy"] == pytest.approx(by_ranks, abs=1e-4)
    assert {one.dataset.name for one in run.inputs.dataset_inputs} == {"train_data", "test_data"}
    assert len(models_of(page.folder, run)) == 1


@pytest.mark.one_lane
def test_03_both_backends_reach_the_same(ran: Callable[[str], Page]) -> None:
    page = ran("03")
    results = page.shown("runner.run(train")
    accuracies = [number_after(f"{name}: accuracy", results) for name in ("horovod", "torch")]
    assert min(accuracies) > 0.93
    assert accuracies[0] == accuracies[1]
    assert number_after("steps:", page.shown("largest difference")) < 1e-3
    changes = page.shown("difflib.unified_diff").splitlines()
    assert {"-    hvd.init()", "+    dist.init_process_group()"} <= set(changes)
    assert not any("loss.backward()" in line for line in changes), "that stays as it was"
    assert page.images() == 1

    runs = runs_of(page.folder)
    assert [run.data.tags["sparkdl_runner.backend"] for run in runs.values()] == [
        "horovod",
        "torch",
    ]
    for run in runs.values():
        assert run.info.status == "FINISHED"
        assert history(page.folder, run, "loss") == list(range(1, 346))


@pytest.mark.one_lane
def test_04_failures_are_named_and_survived(ran: Callable[[str], Page]) -> None:
    page = ran("04")
    raised = page.shown('run("raises"')
    assert "Rank 1 of 2 on host" in raised
    assert "raised ValueError: row 667 has no label" in raised
    assert "in meets_bad_data" in raised
    assert "reading rows 640 to 703" in raised.partition("Last output of rank 1")[2]

    killed = page.shown('run("is killed"')
    assert "Rank 1 of 2" in killed
    assert "was ended by SIGKILL" in killed
    assert "[rank 0] goes on after step 40" in killed
    assert number_after("accuracy", killed.rpartition("\n\n")[2]) > 0.93

    hung = page.shown('run("hangs"')
    assert re.search(r"Rank 1 of 2 on host \S+ has made no progress for \d+ s", hung)
    assert "in waits_for_ever" in hung
    assert "was cancelled" in page.shown('run("is cancelled"')

    runs = runs_of(page.folder)
    assert {name: run.info.status for name, run in runs.items()} == {
        "raises": "FAILED",
        "is killed": "FINISHED",
        "hangs": "FAILED",
        "is cancelled": "KILLED",
    }
    survivor = runs["is killed"]
    assert "SIGKILL" in survivor.data.tags["sparkdl_runner.attempt.0.ended_by"]
    assert survivor.data.tags["sparkdl_runner.attempt.1.ended_by"] == "all ranks returned"
    assert history(page.folder, survivor, "loss") == list(range(1, 101)), "each step once"
    assert "100 losses of 100 steps" in page.shown("axes.plot(seconds")
    assert page.images() == 1


@pytest.mark.one_lane
def test_05_tunes_in_a_pipeline(ran: Callable[[str], Page]) -> None:
    page = ran("05")
    tried = page.shown("found = search.fit(rows)").splitlines()
    areas = [number_after("area under ROC", one) for one in tried if "area under ROC" in one]
    assert len(areas) == 3
    assert max(areas) == areas[2] > 0.97, "the larger network with the larger learning rate"
    assert number_after("validation accuracy:", page.shown("fitted = Pipeline(")) > 0.9
    area = number_after("for new patients:", page.shown("scored = fitted.transform(new)"))
    assert area > 0.97
    loaded = number_after("of the loaded pipeline:", page.shown("PipelineModel.load("))
    assert loaded == area
    assert page.images() == 1

    final = runs_of(page.folder)["best setting"]
    assert f"/runs/{final.info.run_id}" in page.shown("mlflow.search_runs(max_results=8)")
    assert final.info.status == "FINISHED"
    assert final.data.params["epochs"] == "10"
    assert len(history(page.folder, final, "val_accuracy")) == 10


@pytest.mark.one_lane
def test_06_goes_on_on_this_machine(ran: Callable[[str], Page]) -> None:
    page = ran("06")
    assert "1797 images" in page.shown("write_conversion(table")
    assert "from step 0 to 84:" in page.shown("epochs=3")
    assert "from step 84 to 252:" in page.shown("epochs=6")
    assert "['rank 1 of 2', 'rank 2 of 2']" in page.shown("say_hello.distributed")
    assert [run.info.status for run in runs_of(page.folder).values()] == ["FINISHED"] * 3


@pytest.mark.one_lane
@each
def test_nothing_but_mlflow_s_store_is_left(number: str, ran: Callable[[str], Page]) -> None:
    assert {path.name for path in ran(number).folder.iterdir()} == {"mlflow.db", "mlruns"}


@pytest.mark.one_lane
@pytest.mark.skipif(
    browser_programs() is None and os.environ.get("CI", "").lower() not in ("true", "1"),
    reason="needs more programs (Debian: apt-get install chromium chromium-driver)",
)
def test_the_pages_are_fit_to_be_read(ran: Callable[[str], Page], tmp_path: Path) -> None:
    folder = Path(os.environ.get("SPARKDL_TEST_ARTIFACTS", tmp_path)).resolve() / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Browser(folder, width=1100, height=1000)) as browser:
        for number, source in NOTEBOOKS.items():
            page = ran(number)
            html = folder / f"{source.stem}.html"
            page.write_html(html)
            browser.open(html.as_uri())
            browser.whole_page(source.stem)
            text = browser.text()
            assert page.notebook.cells[0].source.splitlines()[0].removeprefix("# ") in text
            # Spark says two or three lines while it starts; nothing else is noise.
            assert text.count("WARN") <= 3
            assert "Warning" not in text
            # A bar is one line, however often it was drawn; each of several trainings has its own.
            for bars in re.findall(r"(?:training: .*\n)+", text):
                drawn = bars.splitlines()
                assert len(drawn) == 1 or (number == "05" and all("100%|" in one for one in drawn))
            loaded = browser.run("return [...document.images].map(image => image.naturalWidth > 0)")
            assert loaded == [True] * page.images()
            assert browser.run(
                "return document.documentElement.scrollWidth <= window.innerWidth"
            ), "something is wider than the page"
