"""Advice on errors of MLflow that do not say what to write."""

from __future__ import annotations


def advice(error: BaseException) -> str:
    """What to write in place of what failed; empty if this is no error of those known here."""
    # Only MLflow's own text: to format other objects would run the function's code.
    words = next((argument for argument in error.args if isinstance(argument, str)), "")
    if type(error).__name__ != "MlflowException" or "input_example is required" not in words:
        return ""
    return (
        "From 3.17 on MLflow keeps torch's models as graphs, and traces them with rows that they "
        "take. Write mlflow.pytorch.log_model(model, name='model', input_example=rows.numpy()), or "
        "sparkdl_runner.tracking.log_model(model, input_example=rows); or have MLflow pickle it: "
        "serialization_format='pickle'."
    )
