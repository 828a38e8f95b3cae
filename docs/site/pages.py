"""Collects the pages of the documentation site from the project's own Markdown: ``make site``.

usage: pages.py FOLDER [URL]

The pages are where a reader of the sources finds them, so links lead through folders that the site
does not have. Each is changed to where its target is in the site. A link to a file that is no page
leads to that file in the project at URL if one is given, else to a copy of it in the site.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"(^```.*?^```$)", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(#[^)\s]+)?\)")
PICTURES = (".png", ".svg")
HOME = "README.md"
PROJECT_PAGES = {
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "conf/README.md": "files-for-clusters.md",
}


def site_names() -> dict[str, str]:
    """Where each page is in the site, by its place in the project."""
    names = {HOME: "index.md", **PROJECT_PAGES}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        names[f"docs/{name}"] = name.replace("README.md", "index.md")
    names["docs/README.md"] = "documentation.md"
    return names


def place_of(target: str, page: str) -> str:
    """The place in the project of a link's target, as a page names it."""
    parts: list[str] = []
    for part in (PurePosixPath(page).parent / target).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def relative(target: str, page: str) -> str:
    """The way from one file of the site to another."""
    return "../" * page.count("/") + target


def for_the_site(text: str, page: str, names: dict[str, str], url: str) -> tuple[str, set[str]]:
    """A page with the site's links, and the files other than pages that it leads to.

    Args:
        text: The page.
        page: Its place in the project.
        names: As ``site_names`` returns them.
        url: The address of this version's files, or "".
    """
    files = set()

    def changed(found: re.Match[str]) -> str:
        place, anchor = place_of(found[1], page), found[2] or ""
        if place in names:
            return f"]({relative(names[place], names[page])}{anchor})"
        if url and not place.endswith(PICTURES):
            return f"]({url}/{place}{anchor})"
        files.add(place)
        return f"]({relative(place, names[page])}{anchor})"

    # Every other part is a block of code.
    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(changed, part) for part in parts[::2]]
    return "".join(parts), files


def contents(names: dict[str, str]) -> str:
    """The table of contents beside each page, in the order of docs/README.md."""
    index = (ROOT / "docs" / "README.md").read_text()
    order = re.findall(r"^\| \[[^\]]+\]\(([^)#]+)\) \|", index, flags=re.MULTILINE)
    parts = {
        "Documentation": [names[f"docs/{name}"] for name in order],
        "The project": sorted(PROJECT_PAGES.values()),
    }
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
        for caption, pages in parts.items()
    )


def contents_of_reference(names: dict[str, str]) -> str:
    """The table of contents below the reference's own page."""
    pages = [PurePosixPath(name).name for name in names.values() if name.startswith("reference/")]
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(sorted({*pages} - {"index.md"})) + "\n```\n"


def write(folder: Path, url: str) -> None:
    """Writes all pages, and the files that they lead to."""
    names = site_names()
    if url:
        version = (ROOT / "sparkdl_runner" / "base" / "version.py").read_text().split('"')[-2]
        url = f"{url}/blob/v{version}"
    shutil.rmtree(folder, ignore_errors=True)
    for place, name in names.items():
        text, files = for_the_site((ROOT / place).read_text(), place, names, url)
        if place == HOME:
            text += contents(names)
        elif place == "docs/reference/README.md":
            text += contents_of_reference(names)
        elif place == "docs/README.md":
            text = f"---\norphan: true\n---\n\n{text}"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file)


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
