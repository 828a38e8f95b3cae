"""Sphinx's settings for the documentation site; ``pages.py`` makes its pages."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

_VERSION = Path(__file__).parents[2] / "sparkdl_runner" / "base" / "version.py"

project = "sparkdl_runner"
author = "sparkdl-runner contributors"
version = release = re.findall(r'__version__ = "(.+)"', _VERSION.read_text())[0]

extensions = ["myst_parser"]
# Anchors of headings as the pages' links write them, which is how GitHub makes them.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"sparkdl_runner {version}"
html_copy_source = False
html_show_copyright = False


class SearchByWordsOfNames(SearchEnglish):
    """Finds a name by each of its words: ``heartbeat_timeout_seconds`` by heartbeat too."""

    def split(self, input: str) -> list[str]:  # noqa: A002
        """The words of a text, as they are indexed."""
        words = super().split(input)
        return words + [part for word in words if "_" in word for part in word.split("_") if part]


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.add_search_language(SearchByWordsOfNames)
