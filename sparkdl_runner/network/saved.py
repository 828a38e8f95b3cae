"""A network as files: its weights, and how it is made again.

There are three forms. A graph runs nobody's code. A reference names a function that makes the
network, which must be importable where it is opened. A pickle can run any code when it is opened,
and is the last resort.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .exporting import exported, load_graph
from .predictor import Description
from .torch_export import NotExportableError

if TYPE_CHECKING:
    import torch

Form = Literal["graph", "reference", "pickle"]
GRAPH_FILE, PICKLE_FILE = "graph.pt2", "network.pkl"
WEIGHTS_FILE, ABOUT_FILE = "weights.safetensors", "network.json"
_FORMAT = 1


class UntrustedPickleError(ValueError):
    """A network was pickled, and the caller did not allow to open it."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that was opened.

    Attributes:
        module: In evaluation mode, on the CPU.
        graph: The file that it came from, where it is a graph.
        description: What it takes and returns.
        about: What was written beside it.
    """

    module: Any
    graph: bytes | None
    description: Description
    about: Mapping[str, Any]

    @property
    def factory(self) -> Any:
        """The function or class that makes the network, if it was saved by that name."""
        return _imported(self.about["reference"]) if self.about["form"] == "reference" else None


def reference_of(factory: Callable[[], Any] | None) -> str | None:
    """``module:name`` of a function or class, or None where it cannot be imported by it."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if not module or not name or module == "__main__":
        return None
    try:
        found = _imported(f"{module}:{name}")
    except (ImportError, AttributeError):
        return None
    return f"{module}:{name}" if found is factory else None


def save(
    folder: Path,
    network: torch.nn.Module,
    *,
    graph: bytes | None = None,
    description: Description,
    factory: Callable[[], Any] | None = None,
    about: Mapping[str, Any],
) -> tuple[Form, str]:
    """Writes a network into a folder.

    Args:
        folder: An empty one.
        network: On the CPU, in evaluation mode.
        graph: The file that it came from, if it is a graph already.
        description: What it takes and returns; without columns there can be no graph.
        factory: Makes such a network without weights.
        about: Further facts, as JSON.

    Returns:
        The form, and in one line why it is no graph.
    """
    import torch
    from safetensors.torch import save_file

    form: Form = "graph"
    reason, reference = "", reference_of(factory)
    # Tied weights are written twice: safetensors refuses tensors that share memory.
    weights = {
        name: value.detach().clone().contiguous()
        for name, value in network.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    save_file(weights, folder / WEIGHTS_FILE)
    try:
        if graph is None and not description.columns:
            raise NotExportableError("what its columns hold is not known")
        graph = graph or exported(network, description)
        (folder / GRAPH_FILE).write_bytes(graph)
    except NotExportableError as error:
        reason, form = str(error), "pickle" if reference is None else "reference"
    if form == "pickle":
        import cloudpickle

        (folder / PICKLE_FILE).write_bytes(cloudpickle.dumps(network))
    found = {
        **about,
        "format": _FORMAT,
        "form": form,
        "reference": reference,
        "torch": torch.__version__,
        "description": description.to_json(),
    }
    (folder / ABOUT_FILE).write_text(json.dumps(found, indent=2))
    return form, reason


def read_about(folder: Path) -> dict[str, Any]:
    """Reads the description beside a network.

    Raises:
        ValueError: A later version of this package wrote it.
    """
    about: dict[str, Any] = json.loads((folder / ABOUT_FILE).read_text())
    if about["format"] > _FORMAT:
        raise ValueError(
            f"The model was saved in format {about['format']} by sparkdl_runner "
            f"{about.get('sparkdl_runner', 'of a later version')}, and this version opens format "
            f"{_FORMAT}. Open it with that version or a later one."
        )
    return about


def load(folder: Path, *, trust_pickle: bool, how_to_trust: str) -> Network:
    """Opens a network.

    Args:
        folder: Where ``save`` wrote it.
        trust_pickle: Whether a pickle, which can run any code, may be opened.
        how_to_trust: What a user does to trust one, for the error.

    Raises:
        UntrustedPickleError: It is a pickle that is not trusted.
        RuntimeError: This version of torch cannot open it.
    """
    import torch

    about = read_about(folder)
    if about["form"] == "pickle" and not trust_pickle:
        raise UntrustedPickleError(
            "The model's network is a pickle, which can run any code when it is opened. If you "
            f"know who saved it, {how_to_trust}."
        )
    graph = None
    try:
        if about["form"] == "graph":
            graph = (folder / GRAPH_FILE).read_bytes()
            module = load_graph(graph)
        elif about["form"] == "reference":
            from safetensors.torch import load_file

            module = _imported(about["reference"])()
            module.load_state_dict(load_file(folder / WEIGHTS_FILE))
            module.eval()
        else:
            import cloudpickle

            module = cloudpickle.loads((folder / PICKLE_FILE).read_bytes())
    except Exception as error:
        versions = ""
        if about["torch"] != torch.__version__:
            versions = (
                f" It was saved with torch {about['torch']}, and this is {torch.__version__}."
            )
        raise RuntimeError(
            f"The model's network, a {about['form']}, cannot be opened: "
            f"{type(error).__name__}: {error}.{versions}"
        ) from error
    description = Description.from_json(about["description"])
    return Network(module=module, graph=graph, description=description, about=about)


def _imported(reference: str) -> Any:
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
