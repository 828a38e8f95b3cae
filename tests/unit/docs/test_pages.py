"""Pages hang together: links, paths, extras, syntax, and tables that name every setting."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import inspect
import re
import subprocess
from pathlib import Path

import pytest

from docs_blocks import BLOCKS, KINDS, PAGES, REFERENCE, ROOT, blocks_of, of_kind, prose
from every_job import EVERY_JOB
from sparkdl_runner import RunConfig, Trainer
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.doctor.findings.versions import OLDEST_PYTHON, SUPPORTED
from sparkdl_runner.doctor.installation import INSTALLATION
from sparkdl_runner.estimator import TorchEstimator
from sparkdl_runner.estimator.params import TorchEstimatorParams
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.spark.source import Source
from sparkdl_runner.jobs.tuning.settings import SearchSettings
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.training.description.options import OPTIONS, text_of

ALL = [*PAGES, *REFERENCE]
NAMING_THE_PYTHONS = ("quickstart.md", "clusters.md")
SETTINGS = {f"yaml {job.name}": job.settings for job in EVERY_JOB}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.add(anchor)
    return found


def test_all_pages_are_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in PAGES:
        assert page.name == "README.md" or f"]({page.name})" in index


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_begins_with_what_it_answers(page):
    first = page.read_text().split("\n\n")[1]
    assert first.split()[0] in {"How", "What", "Which"}, first


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        place, _, anchor = target.partition("#")
        file = (page.parent / place).resolve() if place else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_exist(page):
    text = page.read_text()
    for path in re.findall(r"(?<![\w.])(?:conf|jobs|notebooks|sparkdl_runner)/[\w./-]*\w", text):
        assert (ROOT / path).exists(), f"{page.name}: {path}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_line_is_left_open(page):
    fences = re.findall(r"^```", page.read_text(), flags=re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of(page))
    assert {block.kind for block in blocks_of(page)} <= KINDS
    assert not re.search(r"TODO|XXX|/work/|/root/", page.read_text())


def test_what_contributing_leads_to_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"\]\(([^)#]+)", text)
    paths += re.findall(r"`((?:conf|jobs|sparkdl_runner|tests)/[\w./]+)`", text)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path.replace("NAME", "convert")).exists()] == [
        "sparkdl_runner/launch/backends/NAME_backend.py"
    ]


def test_extras_that_are_named_exist():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    text = "".join(page.read_text() for page in PAGES)
    named = re.findall(r"'(?:sparkdl-runner|\.)\[([\w,]+)\]'", text)
    assert named
    for extras in named:
        assert set(extras.split(",")) <= set(setup["options.extras_require"])


def test_the_pythons_are_the_same_everywhere():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    *before, last = re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"])
    assert setup["options"]["python_requires"] == f">={before[0]}"
    words = f"Python {', '.join(before)} or {last}"
    pages = [ROOT / "README.md", *(ROOT / "docs" / name for name in NAMING_THE_PYTHONS)]
    assert [page.name for page in pages if words not in page.read_text()] == []


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind.startswith("python")], ids=str)
def test_python_blocks_compile(block):
    ast.parse(block.text)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind.startswith("bash")], ids=str)
def test_bash_blocks_are_bash(block):
    done = subprocess.run(
        ["bash", "-n"], input=block.text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", of_kind(*SETTINGS), ids=str)
def test_yaml_blocks_are_settings_of_their_job(tmp_path, block):
    file = tmp_path / "settings.yaml"
    file.write_text(block.text)
    assert load(SETTINGS[block.kind], str(file), {})


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.mark.parametrize("settings", [*(job.settings for job in EVERY_JOB), SearchSettings, Source])
def test_the_keys_of_jobs_are_all_there(settings):
    for key in settings.model_fields:
        if key in OPTIONS:
            continue  # They are in the table of the next test.
        row = rf"^\| (`{key}`|key of `{key}`) \|"  # A key of its own, or a table of keys below it.
        assert re.search(row, page("jobs.md"), flags=re.MULTILINE), key


def defaults(text: str) -> dict[str, str]:
    """What the tables of a page say: the first column's names, and the second column."""
    return dict(re.findall(r"^\| `(\w+)` \| *`?([^`|]*?)`? *\|", text, flags=re.MULTILINE))


def test_the_tables_of_defaults_are_the_codes():
    shown = defaults(page("failures.md"))
    limits = [field for field in dataclasses.fields(RunConfig) if "seconds" in field.name]
    for field in limits:
        if field.default is None:
            assert shown[field.name] == "none"
        elif field.name != "restart_backoff_seconds":
            assert float(shown[field.name]) == field.default
    shown = defaults(page("tracking.md"))
    for field in dataclasses.fields(Tracking):
        value = shown[field.name]
        if isinstance(field.default, (bool, str, float)):
            assert ast.literal_eval(value) == field.default


def test_the_reference_lists_every_option_and_its_default():
    estimator = page("reference/estimator.md").partition("## TorchEstimator")[2].partition("###")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", estimator, flags=re.MULTILINE))
    assert set(shown) == {one.name for one in TorchEstimator().params}
    for name in OPTIONS:
        default = TorchEstimatorParams.DEFAULTS.get(name)
        by_default = "" if default is None else f"; by default {default!r}"
        text = text_of(name)
        assert shown[name] == f"{text[0].upper()}{text[1:]}{by_default}.", name
    trainer = page("reference/training.md").partition("## Trainer")[2].partition("###")[0]
    for name in OPTIONS.keys() & inspect.signature(Trainer).parameters.keys():
        assert f"| `{name}` | {shown[name]} |" in trainer


def test_the_arguments_of_checkpoints_are_all_there():
    text = page("checkpoints.md")
    for name in inspect.signature(CheckpointManager).parameters:
        assert f"`{name}`" in text or f"CheckpointManager({name}, …)" in text


def test_the_table_of_folders_is_the_tree():
    table = page("design.md").partition("| folder | holds |")[2].partition("\n\n")[0]
    names = set(re.findall(r"`(\w+)`", table))
    package = ROOT / "sparkdl_runner"
    for name in names:
        assert (package / f"{name}.py").exists() or (package / name).is_dir(), name
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert not folders - names


def test_the_versions_that_are_supported_are_the_doctors():
    table = page("versions.md").partition("## What is supported")[2].partition("\n\n[")[0]
    named = dict(re.findall(r"^\| ([\w, ]+) \| ([^|]+) \|", table, flags=re.MULTILINE))
    for package, (least, _) in SUPPORTED.items():
        name = {"pyspark": "Spark"}.get(package, package).lower()
        assert any(least in text for row, text in named.items() if name in row.lower()), package
    assert named["Python"].startswith(OLDEST_PYTHON)


def test_the_doctors_findings_are_all_there():
    # That module brings all checks.
    from sparkdl_runner.doctor.examination import EXECUTOR, HOST, PYTHON, SESSION, START

    names = set().union(*(kind.names for kind in (PYTHON, HOST, EXECUTOR, START, SESSION)))
    names |= INSTALLATION.names
    assert len(names) > 25
    shown = page("doctor.md")
    assert {name for name in names if f"`{name}`" not in shown} == set()
