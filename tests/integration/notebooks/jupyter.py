"""Runs a notebook cell by cell in a Jupyter kernel of its own."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from traitlets.config import Config

CELL_SECONDS = 500
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Page:
    """A notebook that has run, and what its cells show.

    Args:
        source: The notebook.
        folder: Where it runs.

    Attributes:
        notebook: The cells with their outputs, as a Jupyter notebook.
        folder: Where it ran.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raised.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        self.notebook = nbformat.read(source, as_version=4)
        with tempfile.TemporaryDirectory(prefix="kernel-") as private:
            client = NotebookClient(
                self.notebook,
                timeout=CELL_SECONDS,
                startup_timeout=CELL_SECONDS,
                resources={"metadata": {"path": str(folder)}},
                # Unix sockets: nobody else on this machine can speak to the kernel.
                config=Config(
                    AsyncKernelManager={
                        "transport": "ipc",
                        "connection_file": f"{private}/kernel.json",
                    }
                ),
            )
            client.execute(env=_environment(private))
        # As Jupyter shows them: what a progress bar wrote over itself is gone.
        CoalesceStreamsPreprocessor().preprocess(self.notebook, {})

    def write_html(self, path: Path) -> None:
        """Renders the notebook as Jupyter does, in one file that fetches nothing from elsewhere."""
        exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url="")
        html, _ = exporter.from_notebook_node(self.notebook)
        path.write_text(html)

    def shown(self, words: str) -> str:
        """What the code cell that contains ``words`` shows as text."""
        cells = [cell for cell in self.notebook.cells if cell.cell_type == "code"]
        (cell,) = (cell for cell in cells if words in cell.source)
        return "\n".join(_text(output) for output in cell.outputs)

    def images(self) -> int:
        """How many pictures the cells show."""
        outputs = [out for cell in self.notebook.cells for out in cell.get("outputs", [])]
        return sum("image/png" in out.get("data", {}) for out in outputs)


def _environment(private: str) -> dict[str, str]:
    """A user's environment: nothing says which Python Spark is to start."""
    environment = {name: text for name, text in os.environ.items() if name != "PYSPARK_PYTHON"}
    return {
        **environment,
        "IPYTHONDIR": private,
        # tqdm's advice, given where MLflow is imported, to install widgets in this kernel.
        "PYTHONWARNINGS": "ignore:IProgress not found",
    }


def _text(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return _ESCAPES.sub("", output.text)
    return str(output.data.get("text/plain", ""))
