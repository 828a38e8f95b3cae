from __future__ import annotations

import inspect
import sysconfig
from functools import partial

import pytest
from IPython.core.interactiveshell import InteractiveShell

from sparkdl_runner.errors import LaunchError, WorkerFailedError

OURS = "def {name}(call):\n    call()\n"
PLACE = {"rank": 1, "host": "a", "attempt": 0, "output_tail": ()}


def fail():
    cause = ValueError("3")
    raise WorkerFailedError(
        "Rank 1 of 2 on host a raised ValueError: 3", remote_traceback="", **PLACE
    ) from cause


def through(package, name, call, filename="inner.py"):
    """Calls by way of a function of another package."""
    exec(compile(OURS.format(name=name), filename, "exec"), names := {"__name__": package})
    names[name](call)


def callback():
    through("sparkdl_runner.data.batches.loader", "read", fail)


def shown(call):
    with pytest.raises((WorkerFailedError, LaunchError)) as caught:
        call()
    return caught.value, "\n".join(caught.value._render_traceback_())


def test_a_notebook_shows_the_users_frames_and_the_message():
    _, text = shown(partial(through, "sparkdl_runner.runner", "run", fail))
    assert text.startswith("Traceback (most recent call last):\n")
    assert "inner.py" not in text
    assert "errors.WorkerFailedError: Rank 1 of 2 on host a raised ValueError: 3\n" in text
    assert text.endswith("full_traceback.)")


def test_the_whole_is_kept_with_its_cause():
    error, text = shown(partial(through, "sparkdl_runner.runner", "run", fail))
    assert "in run" in error.full_traceback
    assert "direct cause" in error.full_traceback
    assert "direct cause" not in text


def test_a_function_of_the_user_that_this_package_called_is_shown():
    _, text = shown(partial(through, "sparkdl_runner.training.loop.trainer", "fit", callback))
    assert "in callback" in text
    assert "in fit" not in text
    assert "in read" not in text


def test_what_this_package_calls_of_others_is_not_shown():
    library = sysconfig.get_path("purelib") + "/library.py"
    inner = partial(through, "library", "call", fail, filename=library)
    _, text = shown(partial(through, "sparkdl_runner.runner", "run", inner))
    assert "library.py" not in text
    _, text = shown(inner)  # Here the library led to this package.
    assert "library.py" in text


def test_an_error_that_was_not_raised_has_a_text_too():
    assert LaunchError("No Spark session.")._render_traceback_()[0].endswith("No Spark session.")


def test_ipython_asks_for_it():
    assert "value._render_traceback_()" in inspect.getsource(InteractiveShell.showtraceback)
