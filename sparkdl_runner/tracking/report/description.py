"""A run's description, which MLflow shows at the top of the run's page."""

from __future__ import annotations

from collections.abc import Iterable

from sparkdl_runner.base.foreign_name import is_run_id
from sparkdl_runner.tracking.report.markdown import escaped
from sparkdl_runner.tracking.report.run_summary import AttemptRow, RunSummary

NOTE_TAG = "mlflow.note.content"
# A resumed run's description is replaced if it ends so: then no person has written it.
_OURS = "are in the artifact `report/summary.html`."
# Older stores hold 5000 characters in a tag.
MAX_ATTEMPTS = 10
MAX_CHARACTERS = 150
MAX_END_CHARACTERS = 500


def description_of(summary: RunSummary) -> str:
    """The run in Markdown, what one wants to know first.

    That is why it ended, if it was not at its end, else its last metrics; then the ends of the
    last attempts, and its time.
    """
    end = escaped(summary.end()[:MAX_END_CHARACTERS])
    warnings = map(escaped, (summary.warning, summary.checkpoint_warning, summary.lost_entries))
    attempts = summary.attempts[-MAX_ATTEMPTS:]
    paragraphs = [
        f"**{end}**" if end else "",
        _own_run(summary.function_run),
        _figures(summary.values()),
        *(f"Warning: {warning}" for warning in warnings if warning),
        "\n".join(map(_item, attempts)) if len(attempts) > 1 or summary.error else "",
        _figures(summary.pace()),
        escaped(summary.sentence()),
    ]
    return "\n\n".join([*filter(None, paragraphs), f"The time of a step and errors {_OURS}"])


def may_replace(known: str) -> bool:
    """Whether no person has written this description."""
    return not known or known.endswith(_OURS)


def _own_run(run_id: str) -> str:
    if not is_run_id(run_id):
        return ""
    return f"What the function logged is in [a run that it made](#/runs/{run_id})."


def _figures(figures: Iterable[tuple[str, str]]) -> str:
    return " · ".join(f"{escaped(name)} **{value}**" for name, value in figures)


def _item(attempt: AttemptRow) -> str:
    reached = f"{attempt.seconds:.0f} s, to step {attempt.step:,}"
    return f"- attempt {attempt.number}, {reached}: {escaped(attempt.ended_by[:MAX_CHARACTERS])}"
