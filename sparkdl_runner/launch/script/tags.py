"""The tags of a script's MLflow run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from sparkdl_runner.base.redaction import HIDDEN, Redactor, is_secret_name, secrets_of
from sparkdl_runner.launch.script.script import Script
from sparkdl_runner.tracking.run.opening.notebook_source import SOURCE_TAG
from sparkdl_runner.tracking.run.parameters_and_tags import GIT_COMMIT_TAG, git_commit

# MLflow's stores take 5,000 or more.
_MOST_CHARACTERS = 2000


def script_tags(script: Script) -> dict[str, str]:
    """The tags: the script, its arguments without secrets, and the commit of its folder."""
    tags = {
        SOURCE_TAG: script.given,
        "sparkdl_runner.launch.script": script.name,
        "sparkdl_runner.script_args": shown_arguments(script.args)[:_MOST_CHARACTERS],
    }
    if script.folder and (commit := git_commit(Path(script.folder))):
        tags[GIT_COMMIT_TAG] = commit
    return tags


def shown_arguments(args: Sequence[str]) -> str:
    """A command line's arguments, without the values of options that are named as secrets are."""
    shown: list[str] = []
    hides_next = False
    for word in args:
        name, equals, _ = word.partition("=")
        is_secret = word.startswith("-") and is_secret_name(name.lstrip("-"))
        if is_secret and equals:
            word = f"{name}={HIDDEN}"
        elif hides_next and not word.startswith("-"):
            word = HIDDEN
        hides_next = is_secret and not equals
        shown.append(word)
    return Redactor(secrets_of())(shlex.join(shown))
