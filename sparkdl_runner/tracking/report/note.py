"""A run's description in MLflow: what the first look at its page should tell."""

from __future__ import annotations

from sparkdl_runner.tracking.report.page import Attempt, Story

NOTE_TAG = "mlflow.note.content"
# By this, what is ours is known when the run is resumed.
_END = "Plots and errors are in the artifact `report/summary.html`."
# A tag of MLflow's holds 5000 characters, in older stores.
MAX_ATTEMPTS = 10
MAX_REASON_CHARACTERS = 150


def note(story: Story) -> str:
    """What happened, as Markdown: a sentence, the figures, and what ended the last attempts."""
    headline = " · ".join(f"{_plain(label)} **{value}**" for label, value in story.headline())
    parts = [story.sentence(), headline]
    if len(story.attempts) > 1 or story.error:
        parts.append("\n".join(_item(one) for one in story.attempts[-MAX_ATTEMPTS:]))
    return "\n\n".join([*filter(None, parts), _END])


def may_replace(known: str) -> bool:
    """Whether a description is none that a person has written."""
    return not known or known.endswith(_END)


def _item(attempt: Attempt) -> str:
    seconds = max(0.0, attempt.ended_at - attempt.began_at)
    reason = _plain(attempt.ended_by[:MAX_REASON_CHARACTERS])
    return f"- attempt {attempt.number}, {seconds:.0f} s, to step {attempt.step:,}: {reason}"


def _plain(text: str) -> str:
    """The text without what Markdown would make of it."""
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return text
