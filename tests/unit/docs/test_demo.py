"""The README's moving picture shows what was recorded, line by line, and is small."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from types import ModuleType
from xml.etree import ElementTree

import pytest

from docs_blocks import ROOT

CAST = (ROOT / "docs" / "demo.cast").read_text()
PICTURE = ROOT / "docs" / "demo.svg"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_demo", ROOT / "docs" / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_drawn_from_the_recording(demo: ModuleType) -> None:
    assert PICTURE.read_text() == demo.draw(demo.lines_of(CAST)), "run: docs/demo.py"
    assert PICTURE.stat().st_size < 300_000


def test_every_line_is_shown() -> None:
    recorded = "".join(json.loads(line)[2] for line in CAST.splitlines()[1:])
    texts = ElementTree.fromstring(PICTURE.read_text()).iter("{http://www.w3.org/2000/svg}text")
    shown = "".join(text.text or "" for text in texts if text.get("class") != "time")
    assert shown == "$ make demo CHAOS=1" + recorded.replace("\r\n", "").replace("\x1b[K", "")


def test_it_shows_a_death_and_a_training_that_goes_on() -> None:
    for sign in ("was ended by SIGKILL", "attempt 1 goes on after step", "'attempts': 2"):
        assert sign in CAST
    assert not re.search(r"/(?:root|tmp|work)/", CAST)


def test_lines_that_are_too_long_go_on_below_and_waits_are_cut(demo: ModuleType) -> None:
    header = json.dumps({"version": 2})
    long = "x" * (demo.COLUMNS + 1)
    events = [
        [1.0, "o", "fir"],
        [90.0, "o", f"st\r\n{long}\r\n"],
        [90.5, "o", "0%\r\x1b[K100%\r\n"],
    ]
    lines = demo.lines_of("\n".join((header, *map(json.dumps, events))))
    assert [line.text for line in lines[1:]] == ["first", "x" * demo.COLUMNS, "x", "100%"]
    assert [line.second for line in lines[1:]] == [90.0, 90.0, 90.0, 90.5]
    total = demo.LONGEST_WAIT_SECONDS + 0.5 + demo.LAST_SCREEN_SECONDS
    assert f"animation:{total:.1f}s" in demo.draw(lines)


def test_a_recording_of_a_failed_command_is_not_kept(
    demo: ModuleType, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "CAST", tmp_path / "demo.cast")
    with pytest.raises(SystemExit, match="ended with 3; nothing is recorded"):
        demo.record([sys.executable, "-c", "raise SystemExit(3)"])
    assert not (tmp_path / "demo.cast").exists()
    demo.record([sys.executable, "-c", f"print({str(ROOT)!r} + '/mlflow.db')"])
    assert f"{demo.SHOWN_FOLDER}/mlflow.db" in (tmp_path / "demo.cast").read_text()
