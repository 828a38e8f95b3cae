"""``@distributed``, with the arguments and the meaning of AI Runtime's, on this machine's ranks."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, cast

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import LaunchError, RunnerError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.calls.added_variables import with_variables
from sparkdl_runner.launch.driver.calls.call import check_call
from sparkdl_runner.launch.driver.calls.checks import check_config
from sparkdl_runner.launch.driver.local_gpus import gpu_names, visible_gpus
from sparkdl_runner.launch.wire.function import on_each_rank
from sparkdl_runner.runner import DistributedRunner

P = ParamSpec("P")
T = TypeVar("T")

_KEEP: Any = object()
"""As an argument of ``with_overrides``: as it was."""


@dataclass(frozen=True)
class _Settings:
    num_accelerators: int | None
    accelerator_type: str | None
    timeout: float | None
    run_config: RunConfig | None

    def __post_init__(self) -> None:
        count, timeout = self.num_accelerators, self.timeout
        if callable(count):
            raise TypeError(
                "@distributed needs parentheses, also without arguments: @distributed()."
            )
        if count is not None and (type(count) is not int or count < 1):
            raise ValueError(
                f"num_accelerators is {count!r}; it must be a positive number of ranks, or None "
                "for one on each GPU of this machine."
            )
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0
        ):
            raise ValueError(
                f"timeout is {timeout!r}; it must be a positive number of seconds, or None for no "
                "limit."
            )
        check_config(self.run_config)


class DistributedFunction(Generic[P, T]):
    """A function that ``@distributed`` decorates. ``distributed`` makes it."""

    def __init__(self, func: Callable[P, T], settings: _Settings) -> None:
        functools.update_wrapper(self, func)
        self.func = func
        """The function itself, to be called in this process."""
        self._settings = settings

    @property
    def num_accelerators(self) -> int | None:
        """How many ranks; None for one on each GPU of this machine."""
        return self._settings.num_accelerators

    @property
    def accelerator_type(self) -> str | None:
        """The accelerator that was named."""
        return self._settings.accelerator_type

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises RunnerError, as AI Runtime's: it says whether one process or all ranks run it."""
        name = self.func.__name__
        raise RunnerError(
            f"{name} is decorated by @distributed and was called directly: call "
            f"{name}.distributed(...) to run it in all ranks, or {name}.func(...) to run it here."
        )

    def with_overrides(
        self,
        num_accelerators: int | None = None,
        accelerator_type: Any = None,
        remote: bool | None = None,
        timeout: float | None = _KEEP,
        *,
        gpus: int | None = None,
        gpu_type: Any = None,
        run_config: RunConfig | None = None,
    ) -> DistributedFunction[P, T]:
        """The same function with other settings; those left out stay. See ``distributed``."""
        _refuse_remote(remote, self.func.__name__)
        given = {
            "num_accelerators": _one_of("num_accelerators", num_accelerators, "gpus", gpus),
            "accelerator_type": _type_name(accelerator_type, gpu_type),
            "run_config": run_config,
        }
        changed: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        if timeout is not _KEEP:
            changed["timeout"] = timeout
        return DistributedFunction(self.func, replace(self._settings, **changed))

    def distributed(self, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Runs the function in all ranks, and waits for them.

        Each call has GPUs of its own: one that finds too few free waits for other calls of this
        process.

        Args:
            *args: The function's arguments by position.
            **kwargs: The function's arguments by name.

        Returns:
            A list of the ranks' values: that of rank 0 first, then that of rank 1.

        Raises:
            LaunchError: There are more ranks than GPUs on this machine.
            TimeoutError: ``timeout`` has passed. All ranks are ended.
            Exception: What ``DistributedRunner.run`` raises.
        """
        check_call(self.func, *args, **kwargs)
        settings = self._settings
        num_proc = self._num_proc()
        with _GPUS.taken(num_proc) as gpus:
            variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
            config = with_variables(settings.run_config or RunConfig(), variables, "@distributed")
            runner = DistributedRunner(num_proc=-num_proc, run_config=config)
            if settings.timeout is None:
                return runner.gather(self.func, *args, **kwargs)
            future = runner.submit(on_each_rank(self.func), *args, **kwargs)
            try:
                return cast(list[T], future.result(settings.timeout))
            except TimeoutError:
                if future.done():  # The function's own.
                    raise
                raise TimeoutError(
                    f"{self.func.__name__} was ended after timeout={settings.timeout:g} seconds: "
                    "raise timeout=, or pass None for no limit."
                ) from None
            finally:
                # After Ctrl-C, too. The GPUs are free once the ranks have ended.
                future.cancel()
                wait([future])

    def _num_proc(self) -> int:
        wanted, gpus = self.num_accelerators, visible_gpus()
        name, visible = self.func.__name__, len(gpus)
        if not visible:
            named = f", and {self.accelerator_type} has no effect" if self.accelerator_type else ""
            few = "" if wanted else " (num_accelerators=2 starts two)"
            count = wanted or 1
            ranks = "1 rank runs" if count == 1 else f"{count} ranks run"
            tell(f"{name}: this machine shows no GPU: {ranks} on its CPU{few}{named}.")
            return count
        if wanted is not None and wanted > visible:
            raise LaunchError(
                f"{name} asks for {wanted} accelerators, and this machine shows {visible} GPU(s): "
                f"lower num_accelerators to {visible} or less, or use DistributedRunner(num_proc="
                f"{wanted}).gather({name}.func, …) on a Spark cluster."
            )
        if self.accelerator_type:
            model = _model_of(self.accelerator_type)
            others = sorted({other for other in gpu_names(gpus) if not model.search(other)})
            if others:
                tell(
                    f"{name} names {self.accelerator_type}, and this machine has "
                    f"{' and '.join(others)}: the ranks take what is there."
                )
        return wanted or visible


class _Gpus:
    """The GPUs of this machine, and which of them the calls of this process have."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, count: int) -> Iterator[list[str]]:
        """Takes ``count`` GPUs, or none where there is none, and gives them back at the end."""
        visible = visible_gpus()
        with self._changed:
            if visible and len(visible) - len(self._taken) < count:
                tell(f"{count} GPU(s) are waited for: other calls of @distributed have them.")
            self._changed.wait_for(lambda: not visible or len(self._free(visible)) >= count)
            gpus = self._free(visible)[:count]
            self._taken.update(gpus)
        try:
            yield gpus
        finally:
            with self._changed:
                self._taken.difference_update(gpus)
                self._changed.notify_all()

    def _free(self, visible: list[str]) -> list[str]:
        return [gpu for gpu in visible if gpu not in self._taken]


_GPUS = _Gpus()


def distributed(
    num_accelerators: int | None = None,
    accelerator_type: Any = None,
    remote: bool = False,
    timeout: float | None = None,
    *,
    gpus: int | None = None,
    gpu_type: Any = None,
    run_config: RunConfig | None = None,
) -> Callable[[Callable[P, T]], DistributedFunction[P, T]]:
    """Decorates a function that ``torch.distributed`` trains in, one rank on each GPU.

    The ranks are processes of this machine, and need no Spark. Without a GPU they run on the CPU,
    and a line says so.

    Args:
        num_accelerators: How many ranks; None for one on each visible GPU, or one on the CPU.
        accelerator_type: As AI Runtime's, a text or a member of ``GPUType``. The ranks take the
            GPUs that this machine has; a line says so where these are others.
        remote: Only False: there are no GPUs elsewhere.
        timeout: After how many seconds the ranks are ended; None, the default, for no limit.
        gpus: ``num_accelerators`` by its earlier name.
        gpu_type: ``accelerator_type`` by its earlier name.
        run_config: All further settings.

    Returns:
        The decorator. A function that it decorates runs by ``train.distributed(…)``.

    Raises:
        TypeError: ``run_config`` is no RunConfig, or the parentheses are missing.
        ValueError: A number is not positive, or an argument is given by both its names.
        LaunchError: ``remote`` is True.

    Example:
        >>> @distributed(num_accelerators=2)
        ... def train(learning_rate): ...
        >>> losses = train.distributed(0.1)  # doctest: +SKIP
    """
    settings = _Settings(
        num_accelerators=_one_of("num_accelerators", num_accelerators, "gpus", gpus),
        accelerator_type=_type_name(accelerator_type, gpu_type),
        timeout=timeout,
        run_config=run_config,
    )

    def decorate(func: Callable[P, T]) -> DistributedFunction[P, T]:
        _refuse_remote(remote, func.__name__)
        return DistributedFunction(func, settings)

    return decorate


def _refuse_remote(remote: bool | None, name: str) -> None:
    if remote:
        raise LaunchError(
            "remote is True, and GPUs of AI Runtime that are elsewhere are reached by its own "
            f"package alone: leave remote out for this machine's, or use "
            f"DistributedRunner(num_proc=8).gather({name}.func, …) for ranks on a Spark cluster."
        )


def _one_of(name: str, value: Any, earlier: str, earlier_value: Any) -> Any:
    if value is not None and earlier_value is not None:
        raise ValueError(f"{name} and {earlier} are one setting by two names: leave {earlier} out.")
    return earlier_value if value is None else value


def _type_name(accelerator_type: Any, gpu_type: Any) -> str | None:
    given = _one_of("accelerator_type", accelerator_type, "gpu_type", gpu_type)
    return None if given is None else str(getattr(given, "value", given))


def _model_of(accelerator_type: str) -> re.Pattern[str]:
    """Finds the GPU of a type, such as ``H100`` or ``GPU_8xH100``, in the name of one.

    An A10G is an A10, and an A100 is not.
    """
    model = re.sub(r"^(GPU_)?(\d+x)?", "", accelerator_type, flags=re.IGNORECASE)
    return re.compile(rf"\b{re.escape(model)}(?!\d)", re.IGNORECASE)
