"""The command line, the report, and where a question leads."""

from __future__ import annotations

import argparse
import http.server
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sparkdl_runner.doctor import command, examination, tracking_server
from sparkdl_runner.doctor.findings.finding import OK, Finding, problem, warning
from sparkdl_runner.doctor.question import Question, is_for_a_cluster
from sparkdl_runner.doctor.report import Report


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["doctor", *arguments])


def test_arguments():
    found = parse("--np", "4", "--conf", "spark.a=b=c", "--folder", "s3a://bucket/x")
    assert (found.num_proc, found.conf, found.folder) == (
        4,
        [("spark.a", "b=c")],
        ["s3a://bucket/x"],
    )
    assert found.run is command.run


def test_archives_are_a_setting_of_spark():
    found = parse("--archives", "hdfs:///env.tar.gz#environment", "--conf", "spark.a=b")
    assert found.conf == [("spark.archives", "hdfs:///env.tar.gz#environment"), ("spark.a", "b")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--np", "0"),
        ("--np", "two"),
        ("--conf", "spark.a"),
        ("--folder", "relative/path"),
        ("--backend", "mpi"),
        ("--unknown",),
    ],
)
def test_bad_usage_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(*arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("master", "settings", "environment", "is_cluster"),
    [
        (None, {}, {}, False),
        ("local[2]", {}, {}, False),
        ("local-cluster[2,1,1024]", {}, {}, True),
        ("yarn", {}, {}, True),
        (None, {"spark.master": "spark://a:7077"}, {}, True),
        ("local[2]", {"spark.master": "spark://a:7077"}, {}, False),
        (None, {}, {"PYSPARK_GATEWAY_PORT": "4711"}, True),
    ],
)
def test_what_is_a_cluster(master, settings, environment, is_cluster):
    assert is_for_a_cluster(Question(master=master), settings, environment) is is_cluster


