"""The pods of executors: those that start, and those that are gone with their node.

Spark asks Kubernetes for a new pod once the old one is gone. Kubernetes itself hears of a dead node
after some 50 seconds, evicts its pods 300 seconds later, and keeps them until the node is back. A
deletion with a grace period of 0 does not wait for the node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.driver.spark import java
from sparkdl_runner.launch.driver.spark.context import is_stopped, settings_of

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_SECONDS = 1.0
# How long Kubernetes may go on giving pods to a dead node, counted from our first request.
UNAWARE_SECONDS = 60.0
# A node that is alive acknowledges a pod within a second.
ACKNOWLEDGE_SECONDS = 4.0


def replace_pods(context: SparkContext, executors: Collection[str]) -> threading.Thread | None:
    """Has Kubernetes replace the pods of executors that are gone, in a thread.

    Does nothing where the master is not Kubernetes. A new pod may be given to the same dead node,
    as long as Kubernetes does not know of its end: then that pod is replaced as well.

    Args:
        context: The application's context.
        executors: Spark's names of executors from which nothing is heard any more.

    Returns:
        The thread, which ends by itself a minute later; None where there is nothing to do.
    """
    if not executors or not (context.master or "").startswith("k8s://"):
        return None
    # The API server may not answer, and Spark's client waits for it.
    thread = threading.Thread(
        target=_replace, args=(context, executors), name="sparkdl-pods", daemon=True
    )
    thread.start()
    return thread


def _replace(context: SparkContext, executors: Collection[str]) -> None:
    try:
        pods = _Pods(context)
        dead_nodes = {
            pods.delete(pod) for executor in executors for pod in pods.of_executor(executor)
        }
        first_seen: dict[str, float] = {}
        deadline = time.monotonic() + UNAWARE_SECONDS
        while dead_nodes and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            for pod in pods.unacknowledged(dead_nodes):
                seen = first_seen.setdefault(pod.getMetadata().getName(), time.monotonic())
                if time.monotonic() - seen > ACKNOWLEDGE_SECONDS:
                    pods.delete(pod)
    except Exception as error:  # The driver may lack the right, or the API server be out of reach.
        if not is_stopped(context):
            tell(
                f"the pods of lost executors ({', '.join(executors)}) could not be replaced: "
                f"{java.text_of(error).partition(chr(10))[0]} Kubernetes replaces them itself once "
                "it has given up their node, after minutes. kubectl delete pod --grace-period=0 "
                "--force does it at once."
            )


def starting_executors(context: SparkContext) -> set[str]:
    """The executors whose pods a node has taken, whether or not they have registered."""
    return {
        str(pod.getMetadata().getLabels()["spark-exec-id"])
        for pod in _Pods(context).all()
        if pod.getMetadata().getDeletionTimestamp() is None and _is_starting(pod.getStatus())
    }


def _is_starting(status: Any) -> bool:
    if status.getStartTime() is None or status.getPhase() not in ("Pending", "Running"):
        return False
    waiting = [container.getState().getWaiting() for container in status.getContainerStatuses()]
    # Else for a reason that does not pass, such as ImagePullBackOff.
    return all(state is None or state.getReason() == "ContainerCreating" for state in waiting)


class _Pods:
    """The pods of an application's executors, by the client that Spark itself uses."""

    def __init__(self, context: SparkContext) -> None:
        backend = context._jsc.sc().schedulerBackend()
        # Spark 3.5 and 4 name the field differently.
        (field,) = (
            declared
            for declared in backend.getClass().getDeclaredFields()
            if declared.getType().getSimpleName() == "KubernetesClient"
        )
        field.setAccessible(True)
        namespace = settings_of(context).get("spark.kubernetes.namespace", "default")
        self._pods: Any = field.get(backend).pods().inNamespace(namespace)
        of_application = self._pods.withLabel("spark-app-selector", context.applicationId)
        self._own = of_application.withLabel("spark-role", "executor")

    def all(self) -> list[Any]:
        """The pods of all executors."""
        return list(self._own.list().getItems())

    def of_executor(self, executor: str) -> list[Any]:
        """The pods of an executor: one, or none if it has gone."""
        return list(self._own.withLabel("spark-exec-id", executor).list().getItems())

    def unacknowledged(self, nodes: Collection[str]) -> list[Any]:
        """The pods of which one of some nodes has taken no notice."""
        return [
            pod
            for pod in self.all()
            if pod.getSpec().getNodeName() in nodes and pod.getStatus().getStartTime() is None
        ]

    def delete(self, pod: Any) -> str:
        """Deletes a pod without waiting for its node. Returns the node's name."""
        name, node = pod.getMetadata().getName(), pod.getSpec().getNodeName()
        self._pods.withName(name).withGracePeriod(0).delete()
        tell(f"node {node} does not answer: asked Kubernetes for another pod in place of {name}.")
        return str(node)
