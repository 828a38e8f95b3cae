"""The documentation does what it says: its blocks run and print what is shown.

How each kind of block is tested is in ``docs_blocks``.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys

import pytest

from docs_blocks import BLOCKS, PAGES, ROOT, Block, blocks_of, lines_of, of_kind

pytestmark = pytest.mark.integration

SEPARATOR = "---- end of block"
# Where the command is not installed (yet), its module is the same.
COMMAND = (
    'sparkdl-runner() { python -c "import sys; from sparkdl_runner.cli import main; '
    'sys.exit(main())" "$@"; }\n'
)

# What reads and writes tables.
IN_BOTH_LANES = {"data"}

# Run in short: test_digits and the system's tests do this work in full.
DIGITS = "python jobs/train.py --example digits --num-proc 2 --backend torch"
SHORTENED = {f"{DIGITS} --hyperparameters epochs=3": f"{DIGITS} --help"}

# What several pages show runs once.
COMMANDS = list({block.text: block for block in of_kind("bash", "bash exit 2")}.values())


def run(command: list[str], **options) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    environment["PYSPARK_PYTHON"] = sys.executable
    environment["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page.stem in IN_BOTH_LANES else pytest.mark.one_lane)
        for page in PAGES
        if any(block.kind == "python" for block in blocks_of(page))
    ],
    ids=lambda page: getattr(page, "stem", None),
)
def test_python_blocks_run_and_print_what_is_shown(tmp_path, page, new_store):
    new_store(tmp_path)
    blocks = blocks_of(page)
    parts = [block.text for block in blocks if block.kind == "python"]
    end = f"\nprint({SEPARATOR!r}, flush=True)\n"
    (tmp_path / "page.py").write_text(end.join([*parts, ""]))
    done = run([sys.executable, "page.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    printed = iter(done.stdout.split(SEPARATOR + "\n"))
    before, output = "", ""
    for block in blocks:
        if block.kind == "python":
            output = next(printed)
        elif block.kind == "text" and before == "python":
            check_output(block, output)
        before = block.kind


@pytest.mark.one_lane
@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_bash_blocks_run(tmp_path, block, new_store):
    new_store(tmp_path)
    for folder in ("conf", "jobs"):  # What a block writes is not to be left in this project.
        (tmp_path / folder).symlink_to(ROOT / folder)
    text = SHORTENED.get(block.text.strip(), block.text)
    done = run(["bash", "-euc", COMMAND + text], cwd=tmp_path)
    wanted = int(block.kind.partition("exit ")[2] or 0)
    assert done.returncode == wanted, done.stdout[-2000:] + done.stderr[-3000:]
    after = BLOCKS[BLOCKS.index(block) + 1 :][:1]
    if after and after[0].page == block.page and after[0].kind == "text":
        check_output(after[0], done.stdout + done.stderr)


def check_output(shown: Block, output: str) -> None:
    """Each line that is shown is one that was printed, but for what ``…`` stands for."""
    missing = []
    for line in shown.text.splitlines():
        pattern = "[^\n]*".join(re.escape(part) for part in line.split("…"))
        if not re.search(f"^{pattern}$", output, flags=re.MULTILINE):
            missing.append(line)
    assert not missing, f"{shown} shows {missing}; this was printed:\n{output}"


@functools.cache
def help_of(*command: str) -> str:
    done = run(["bash", "-euc", COMMAND + shlex.join([*command, "--help"])], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def own_calls() -> list[tuple[str, tuple[str, ...], list[str]]]:
    """Each call of this project's own commands in the pages: where, what, and its options."""
    found = []
    for block in BLOCKS:
        if not block.kind.startswith("bash"):
            continue
        for line in lines_of(block):
            words = shlex.split(line, comments=True)
            for at, word in enumerate(words):
                rest = words[at + 1 :]
                if re.search(r"(^|/)jobs/\w+\.py$", word):
                    script = word[word.index("jobs/") :]
                    command: tuple[str, ...] = ("python", script)
                    if script == "jobs/benchmark.py":
                        command = (*command, rest[0])
                elif word == "sparkdl-runner":
                    subcommands = 2 if rest[0] == "checkpoints" else 1
                    command = (word, *rest[:subcommands])
                elif word in ("conf/pack_environment.sh", "conf/horovod/build.sh"):
                    command = (word,)
                else:
                    continue
                options = [one.partition("=")[0] for one in rest if one.startswith("--")]
                found.append((str(block), command, options))
                break
    return found


@pytest.mark.one_lane
def test_options_of_own_commands_exist():
    calls = own_calls()
    assert len(calls) > 15
    for where, command, options in calls:
        text = help_of(*command)
        for option in options:
            assert re.search(rf"{option}\b", text), f"{where}: {' '.join(command)} has no {option}"
