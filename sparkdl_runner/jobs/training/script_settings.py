"""The settings of a training that is a script, as ``torchrun`` would start it."""

from __future__ import annotations

from typing import Any

import pydantic

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing import Settings
from sparkdl_runner.launch.script.script import Script

# Settings that become arguments of a function.
_OF_A_FUNCTION = ("data", "cache_url", "hyperparameters", "checkpoint_url")


class ScriptSettings(Settings):
    """A script and what belongs to it."""

    script: str | None = pydantic.Field(
        None, description="a script in place of a function, as after torchrun: path/to/train.py"
    )
    module: str | None = pydantic.Field(
        None, description="the same by a module's name, as after torchrun -m: package.train"
    )
    args: list[str] = pydantic.Field([], description="the arguments of script or module, as texts")
    files: list[str] = pydantic.Field(
        [],
        description="what of the script's folder travels to ranks on Spark besides its Python "
        "files, such as '*.yaml' or data/",
    )

    @pydantic.model_validator(mode="after")
    def _script_has_only_args(self) -> ScriptSettings:
        if self.script is not None and self.module is not None:
            raise ValueError("give either script or module")
        if self.script_place is None:
            for key in ("args", "files"):
                if getattr(self, key):
                    raise ValueError(f"{key} is for a script; a function has hyperparameters")
            return self
        for key in _OF_A_FUNCTION:
            if getattr(self, key):
                raise ValueError(
                    f"{key} is for a function, and a script has only args: give it there what it "
                    "needs, such as the path of a conversion, or of a folder for checkpoints"
                )
        return self

    @property
    def script_place(self) -> str | None:
        """The script as the user writes it; None for a training of another kind."""
        return self.script or self.module

    def find_script(self, *, travels: bool) -> Script:
        """Checks the script before anything is started.

        Args:
            travels: Whether its folder is sent to ranks.

        Raises:
            ConfigError: A pattern of ``files`` matches nothing.
            LaunchError: The script cannot run.
        """
        try:
            return Script.find(**self.script_arguments(), travels=travels)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def script_arguments(self) -> dict[str, Any]:
        """The arguments of ``DistributedRunner.run_script``."""
        return {
            "script": self.script_place,
            "args": self.args,
            "module": self.module is not None,
            "files": self.files,
        }
