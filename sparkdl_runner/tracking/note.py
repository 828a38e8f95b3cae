"""A run's description in MLflow: what the first look at its page should tell."""

from __future__ import annotations

from sparkdl_runner.tracking.story import Attempt, Story

NOTE_TAG = "mlflow.note.content"
# By this, what is ours is known when the run is resumed.
_END = "Plots and errors are in the artifact `report/summary.html`."
# A tag of MLflow's holds 5000 characters, in older stores.
MAX_ATTEMPTS = 10
MAX_REASON_CHARACTERS = 200


def note(story: Story) -> str:
    """What happened, as Markdown: one sentence, and a row for each of the last attempts."""
    rows = [_row(attempt) for attempt in story.attempts[-MAX_ATTEMPTS:]]
    head = "| attempt | took | last step | ended by |\n|---|---|---|---|\n"
    table = f"{head}{''.join(rows)}\n" if rows else ""
    return f"{story.sentence()}\n\n{table}{_END}"


def may_replace(known: str) -> bool:
    """Whether a description is none that a person has written."""
    return not known or known.endswith(_END)


def _row(attempt: Attempt) -> str:
    seconds = max(0.0, attempt.ended_at - attempt.began_at)
    reason = attempt.ended_by[:MAX_REASON_CHARACTERS]
    for sign in "\\`*_[]<>|":
        reason = reason.replace(sign, f"\\{sign}")
    return f"| {attempt.number} | {seconds:.0f} s | {attempt.step:,} | {reason} |\n"
