"""A run's description, which MLflow shows at the top of the run's page."""

from __future__ import annotations

from sparkdl_runner.tracking.report.markdown import escaped
from sparkdl_runner.tracking.report.run_summary import AttemptRow, RunSummary

NOTE_TAG = "mlflow.note.content"
# A resumed run's description is replaced if it ends so: then no person has written it.
_OURS = "are in the artifact `report/summary.html`."
# Older stores hold 5000 characters in a tag.
MAX_ATTEMPTS = 10
MAX_CHARACTERS = 150


def description_of(summary: RunSummary) -> str:
    """The run in Markdown: a sentence, the figures, and the ends of the last attempts."""
    figures = " · ".join(f"{escaped(name)} **{value}**" for name, value in summary.figures())
    paragraphs = [escaped(summary.sentence()), figures]
    if len(summary.attempts) > 1 or summary.error:
        paragraphs.append("\n".join(_item(one) for one in summary.attempts[-MAX_ATTEMPTS:]))
    return "\n\n".join([*filter(None, paragraphs), f"The time of a step and errors {_OURS}"])


def may_replace(known: str) -> bool:
    """Whether no person has written this description."""
    return not known or known.endswith(_OURS)


def _item(attempt: AttemptRow) -> str:
    reached = f"{attempt.seconds:.0f} s, to step {attempt.step:,}"
    return f"- attempt {attempt.number}, {reached}: {escaped(attempt.ended_by[:MAX_CHARACTERS])}"
