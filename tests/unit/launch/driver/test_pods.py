"""The pods that are deleted after a node has died, on a made-up client of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.driver.spark import pods
from sparkdl_runner.launch.driver.spark.pods import replace_pods, starting_executors

Pod = SimpleNamespace


def a_pod(
    name: str,
    executor: str,
    node: str,
    started: str | None = "now",
    *,
    phase: str = "Running",
    deleted: str | None = None,
    waiting: str | None = None,
) -> Pod:
    metadata = SimpleNamespace(
        getName=lambda: name,
        getLabels=lambda: {"spark-exec-id": executor},
        getDeletionTimestamp=lambda: deleted,
    )
    reason = waiting and SimpleNamespace(getReason=lambda: waiting)
    state = SimpleNamespace(getWaiting=lambda: reason)
    status = SimpleNamespace(
        getStartTime=lambda: started,
        getPhase=lambda: phase,
        getContainerStatuses=lambda: [SimpleNamespace(getState=lambda: state)],
    )
    return SimpleNamespace(
        executor=executor,
        getMetadata=lambda: metadata,
        getSpec=lambda: SimpleNamespace(getNodeName=lambda: node),
        getStatus=lambda: status,
    )


class Client:
    """As fabric8's, for one namespace and one application."""

    def __init__(self, *listed: Pod) -> None:
        self.listed = list(listed)
        self.deleted: list[tuple[str, int]] = []
        self.on_delete: Callable[[], object] = lambda: None
        self.labels: list[tuple[str, str]] = []

    def pods(self) -> Client:
        return self

    def inNamespace(self, name: str) -> Client:  # noqa: N802 - fabric8's name
        assert name == "training"
        return self

    def withLabel(self, key: str, value: str) -> SimpleNamespace:  # noqa: N802 - fabric8's name
        self.labels.append((key, value))
        of = value if key == "spark-exec-id" else None

        def items() -> list[Pod]:
            return [pod for pod in self.listed if of in (None, pod.executor)]

        return SimpleNamespace(
            withLabel=self.withLabel, list=lambda: SimpleNamespace(getItems=items)
        )

    def withName(self, name: str) -> SimpleNamespace:  # noqa: N802 - fabric8's name
        def delete(seconds: int) -> None:
            self.deleted.append((name, seconds))
            self.listed = [pod for pod in self.listed if pod.getMetadata().getName() != name]
            self.on_delete()

        return SimpleNamespace(
            withGracePeriod=lambda seconds: SimpleNamespace(delete=lambda: delete(seconds))
        )


def a_context(
    client: Client | None, master: str = "k8s://https://10.0.0.1:6443"
) -> SimpleNamespace:
    def field(kind: str) -> SimpleNamespace:
        return SimpleNamespace(
            getType=lambda: SimpleNamespace(getSimpleName=lambda: kind),
            setAccessible=lambda _: None,
            get=lambda _: client,
        )

    fields = [field("String"), field("KubernetesClient")]
    kind = SimpleNamespace(getDeclaredFields=lambda: fields)
    backend = SimpleNamespace(getClass=lambda: kind)
    spark = SimpleNamespace(schedulerBackend=lambda: backend, isStopped=lambda: False)
    return SimpleNamespace(
        master=master,
        applicationId="spark-7",
        _jsc=SimpleNamespace(sc=lambda: spark),
        _conf={"spark.kubernetes.namespace": "training"},
    )


class Clock:
    """Time passes when it is slept for."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pods, "time", clock)
    return clock


def replace(client: Client, *executors: str) -> None:
    thread = replace_pods(a_context(client), executors)
    assert thread is not None
    thread.join()


def test_the_pod_of_a_lost_executor_is_deleted_at_once_and_others_stay(capsys):
    client = Client(a_pod("exec-1", "1", "here"), a_pod("exec-2", "2", "there"))
    replace(client, "2", "gone already")
    assert client.deleted == [("exec-2", 0)]
    assert ("spark-app-selector", "spark-7") in client.labels
    assert capsys.readouterr().err == (
        "sparkdl_runner: node there does not answer: asked Kubernetes for another pod in place of "
        "exec-2.\n"
    )


def test_a_new_pod_that_the_dead_node_gets_is_deleted_and_one_that_has_begun_stays():
    client = Client(a_pod("exec-2", "2", "dead"))
    # Kubernetes gives the first one to the same node, and the next one to another.
    coming = iter([a_pod("exec-3", "3", "dead", None), a_pod("exec-4", "4", "here", None)])
    client.on_delete = lambda: client.listed.extend([next(coming)])
    client.listed.append(a_pod("exec-5", "5", "dead"))
    replace(client, "2")
    assert client.deleted == [("exec-2", 0), ("exec-3", 0)]


@pytest.mark.parametrize("seconds", [pods.ACKNOWLEDGE_SECONDS, pods.ACKNOWLEDGE_SECONDS + 2])
def test_a_pod_is_left_the_time_in_which_a_node_that_lives_takes_notice(clock, seconds):
    client = Client(a_pod("exec-2", "2", "node"))
    new = a_pod("exec-3", "3", "node")

    def come() -> None:
        if "exec-3" not in {name for name, _ in client.deleted}:
            noticed_at = clock.now + pods.POLL_SECONDS + seconds
            started = lambda: "now" if clock.now >= noticed_at else None  # noqa: E731
            new.getStatus = lambda: SimpleNamespace(getStartTime=started)
            client.listed.append(new)

    client.on_delete = come
    replace(client, "2")
    is_late = seconds > pods.ACKNOWLEDGE_SECONDS
    assert client.deleted == [("exec-2", 0), *[("exec-3", 0)] * is_late]


@pytest.mark.parametrize("master", ["yarn", "spark://10.0.0.1:7077", "local[2]", None])
def test_nothing_is_asked_where_there_are_no_pods(master):
    assert replace_pods(a_context(None, master), ["1"]) is None


def test_nothing_is_asked_where_nothing_is_lost():
    assert replace_pods(a_context(None), []) is None


def test_a_refusal_is_told_with_what_to_do(capsys):
    client = Client(a_pod("exec-2", "2", "dead"))

    def refuse() -> None:
        raise RuntimeError("pods is forbidden")

    client.on_delete = refuse
    replace(client, "2")
    told = capsys.readouterr().err
    assert "(2) could not be replaced: " in told
    assert "pods is forbidden" in told
    assert "kubectl delete pod --grace-period=0 --force" in told


def test_an_application_that_ends_meanwhile_is_not_told_of(capsys):
    context = a_context(Client())
    context._jsc.sc = lambda: SimpleNamespace(isStopped=lambda: True)
    thread = replace_pods(context, ["2"])
    assert thread is not None
    thread.join()
    assert capsys.readouterr().err == ""


def test_executors_whose_pods_a_node_has_taken():
    client = Client(
        a_pod("exec-1", "1", "here"),
        a_pod("exec-2", "2", "here", phase="Pending", waiting="ContainerCreating"),
        a_pod("exec-3", "3", "dead or full", None, phase="Pending"),
        a_pod("exec-4", "4", "here", phase="Failed"),
        a_pod("exec-5", "5", "here", deleted="now"),
        a_pod("exec-6", "6", "here", phase="Pending", waiting="ImagePullBackOff"),
    )
    assert starting_executors(a_context(client)) == {"1", "2"}
    assert ("spark-role", "executor") in client.labels
