"""A network as files: its weights, and how it is made again.

There are three forms: a graph, a reference to a function that makes the network and must be
importable where it is opened, and a pickle as the last resort. Each can run any code when it is
opened: torch's own loader of graphs unpickles and evaluates what a file says. Plain data are the
weights alone, which are put into a network that the caller has made.
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


class UntrustedModelError(ValueError):
    """What was saved can run code when it is opened, and the caller did not allow that."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that was opened.

    Attributes:
        module: In evaluation mode, on the CPU.
        graph: The file that it came from, where it is a graph.
        description: What it takes and returns.
        about: What was written beside it.
        factory: The function or class that makes the network, if it was saved by that name.
    """

    module: Any
    graph: bytes | None
    description: Description
    about: Mapping[str, Any]
    factory: Any = None


def reference_of(value: Any) -> str | None:
    """``module:name`` of a function or class, or None where it cannot be imported by it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    name = name or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    try:
        target = imported(f"{module}:{name}")
    except (ImportError, AttributeError, ValueError):
        return None
    return f"{module}:{name}" if target is value else None


def imported(reference: str) -> Any:
    """The function or class of which ``reference_of`` returned this."""
    module, _, name = reference.partition(":")
    target: Any = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target


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
    from safetensors.torch import save as to_bytes

    form: Form = "graph"
    reason, reference = "", reference_of(factory)
    # Tied weights are written twice: safetensors refuses tensors that share memory.
    weights = {
        name: value.detach().clone().contiguous()
        for name, value in network.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    # save_file makes the file longer and renames it, and a mounted volume may know neither.
    (folder / WEIGHTS_FILE).write_bytes(to_bytes(weights))
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
    facts = {
        **about,
        "format": _FORMAT,
        "form": form,
        "reference": reference,
        "torch": torch.__version__,
        "description": description.to_json(),
    }
    (folder / ABOUT_FILE).write_text(json.dumps(facts, indent=2))
    return form, reason


def read_about(folder: Path) -> tuple[dict[str, Any], Description]:
    """Reads what was written beside a network, and the description in it.

    Raises:
        ValueError: It is none, or a later version of this package wrote it.
    """
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT_FILE).read_text())
        written_in, _, _ = (about[name] for name in ("format", "form", "torch"))
        is_later = written_in > _FORMAT
        description = None if is_later else Description.from_json(about["description"])
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise ValueError(
            f"The model's {ABOUT_FILE} does not describe a network: it was cut short or edited. "
            "Save the model again."
        ) from None
    if description is None:
        raise ValueError(
            f"The model was saved in format {written_in} by sparkdl_runner "
            f"{about.get('sparkdl_runner', 'of a later version')!s:.60}, and this version opens "
            f"format {_FORMAT}. Open it with that version or a later one."
        )
    return about, description


def load(
    folder: Path, *, trust: bool, how_to_trust: str, into: torch.nn.Module | None = None
) -> Network:
    """Opens a network.

    Args:
        folder: Where ``save`` wrote it.
        trust: Whether it may run code, which any form can when it is opened.
        how_to_trust: What a user does to trust it, for the error.
        into: A network of the caller's, whose weights become the saved ones. That needs no trust:
            nothing else is opened.

    Raises:
        UntrustedModelError: It is not trusted.
        ValueError: Its weights are not those of ``into``.
        RuntimeError: This version of torch cannot open it.
    """
    import torch

    about, description = read_about(folder)
    if into is not None:
        _fill(into, folder)
        return Network(module=into, graph=None, description=description, about=about)
    if not trust:
        raise UntrustedModelError(
            f"The model's network is a {about['form']!s:.60}, which can run any code when it is "
            f"opened. If you know who saved it, {how_to_trust}."
        )
    graph = factory = None
    try:
        if about["form"] == "graph":
            graph = (folder / GRAPH_FILE).read_bytes()
            module = load_graph(graph)
        elif about["form"] == "reference":
            factory = imported(about["reference"])
            module = factory()
            _fill(module, folder)
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
    return Network(
        module=module, graph=graph, description=description, about=about, factory=factory
    )


def _fill(network: torch.nn.Module, folder: Path) -> None:
    """Puts the saved weights into a network, and that into evaluation mode."""
    from safetensors.torch import load as from_bytes

    try:
        # load_file maps the file into memory, which not every mount can.
        network.load_state_dict(from_bytes((folder / WEIGHTS_FILE).read_bytes()))
    except RuntimeError as error:
        raise ValueError(
            f"The saved weights are not those of a {type(network).__name__}: "
            + " ".join(str(error).split())
        ) from error
    network.eval()
