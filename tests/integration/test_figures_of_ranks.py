"""``plt.show()`` in a rank, as far as to the file that the MLflow run keeps."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


class Files(Reports):
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def file_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        assert is_first
        self.kept[name] = data


def draw() -> list[Any]:
    from matplotlib import pyplot

    pyplot.figure(figsize=(2, 1))
    pyplot.plot([1, 2, 3])
    pyplot.show()
    left = pyplot.get_fignums()
    shown, axes = pyplot.subplots()
    axes.plot([3, 2, 1])
    shown.show()
    return [*left, *pyplot.get_fignums()]


@pytest.mark.parametrize("backend", ["torch", "horovod"])
def test_a_figure_that_rank_0_shows_is_kept(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Files()
    runner = DistributedRunner(
        num_proc=-2,
        backend=backend,
        run_config=RunConfig(tracking=False, require_collectives=False, environment={}),
    )
    runner.reports = [files]
    # As matplotlib documents: a window that show() has shown is closed after it.
    assert runner.run(draw) == [1]
    assert sorted(files.kept) == ["figures/rank-0-1.png", "figures/rank-0-2.png"]
    width, height = struct.unpack(">II", files.kept["figures/rank-0-1.png"][16:24])
    assert width > height > 50
    out = capsys.readouterr()
    assert "non-interactive" not in out.out + out.err
