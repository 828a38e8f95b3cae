"""Shows a running training in a notebook's cell: as a widget of anywidget, or as HTML.

A notebook's browser may not reach the driver's ports, as on Databricks.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sparkdl_runner.base.notebook import show_in_cell
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.report.page import STYLE, sections_of
from sparkdl_runner.tracking.report.run_summary import RunSummary

DRAW_SECONDS = 2.0
_ESM = """export default { render({ model, el }) {
  const draw = () => { el.innerHTML = model.get('content'); };
  model.on('change:content', draw); draw(); } };"""


class LiveCell(Reports):
    """An output that is drawn anew while reports come, and stays in the end.

    Args:
        summarize: Says how the run stands.
    """

    def __init__(self, summarize: Callable[[], RunSummary]) -> None:
        self._summarize = summarize
        self._show = _shown(self._content())
        self._drawn_at = time.monotonic()

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        if time.monotonic() - self._drawn_at > DRAW_SECONDS:
            self.draw()

    def draw(self) -> None:
        """Shows how it stands, unless the notebook is gone."""
        self._drawn_at = time.monotonic()
        with suppress(Exception):
            self._show(self._content())

    def _content(self) -> str:
        return f'{STYLE}<div class="sparkdl-run">{sections_of(self._summarize())}</div>'


def _shown(content: str) -> Callable[[str], None]:
    """Shows HTML in the cell that runs. Returns what shows other HTML in its place."""
    if importlib.util.find_spec("anywidget") is not None:
        import anywidget
        import traitlets

        class RunWidget(anywidget.AnyWidget):
            _esm = _ESM
            content = traitlets.Unicode().tag(sync=True)

        widget = RunWidget(content=content)
        show_in_cell(widget._repr_mimebundle_()[0])
        return lambda newer: setattr(widget, "content", newer)
    text = "how the training stands"
    handle = show_in_cell({"text/html": content, "text/plain": text}, display_id=True)
    return lambda newer: handle.update({"text/html": newer, "text/plain": text}, raw=True)
