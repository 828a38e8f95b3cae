"""The conditions under which a spare was started."""

from __future__ import annotations

import pytest

from sparkdl_runner.launch.agent.spares import start_conditions


@pytest.mark.parametrize(
    ("ignored", "is_like_none"),
    [(0x1_8000_0000, True), (0x1000, False), (0x4_0000_0000, False)],
    ids=["the C library's own", "SIGPIPE", "the first real-time signal"],
)
def test_only_signals_of_programs_count(ignored: int, is_like_none: bool) -> None:
    line, none = f"SigIgn:\t{ignored:016x}", f"SigIgn:\t{0:016x}"
    found = start_conditions._of_programs(line) == start_conditions._of_programs(none)
    assert found is is_like_none


def test_other_lines_are_as_they_are() -> None:
    assert start_conditions._of_programs("Umask:\t0022") == "Umask:\t0022"
