"""The end of a run in MLflow: pages of its models, its report, its files, its status."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sparkdl_runner.errors import RunCancelledError
from sparkdl_runner.tracking.report.description import NOTE_TAG, description_of, may_replace
from sparkdl_runner.tracking.report.page import write_page
from sparkdl_runner.tracking.report.run_folder import RunFolder
from sparkdl_runner.tracking.report.run_summary import RunSummary
from sparkdl_runner.tracking.run.model_pages import complete_models
from sparkdl_runner.tracking.run.opening.opened import Opened
from sparkdl_runner.tracking.run.server import REQUEST_SECONDS
from sparkdl_runner.tracking.run.server_calls import problem_within

UPLOAD_SECONDS = 600.0


class RunEnd:
    """Steps with a limited time each; where one fails, its problem is noted and the others go on.

    Args:
        opened: The run.
        folder: The files to upload; removed once they are.
        problems: Gets a sentence for each step that failed.
    """

    def __init__(self, opened: Opened, folder: RunFolder, problems: list[str]) -> None:
        self._opened = opened
        self._client = opened.client
        self._run_id: str = opened.run.info.run_id
        self._folder = folder
        self._problems = problems

    def try_step(self, action: Callable[[], Any], seconds: float, problem: str) -> bool:
        """Calls MLflow for so long, at least as long as a request. Returns whether it worked."""
        wrong = problem_within(action, max(seconds, REQUEST_SECONDS))
        if wrong is not None:
            self._problems.append(f"{problem}: {wrong}")
        return wrong is None

    def finish(
        self,
        status: str,
        summarize: Callable[[Any], RunSummary] | None,
        seconds: float,
        ended_at: float | None = None,
    ) -> None:
        """Takes all steps.

        Args:
            status: How the run ended.
            summarize: Makes the report's summary of MLflow's ``Run``; None for no report.
            seconds: How long models and report may take, each.
            ended_at: When the training ended, in seconds since the epoch; None for now.
        """
        client, run_id, folder = self._client, self._run_id, self._folder.path

        def write_report(summarize: Callable[[Any], RunSummary]) -> None:
            run = client.get_run(run_id)
            summary = summarize(run)
            write_page(summary, folder / "report")
            if may_replace(run.data.tags.get(NOTE_TAG, "")):
                client.set_tag(run_id, NOTE_TAG, description_of(summary))

        lack = "pages of models lack parameters and metrics"
        self.try_step(lambda: complete_models(client, run_id), seconds, lack)
        if summarize is not None:
            self.try_step(lambda: write_report(summarize), seconds, "there is no report")
        left_here = f"logs and report are not in MLflow, but in {folder}"
        upload = partial(client.log_artifacts, run_id, str(folder))
        if self.try_step(upload, UPLOAD_SECONDS, left_here):
            self._folder.remove()
        self.set_status(status, ended_at)

    def set_status(self, status: str, ended_at: float | None = None) -> None:
        """Ends the run, unless the caller of ``run`` has it open."""
        end = partial(self._opened.set_status, status, ended_at)
        self.try_step(end, REQUEST_SECONDS, f"the run's status is not set to {status}")


def status_of(error: BaseException | None, stopped: str) -> str:
    """MLflow's status of a run that ended by an error, if by any, or was asked to stop early."""
    if isinstance(error, (RunCancelledError, KeyboardInterrupt)) or (stopped and not error):
        return "KILLED"
    return "FINISHED" if error is None else "FAILED"
