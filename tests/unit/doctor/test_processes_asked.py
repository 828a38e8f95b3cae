"""The questions to the processes that look at the driver and at a session; their answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from one_module import replace_in
from sparkdl_runner.doctor import examination
from sparkdl_runner.doctor.question import UNPACK_SECONDS, Question
from sparkdl_runner.doctor.session import request_of_executors, submitted_options

QUESTION: Any = SimpleNamespace(
    backends=["horovod", "torch"],
    folders=["/shared"],
    tracking_uri="http://h:5000",
    num_proc=4,
    master="local[4]",
    conf={"spark.x": "1"},
)


class Answering:
    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def answer(self, deadline: float) -> Any:
        answer = self._answers.pop(0)
        return {"error": answer} if isinstance(answer, str) else answer

    def output(self) -> list[str]:
        return ["first", "second", "third"]


SESSION = {"slots": 4, "is_dynamic": False}
OUTPUT = ["first", "second", "third"]


@pytest.mark.parametrize(
    ("answers", "facts"),
    [
        ([{"session": SESSION}, {"stage": {"hosts": []}}], {**SESSION, "stage": {"hosts": []}}),
        (["it died"], {"error": "it died", "output": OUTPUT}),
        ([{"session": {"error": "no Java"}}], {"error": "no Java", "output": OUTPUT}),
        (
            [{"session": SESSION}, "it hangs"],
            {**SESSION, "stage": {"error": "it hangs, for a stage of 4 tasks"}},
        ),
    ],
)
def test_a_session_answers_in_two_parts_of_which_each_may_fail(
    answers: list[Any], facts: dict[str, Any]
) -> None:
    assert examination.answers_of_session(Answering(*answers), {}) == facts


@pytest.mark.parametrize("name", ["spark.archives", "spark.yarn.dist.archives"])
def test_a_session_may_take_longer_where_hosts_unpack_an_environment(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    deadlines: list[float] = []

    class Asked(Answering):
        def answer(self, deadline: float) -> Any:
            deadlines.append(deadline)
            return super().answer(deadline)

    replace_in(monkeypatch, examination, "time", monotonic=lambda: 0.0)
    for settings in ({}, {name: "environment.tar.gz#environment"}):
        examination.answers_of_session(Asked("it died"), settings)
    assert deadlines[1] - deadlines[0] == UNPACK_SECONDS


@pytest.mark.parametrize(
    ("variables", "settings", "directories"),
    [
        ({}, {}, {"/tmp": "Spark's"}),
        ({"TMPDIR": "/t"}, {"spark.local.dir": "/a,/b"}, {"/t": "temp", "/a": "S", "/b": "S"}),
        ({"SPARK_LOCAL_DIRS": "/c"}, {"spark.local.dir": "/a"}, {"/c": "Spark's"}),
    ],
)
def test_the_driver_is_looked_at_where_it_keeps_its_files(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    settings: dict[str, str],
    directories: dict[str, str],
) -> None:
    for name in ("TMPDIR", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    asked = examination.host_request(QUESTION, settings)
    found = asked["directories"]
    assert found.keys() == directories.keys()
    assert all(found[path].startswith(words) for path, words in directories.items())
    assert asked["native"] == ["torch", "horovod"]
    assert (asked["folders"], asked["servers"]) == ([], [])
    assert asked["marker"] != examination.host_request(QUESTION, settings)["marker"]
    of_executors = request_of_executors(asked, QUESTION)
    assert of_executors["folders"] == ["/shared"]
    assert of_executors["servers"] == ["http://h:5000/health"]
    assert of_executors["scripts"].keys() == {"native", "folder"}
    assert {name for name in asked if asked[name] == of_executors[name]} == {
        *("native", "directories", "marker", "seconds")
    }


def test_yarn_is_to_start_no_second_master_for_a_session_that_was_given_up() -> None:
    asked = Question(num_proc=4, backends=("torch",), master="yarn", conf={"spark.x": "1"})
    once = ["--conf", "spark.yarn.maxAppAttempts=1", "--conf", "spark.x=1", "--master", "yarn"]
    assert submitted_options(asked) == once
