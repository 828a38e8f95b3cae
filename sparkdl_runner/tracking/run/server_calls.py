"""What MLflow is asked while a run is opened: what it raises, or that it hangs, in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.redaction import Redactor
from sparkdl_runner.tracking.run.deadline import TookTooLongError, within

_Result = TypeVar("_Result")
# In the words of those who write Python, and of those who write YAML.
WITHOUT = "run without MLflow: RunConfig(tracking=False), or mlflow: false for the train job."


@dataclass(frozen=True, kw_only=True)
class Asking:
    """A store of MLflow's, and how long each of its answers may take."""

    uri: str
    timeout_seconds: float

    def __call__(
        self,
        action: Callable[[], _Result],
        what: str,
        *,
        when_late: Callable[[_Result], Any] | None = None,
    ) -> _Result:
        """Does something with MLflow.

        Args:
            action: What to do, in a thread.
            what: The same in words: "MLflow cannot ...".
            when_late: What to do with a result that comes when time was up.

        Raises:
            LaunchError: MLflow raised something, or gave no answer in time.
        """
        try:
            return within(action, self.timeout_seconds, when_late=when_late)
        except TookTooLongError:
            raise LaunchError(no_answer(self.uri, what, self.timeout_seconds)) from None
        except Exception as error:
            raise LaunchError(
                self._sentence(error, what)
            ) from None  # MLflow's own way to that point tells a person nothing.

    def _sentence(self, error: Exception, what: str) -> str:
        told = Redactor()((str(error).strip() or type(error).__name__).splitlines()[0][:500])
        code = getattr(error, "error_code", "")
        advice = "Check the tracking URI and the run's settings."
        if code in ("PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED") or any(
            sign in told for sign in (" 401", " 403")
        ):
            advice = (
                "The server refuses these credentials: give this driver ones that may do that "
                "(MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, MLFLOW_TRACKING_TOKEN, "
                "or DATABRICKS_HOST and DATABRICKS_TOKEN)."
            )
        elif code == "RESOURCE_DOES_NOT_EXIST":
            advice = "It is not there: leave run_id out for a new run, or correct it."
        return (
            f"MLflow at {Redactor()(self.uri)} cannot {what}: {told.rstrip('.')}. {advice} To "
            f"{WITHOUT}"
        )


def no_answer(uri: str, what: str, timeout_seconds: float) -> str:
    """Says that a store that is there hangs, and what to do."""
    return (
        f"MLflow at {Redactor()(uri)} gave no answer within {timeout_seconds:g} s when it was to "
        f"{what}. Look at the server's log, and whether its database answers; wait longer, "
        f"with a greater opening_timeout_seconds; or {WITHOUT}"
    )
