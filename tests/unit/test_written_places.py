"""In folders that other users may write, only a few small modules write and delete files.

Every other module that writes or deletes is listed here, with the reason why no link misleads it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import sparkdl_runner

PACKAGE = Path(next(iter(sparkdl_runner.__path__)))

SMALL_MODULES = (
    *(
        "checkpoint/directory/local_storage.py",
        "data/dataset/held_folder.py",
        "base/foreign_file.py",
    ),
    *("base/private_folder.py", "tracking/run/entries_file.py"),
)
IN_PRIVATE_FOLDERS = (
    *("launch/agent/rank_folder.py", "launch/agent/rank_log.py", "data/dataset/lake/delta.py"),
    *("data/remote/cache_folder.py", "data/remote/disk_cache.py", "tensors/saved.py"),
    *("estimator/prediction/mlflow_model.py", "launch/script/folder.py"),
    *("launch/driver/connect/sent_file.py", "estimator/spark_folder.py"),
    *("tracking/models/network_flavor.py", "tracking/rank/outside_ranks.py"),
    *("tracking/report/page.py", "tracking/report/run_folder.py"),
    *("tracking/run/left_run.py", "tracking/run/log_uploads.py", "tracking/run/spool.py"),
    "launch/driver/live_page.py",
)
"""Of ``mkdtemp``, of ``private_folder``, or of a random name and mode 0700."""
NAMES_THAT_NOBODY_KNOWS = (
    *("launch/agent/large_value.py", "launch/agent/worker_process.py", "launch/worker/lifeline.py"),
    *("data/convert/shared_folder.py", "doctor/scripts/folder.py", "jobs/spark/storage.py"),
    "tracking/local_store.py",
    *("launch/driver/connect/relay.py", "launch/driver/connect/relay_call.py"),
)
"""Or a file that must be new, which is not made through a link (``O_EXCL``)."""
OTHERS = {
    "checkpoint/directory/storage.py",  # Of object stores alone, which have no links.
    "base/hdfs.py",  # It has none either.
    "checkpoint/read/host_reader.py",  # Reads another process's memory.
    "checkpoint/directory/in_memory.py",  # The same.
    "tracking/report/events.py",  # Adds to the file that the user names, as the shell's >> does.
    "jobs/spark/class_archive.py",  # In a cache folder that others cannot change.
}

CALLS = {
    *("open_output_stream", "open_append_stream", "delete_dir", "delete_dir_contents"),
    *("delete_file", "rmtree", "removedirs", "write_text", "write_bytes", "unlink", "rmdir"),
    *("touch", "copyfile", "copytree", "symlink", "symlink_to", "link", "hardlink_to"),
}
OF_MODULES = {"os": {"open", "remove", "rename", "replace"}, "shutil": {"move", "copy", "copy2"}}
"""Names that others than these modules have for something else."""


def calls_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name, of = "", ""
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            of = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
        elif isinstance(node.func, ast.Name):
            name = node.func.id
        is_of_a_path = len(node.args) == 1 and not node.keywords
        if (
            name in CALLS
            or name in OF_MODULES.get(of, ())
            or (name == "open" and any(map(is_for_writing, node.args)))
            or (name == "replace" and is_of_a_path)
        ):
            yield name


def is_for_writing(argument: ast.expr) -> bool:
    values = [one.value for one in ast.walk(argument) if isinstance(one, ast.Constant)]
    modes = [one for one in values if isinstance(one, str) and set(one) <= set("rwaxbt+")]
    return any(set(mode) & set("wax+") for mode in modes)


def test_nothing_else_writes_or_deletes_files() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(calls_in(path))
    }
    assert found == {*SMALL_MODULES, *IN_PRIVATE_FOLDERS, *NAMES_THAT_NOBODY_KNOWS, *OTHERS}


def test_what_writes_or_deletes_is_seen(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    for call in (
        *("filesystem.open_output_stream(path)", "shutil.rmtree(folder)", "part.replace(path)"),
        *("open(path, 'w')", "path.open('wb' if new else 'ab')", "os.replace(part, path)"),
    ):
        module.write_text(call)
        assert list(calls_in(module)), call
    for call in (
        "open(path)",
        "text.replace('a', 'b')",
        "replace(config, seed=1)",
        "queue.remove(1)",
    ):
        module.write_text(call)
        assert not list(calls_in(module)), call
