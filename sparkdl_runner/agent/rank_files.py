"""What a rank leaves on its host, and what is kept of it with the run."""

from __future__ import annotations

import os
from pathlib import Path

from sparkdl_runner.agent.rank_log import RankLog
from sparkdl_runner.foreign_file import open_regular
from sparkdl_runner.tracking.rank_run import artifacts_in
from sparkdl_runner.wire.sink import Sink
from sparkdl_runner.world import World

FILE_PART_BYTES = 256 * 1024
# What is kept with the run of one file that a rank leaves.
MAX_FILE_BYTES = 64 << 20


def leave_files(world: World, folder: Path, log: RankLog, sink: Sink) -> None:
    """Gives away what is to be kept with the run: all that was printed, and traces.

    Args:
        world: The rank.
        folder: The rank's own folder of the run.
        log: Its log.
        sink: Who takes the files.
    """
    if log.size_bytes:
        _leave(world, f"logs/rank-{world.rank}.log", log.path, sink)
    artifacts = artifacts_in(folder)
    for path in sorted(artifacts.rglob("*")):
        if path.is_file() and not path.is_symlink():
            _leave(world, f"traces/{path.relative_to(artifacts).as_posix()}", path, sink)


def _leave(world: World, name: str, path: Path, sink: Sink) -> None:
    try:
        with os.fdopen(open_regular(path, os.O_NOFOLLOW), "rb") as file:
            for start in range(0, MAX_FILE_BYTES, FILE_PART_BYTES):
                data = file.read(FILE_PART_BYTES)
                if not data:
                    return
                sink.file_part(world, name, data, is_first=start == 0)
            if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
                where = f"... cut here: all of it is in {path} on host {world.host}"
                sink.file_part(world, name, f"\n{where}\n".encode(), is_first=False)
    except OSError:
        return  # It is gone, or its disk is; what was read of it is kept.
