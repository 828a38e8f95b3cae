"""The site has all pages, and each link of theirs leads to a page or a file that is there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from docs_blocks import PAGES, REFERENCE, ROOT
from sparkdl_runner.base.version import __version__


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs/site/pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def links(folder: Path) -> set[tuple[Path, str]]:
    """Each page with each of its links that lead to no other site."""
    return {
        (page, target)
        for page in folder.rglob("*.md")
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    }


def test_all_pages_are_there_and_every_link_leads_to_a_file(
    pages: ModuleType, tmp_path: Path
) -> None:
    pages.write(tmp_path, "")
    written = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.md")}
    assert len(written) == len(PAGES) + len(REFERENCE) + 5
    assert {"index.md", "quickstart.md", "reference/runner.md", "security.md"} <= written
    found = links(tmp_path)
    assert len(found) > 150
    assert [(page, to) for page, to in found if not (page.parent / to).exists()] == []
    contents = (tmp_path / "index.md").read_text().partition("```{toctree}")[2]
    listed = set(re.findall(r"^([\w-]+\.md|reference/index\.md)$", contents, re.MULTILINE))
    assert listed == {page for page in written if "reference/" not in page} - {
        *("index.md", "documentation.md")
    } | {"reference/index.md"}


def test_files_that_are_no_pages_are_those_of_the_project_if_its_address_is_known(
    pages: ModuleType, tmp_path: Path
) -> None:
    pages.write(tmp_path, "https://example.com/o/n")
    index = (tmp_path / "index.md").read_text()
    assert f"](https://example.com/o/n/blob/v{__version__}/notebooks/01_" in index
    assert not (tmp_path / "notebooks").exists()
    assert "](docs/demo.svg)" in index
    assert (tmp_path / "docs" / "demo.svg").exists()


def test_what_looks_like_a_link_in_code_stays(pages: ModuleType) -> None:
    names = {"docs/a.md": "a.md", "README.md": "index.md"}
    text = "[x](../README.md#y)\n```python\nx[0](../README.md)\n```\n"
    changed, files = pages.for_the_site(text, "docs/a.md", names, "")
    assert changed == "[x](index.md#y)\n```python\nx[0](../README.md)\n```\n"
    assert files == set()
