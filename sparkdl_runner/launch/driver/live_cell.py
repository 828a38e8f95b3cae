"""A run that trains as an output of a notebook's cell: anywidget's, or HTML.

A notebook's browser may not reach the driver's ports, as on Databricks.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable

from sparkdl_runner.base.notebook import show_in_cell
from sparkdl_runner.tracking.report.page import STYLE, sections_of
from sparkdl_runner.tracking.report.run_summary import RunSummary

DRAW_SECONDS = 2.0
_ESM = """export default { render({ model, el }) {
  const draw = () => { el.innerHTML = model.get('content'); };
  model.on('change:content', draw); draw(); } };"""


class LiveCell(threading.Thread):
    """An output that is drawn anew until it is closed, and then stays.

    Args:
        summarize: Says how the run stands.
    """

    def __init__(self, summarize: Callable[[], RunSummary]) -> None:
        super().__init__(name="sparkdl-cell", daemon=True)
        self._summarize = summarize
        self._is_over = threading.Event()
        self._draw = _shown(self._content())

    def run(self) -> None:
        """Draws."""
        is_over = False
        while not is_over:
            is_over = self._is_over.wait(DRAW_SECONDS)
            try:
                self._draw(self._content())
            except Exception:
                return  # The notebook is gone.

    def close(self) -> None:
        """Draws the end."""
        self._is_over.set()
        self.join()

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
