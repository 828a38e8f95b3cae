"""The page of a training that runs, in a real browser."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from browser import Browser, programs
from sparkdl_runner import DistributedRunner, RunConfig

pytestmark = [
    pytest.mark.integration,
    pytest.mark.one_lane,
    pytest.mark.usefixtures("light_ranks"),
]
WAIT_SECONDS = 120
MARKUP = "<script>document.title = 'taken'</script><b>"


def train(signs: str) -> int:
    """Logs steps until it is told to end, and prints a line of markup."""
    import time
    from pathlib import Path

    from sparkdl_runner import current_world
    from sparkdl_runner.tracking import log_metrics

    rank = current_world().rank
    print(f"rank {rank} says {MARKUP}", flush=True)
    step = 0
    while not (Path(signs) / "end").exists():
        step += 1
        log_metrics(step, {"loss": 1 / step}, samples=8, total_steps=100_000)
        time.sleep(0.01)
    print("and ends", flush=True)
    return step


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


@pytest.fixture
def signs(tmp_path: Path) -> Iterator[Path]:
    """The folder in which ranks are told to end; they are, whatever becomes of the test."""
    yield tmp_path
    for folder in (tmp_path, tmp_path / "other"):
        if folder.is_dir():
            (folder / "end").touch()


def runner(**settings: Any) -> DistributedRunner:
    return DistributedRunner(num_proc=-2, backend="horovod", run_config=RunConfig(**settings))


@pytest.mark.skipif(programs() is None, reason="there is no chromium with its driver")
def test_a_browser_sees_two_trainings_run_and_end_and_may_be_closed(
    signs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = signs / "other"
    other.mkdir()
    runs = [
        runner(tracking=False, live_page=True).submit(train, str(one)) for one in (signs, other)
    ]
    told = ""

    def addresses() -> list[str]:
        nonlocal told
        told += capfd.readouterr().out
        files = re.findall(r"live page, which is a secret, is in (\S+)\n", told)
        return [Path(file).read_text().strip() for file in files] if len(files) == 2 else []

    urls = until(addresses)
    assert len({urlsplit(url).port for url in urls}) == 2
    with contextlib.closing(Browser(signs, width=1100, height=1400)) as browser:
        browser.open(urls[0])
        shown = browser.wait_for("Time of a step", "of 100,000", "rank 1 says", "memory ")
        assert "train: running" in shown
        assert f"[rank 1] rank 1 says {MARKUP}" in shown
        step = browser.run("return document.querySelector('progress').value")
        browser.wait_until(
            lambda: browser.run("return document.querySelector('progress').value") > step,
            lambda: "a later step",
        )
        assert browser.run("return document.title") == "train"
        assert browser.count("main script") == 0
        browser.resize(500, 900)
        sizes = "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
        browser.wait_until(lambda: browser.run(sizes)[1] <= 500, lambda: "a narrow page")
        assert len(set(browser.run(sizes))) == 1, "a phone need not be scrolled to the side"
        ends = [int(run.progress.step > 0) for run in runs]
        (signs / "end").touch()
        (other / "end").touch()
        browser.wait_for("train: finished", "and ends")
        assert ends == [1, 1]
        browser.open("about:blank")
    for run, url in zip(runs, urls, strict=True):
        assert run.result(WAIT_SECONDS) > 0
        address = urlsplit(url)
        with pytest.raises(ConnectionError):
            socket.create_connection((str(address.hostname), address.port or 0))
        assert address.path not in told
