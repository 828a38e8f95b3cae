"""No metric twice, no parameter changed, nothing too long, no secret."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sparkdl_runner.base.redaction import HIDDEN, Redactor
from sparkdl_runner.tracking.run.journal import MAX_PARAM_CHARACTERS, Journal, earlier_values
from sparkdl_runner.tracking.run.opening.opened import Opened


def metric(step: int, name: str = "loss") -> list[Any]:
    return ["metric", name, float(step), 0, step, {}]


def journal(params: dict[str, str] | None = None, last: dict[str, int] | None = None) -> Journal:
    return Journal(params or {}, last or {}, Redactor(["hunter2-hunter2"]))


@given(
    ends=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    every=st.integers(1, 20),
    lost=st.integers(0, 5),
)
def test_metrics_have_no_gap_and_no_repetition_over_restarts(
    ends: list[int], every: int, lost: int
) -> None:
    """Each attempt begins at a checkpoint, says again what it holds, and ends anywhere."""
    book = journal()
    steps: list[int] = []
    done = 0
    for attempt, more in enumerate(ends):
        book.begin_attempt(attempt)
        begin = done // every * every  # the last checkpoint
        replayed = range(max(1, begin - lost), begin + 1)
        said = [*replayed, *range(begin + 1, begin + more + 1)] if attempt else range(1, more + 1)
        # What an attempt said last may be lost with it, but not what its checkpoint holds.
        heard = [step for step in said if step <= max((begin + more) // every * every, begin)]
        heard += [step for step in said if step > (begin + more) // every * every][: more // 2]
        steps += [entry[4] for entry in book.admit([metric(step) for step in heard])]
        done = max(done, begin + more)
    assert steps == list(range(1, len(steps) + 1))


def test_a_run_that_is_resumed_by_another_driver_goes_on_where_it_was() -> None:
    book = journal(last={"loss": 7, "final": 0})
    book.begin_attempt(3)
    assert [one[4] for one in book.admit([metric(step) for step in range(5, 11)])] == [8, 9, 10]
    # What was only ever said without a step is not a repetition.
    assert book.admit([metric(0, "final")]) == [metric(0, "final")]


def test_within_an_attempt_a_step_may_be_said_again() -> None:
    book = journal()
    book.begin_attempt(0)
    assert book.admit([metric(3), metric(3)]) == [metric(3), metric(3)]


def test_a_system_metric_begins_with_its_first_value_that_is_not_zero() -> None:
    book = journal()
    name = "system/step_seconds/checkpoint"
    for step, expected in ((0, 0), (3, 1), (0, 1)):
        assert len(book.admit([metric(step, name)])) == expected, "then a zero says something"
    assert book.admit([metric(0, "accuracy")]) == [metric(0, "accuracy")], "a person's own"


def test_a_parameter_that_changes_is_kept_beside_the_first() -> None:
    book = journal({"num_proc": "4", "lr": "0.1"})
    book.begin_attempt(2)
    admitted = book.admit([["param", "num_proc", "2"], ["param", "lr", "0.1"], ["param", "x", "1"]])
    assert admitted == [["param", "attempt_2/num_proc", "2"], ["param", "x", "1"]]
    (problem,) = book.problems
    assert "'num_proc' was 4 and is now 2" in problem


def test_a_changed_parameter_that_is_said_again_is_kept_once() -> None:
    book = journal({"batch": "4"})
    book.begin_attempt(1)
    for _ in range(3):
        book.admit([["param", "batch", "2"]])
    assert len(book.problems) == 1
    assert book.admit([["param", "batch", "2"]]) == []


def test_what_waits_to_be_delivered_has_been_told() -> None:
    class Client:
        def get_metric_history(self, run_id: str, name: str) -> list[Any]:
            return [SimpleNamespace(step=89)]

    run = SimpleNamespace(
        info=SimpleNamespace(run_id="r"),
        data=SimpleNamespace(params={"a": "1"}, metrics={"loss": 0.1, "system/cpu": 5.0}),
    )
    opened = Opened(client=Client(), uri="", run=run, is_ours=True, first_attempt=0)
    waiting = [metric(step) for step in range(90, 101)]
    waiting += [["param", "b", "2"], ["tag", "sparkdl_runner.attempt", "0"]]
    assert earlier_values(opened, waiting) == ({"a": "1", "b": "2"}, {"loss": 100}, 1)


def test_a_long_parameter_is_cut_and_that_is_said() -> None:
    book = journal()
    ((_, _, text),) = book.admit([["param", "config", "y" * 7000]])
    assert len(text) == MAX_PARAM_CHARACTERS
    assert "longer than the 6000" in book.problems[0]


def test_secrets_are_hidden() -> None:
    book = journal()
    admitted = book.admit(
        [
            ["param", "db_password", "short"],
            ["param", "command", "run --key hunter2-hunter2"],
            ["tag", "uri", "https://me:pw@host/x"],
            ["param", "tokenizer", "bert"],
            ["param", "max_tokens", "512"],
            ["param", "config", "{'db': {'password': 'short'}, 'n': 3}"],
        ]
    )
    assert [entry[2] for entry in admitted] == [
        HIDDEN,
        f"run --key {HIDDEN}",
        f"https://{HIDDEN}@host/x",
        "bert",
        "512",
        f"{{'db': {{'password': '{HIDDEN}'}}, 'n': 3}}",
    ]


def test_a_secret_in_a_name_is_hidden_and_the_name_is_one_for_mlflow() -> None:
    book = journal()
    (parameter,) = book.admit([["param", "hunter2-hunter2", "1"]])
    assert parameter == ["param", "redacted", "1"]
    more = {"dataset_name": "of hunter2-hunter2"}
    said = ["metric", "loss/hunter2-hunter2", 1.0, 0, 1, more]
    hidden = ["metric", "loss/redacted", 1.0, 0, 1, {"dataset_name": f"of {HIDDEN}"}]
    assert book.admit([said]) == [hidden]
    book.begin_attempt(1)
    assert book.admit([said]) == []


def test_a_parameter_that_the_function_has_set_is_known_as_set() -> None:
    journal = Journal({}, {}, Redactor())
    journal.admit([["param", "lr", "0.4"]])
    assert journal.is_set(["param", "lr", "0.1"])
    assert not journal.is_set(["param", "epochs", "2"])
    assert not journal.is_set(["tag", "lr", "0.1"])
    journal.begin_attempt(1)
    assert not journal.is_set(["param", "lr", "0.1"]), "kept as the later attempt's"