@pytest.mark.parametrize(
    ("backends", "native"), [(("torch",), ["torch"]), (("horovod",), ["torch", "horovod"])]
)
def test_the_drivers_host_is_asked_about_the_backends_that_are_wanted(
    monkeypatch, tmp_path, backends, native
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    asked = examination.host_request(
        Question(backends=backends), {"spark.local.dir": "/data/a,/data/b"}
    )
    assert asked["native"] == native
    assert list(asked["directories"]) == [str(tmp_path), "/data/a", "/data/b"]


# ---- the report --------------------------------------------------------------------------------

FINE = Finding(status=OK, check="clock", found="agrees", where=("executor 10.0.0.2:1 (b)",))
FINDINGS = (
    replace(problem("2 slots.", expected="4 or more", advice="Ask for 2."), check="spark.slots"),
    FINE,
    replace(warning("little is free.", expected="more", advice="Add some."), check="memory"),
)


def test_the_json_form():
    report = Report(findings=FINDINGS, num_proc=4, seconds=1.234)
    fields = report.to_json()
    assert {name: fields[name] for name in ("status", "num_proc", "seconds")} == {
        "status": "problem",
        "num_proc": 4,
        "seconds": 1.2,
    }
    assert fields["findings"][1] == {
        "check": "clock",
        "status": "ok",
        "found": "agrees",
        "expected": "",
        "advice": "",
        "where": ["executor 10.0.0.2:1 (b)"],
    }
    assert report.exit_code == 1
    assert Report(findings=FINDINGS[1:], num_proc=4, seconds=1).exit_code == 0


def test_what_is_fine_on_many_hosts_is_one_line():
    places = [f"executor 10.0.0.{n}:1 (b)" for n in range(3)]
    driver = Finding(status=OK, check="memory", found="9 GiB is free")
    findings = [
        replace(driver, found=f"{n} GiB is free", where=(place,)) for n, place in enumerate(places)
    ]
    stream = io.StringIO()
    report = Report(findings=[driver, *findings], num_proc=2, seconds=1)
    report.print_to(stream)
    first = stream.getvalue().splitlines()[0]
    assert first == "ok      memory            9 GiB is free [driver and 3 executors]"
    assert len(report.to_json()["findings"]) == 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_form_for_a_person():
    stream = io.StringIO()
    Report(findings=FINDINGS, num_proc=4, seconds=1.2).print_to(stream)
    assert stream.getvalue().splitlines() == [
        "ok      clock             agrees [executor 10.0.0.2:1 (b)]",
        "",
        "WARNING memory            little is free.",
        "                          expected: more",
        "                          -> Add some.",
        "",
        "PROBLEM spark.slots       2 slots.",
        "                          expected: 4 or more",
        "                          -> Ask for 2.",
        "",
        "1 check is fine, 1 warning, 1 problem: mend the problems before a run (1.2 s).",
    ]
    terminal = Terminal()
    Report(findings=FINDINGS, num_proc=4, seconds=1.2).print_to(terminal)
    assert "\033[31mPROBLEM" in terminal.getvalue()


# ---- MLflow's server ---------------------------------------------------------------------------


@contextmanager
def serving(pages: dict[str, tuple[int, str]]) -> Iterator[tuple[str, list]]:
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            seen.append((self.path, self.headers.get("Authorization")))
            status, text = pages.get(self.path, (404, ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    Handler.do_POST = Handler.do_GET
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", seen
        finally:
            server.shutdown()
            thread.join()


SEARCH = "/api/2.0/mlflow/experiments/search"


@pytest.fixture(autouse=True)
def one_try(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(tracking_server, "ANSWER_SECONDS", 300)  # A busy machine may answer late.


@pytest.mark.parametrize(
    ("pages", "status", "says"),
    [
        ({SEARCH: (200, "{}"), "/version": (200, "3.17.2")}, "ok", "MLflow 3.17.2"),
        ({SEARCH: (200, "{}")}, "ok", "answers"),
        ({SEARCH: (200, "{}"), "/version": (200, "3.1.0")}, "warning", "too old"),
        ({SEARCH: (200, "{}"), "/version": (200, "2.9.0")}, "problem", "too old"),
        ({SEARCH: (401, "")}, "problem", "code 401"),
        ({SEARCH: (403, "")}, "problem", "code 403"),
        ({"/health": (503, "")}, "problem", "HTTP 503"),
        ({SEARCH: (200, "<html>")}, "problem", "cannot list experiments"),
    ],
)
def test_what_a_server_answers(pages, status, says):
    with serving(pages) as (uri, _):
        found = tracking_server.judge(uri, tracking_server.ask(uri))
    assert found.status == status
    assert says in found.found
    assert status == "ok" or found.advice


@pytest.mark.parametrize(
    ("environment", "sent"),
    [
        ({}, None),
        ({"MLFLOW_TRACKING_TOKEN": "abc"}, "Bearer abc"),
        ({"MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "p"}, "Basic dTpw"),
    ],
)
def test_the_credentials_that_mlflow_would_send(environment, sent, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with serving({SEARCH: (200, "{}")}) as (uri, seen):
        tracking_server.ask(uri)
    assert (SEARCH, sent) in seen


def test_places_that_are_no_web_servers():
    def look(uri: str | None, on_cluster: bool = False) -> Finding:
        return tracking_server.check_server(uri, on_cluster=on_cluster)

    assert look(None).status == "not checked"
    assert look("postgresql://user:pass-word@db/mlflow").status == "not checked"
    assert "pass-word" not in look("postgresql://user:pass-word@db/mlflow").found
    assert look("sqlite:///mlflow.db").status == "ok"
    on_driver = look("sqlite:///mlflow.db", on_cluster=True)
    assert on_driver.status == "warning"
    assert "mlflow server" in on_driver.advice


def test_the_page_that_executors_ask_for_has_no_password():
    page = tracking_server.health_page("https://me:pass-word@host:5000/base/?x=1")
    assert page == "https://host:5000/base/health"
    assert tracking_server.health_page("sqlite:///mlflow.db") is None
