"""conf/README.md names all there is, and its commands are ones that can be given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CONF = Path(__file__).parents[3] / "conf"
README = (CONF / "README.md").read_text()
TABLE = README.partition("| shown how |")[2].partition("\n\n")[0]
COMMANDS = "\n".join(re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)).replace("\\\n", "")


def test_the_table_names_every_file_and_says_how_it_was_shown():
    rows = [line.split("|") for line in TABLE.splitlines()[2:]]
    patterns = {name for row in rows for name in re.findall(r"`([^`]+)`", row[1])}
    for pattern in patterns:
        assert list(CONF.glob(pattern)) or (CONF / pattern).exists(), pattern
    for path in CONF.rglob("*"):
        # Python compiles what a test imports from there.
        if path.is_file() and path.name != "README.md" and path.parent.name != "__pycache__":
            name = path.relative_to(CONF).as_posix()
            assert any(
                Path(name).match(pattern) or (pattern.endswith("/") and name.startswith(pattern))
                for pattern in patterns
            ), name
    for row in rows:
        assert "**run**" in row[3] or "*validated only*" in row[3], row[1]


def test_paths_lead_to_files():
    for path in re.findall(r"(?<![\w./=-])(?:conf|jobs)/[\w./-]+", README):
        assert (CONF.parent / path).exists(), path


@pytest.mark.parametrize(
    "line", [line for line in COMMANDS.splitlines() if re.search(r"conf/\w+/\w+\.sh", line)]
)
def test_variables_are_ones_that_the_script_knows(line):
    variables = re.findall(r"\b([A-Z][A-Z_]+)=", line)
    script = CONF.parent / re.search(r"conf/\w+/\w+\.sh", line)[0]
    known = script.read_text()
    if "checks.sh" in known:
        known += (script.parent / "checks.sh").read_text()
    for name in variables:
        assert re.search(rf"\$\{{?{name}\b", known), name


def test_variables_of_the_bundle_are_ones_that_it_has():
    bundle = (CONF.parent / "databricks.yml").read_text()
    given = re.findall(r"--var (\w+)=", COMMANDS)
    assert given
    for name in given:
        assert f"\n  {name}:" in bundle
