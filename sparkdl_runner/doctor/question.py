"""The question to the doctor: the run that is planned, and Spark's settings before a session."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

UNPACK_SECONDS = 300.0
YARN_ATTEMPTS = "spark.yarn.maxAppAttempts"


@dataclass(frozen=True, kw_only=True)
class Question:
    """The run that is planned.

    Attributes:
        num_proc: How many ranks.
        master: Spark's master; None for what Spark is configured to, else ``local[num_proc]``.
        backends: Those that ranks may use: ``"horovod"``, ``"torch"``, ``"tensorflow"``.
        gpus: Whether ranks need GPUs.
        tracking_uri: MLflow's; None if none is set.
        folders: URLs of folders that all hosts must be able to write.
        preflight: Whether ranks are to measure how fast the hosts are.
        conf: Spark settings, as spark-submit takes them.
    """

    num_proc: int = 2
    master: str | None = None
    backends: tuple[str, ...] = ("horovod", "torch")
    gpus: bool = False
    tracking_uri: str | None = None
    folders: tuple[str, ...] = ()
    preflight: bool = False
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def horovod_is_wanted(self) -> bool:
        """Whether it is a problem that there is no Horovod."""
        return self.backends == ("horovod",)


def unpack_seconds(settings: Mapping[str, str]) -> float:
    """How much longer executors may take to start, where their hosts first unpack archives."""
    return UNPACK_SECONDS if {"spark.archives", "spark.yarn.dist.archives"} & set(settings) else 0


def is_under_submit(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether spark-submit has started this process, and a JVM with it."""
    return bool(environment.get("PYSPARK_GATEWAY_PORT"))


def is_for_a_cluster(
    question: Question,
    settings: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
) -> bool:
    """Whether ranks will most probably run in other processes than the driver's.

    Once there is a session, it knows better.

    Args:
        question: Names a master, or not.
        settings: Spark's, as far as files and arguments tell.
        environment: The process's.
    """
    master = question.master or settings.get("spark.master")
    if master is None:
        return is_under_submit(environment) or "--master" in environment.get(
            "PYSPARK_SUBMIT_ARGS", ""
        )
    return not master.startswith("local") or master.startswith("local-cluster")
