"""Kubernetes: manifests fit its schemas, and the image's recipe what is in this repository."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "conf" / "kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
PODS = sorted(FOLDER.glob("*-pod*.yaml"))
VERSIONS = ("1.31", kubernetes_validate.latest_version())
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


def load(name: str) -> list[dict]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def container(name: str) -> dict:
    (pod,) = load(name)
    (only,) = pod["spec"]["containers"]
    return only


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_fit_the_schemas_of_kubernetes(path, version):
    documents = load(path.name)
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_key_would_be_found():
    (pod,) = load("executor-pod.yaml")
    pod["spec"]["terminationGracePeriod"] = 3
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)


def test_containers_have_the_names_that_the_submission_says():
    submit = (FOLDER / "submit.sh").read_text()
    for role, name in [("driver", "driver-pod.yaml"), ("executor", "executor-pod.yaml")]:
        named = re.search(rf"{role}\.podTemplateContainerName=(\S+)", submit)
        assert container(name)["name"] == named[1]


@pytest.mark.parametrize("name", ["executor-pod.yaml", "executor-pod-gpu.yaml"])
def test_before_an_executor_stops_its_ranks_are_told_and_waited_for(name):
    (pod,) = load(name)
    shell, flag, script = container(name)["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, flag) == ("/bin/sh", "-c")
    tell, wait = script.strip().splitlines()
    assert tell == "pkill -TERM -f '[s]parkdl_runner.launch.worker'"
    assert wait.startswith("while pgrep -f '[s]parkdl_runner.launch.worker'")
    assert pod["spec"]["terminationGracePeriodSeconds"] >= 60
    # What Spark would put in its place, if it were on.
    for settings in (ROOT / "conf" / "spark").glob("*.conf"):
        assert "spark.decommission" not in settings.read_text()


@pytest.mark.parametrize("name", ["executor-pod.yaml", "executor-pod-gpu.yaml"])
def test_executors_have_shared_memory(name):
    (pod,) = load(name)
    (mount,) = container(name)["volumeMounts"]
    (volume,) = pod["spec"]["volumes"]
    assert mount == {"name": volume["name"], "mountPath": "/dev/shm"}
    assert volume["emptyDir"]["medium"] == "Memory"


def test_the_gpu_template_differs_in_the_toleration_and_the_size_of_shared_memory_alone():
    (plain,), (gpu,) = load("executor-pod.yaml"), load("executor-pod-gpu.yaml")
    (toleration,) = gpu["spec"].pop("tolerations")
    assert toleration["key"] == "nvidia.com/gpu"
    for pod in (plain, gpu):
        del pod["spec"]["volumes"][0]["emptyDir"]["sizeLimit"]
    assert gpu == plain


@pytest.mark.parametrize("path", PODS, ids=lambda path: path.name)
def test_no_pod_is_root_or_could_become_it(path):
    (pod,) = load(path.name)
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container(path.name)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    # Only the driver speaks to Kubernetes.
    assert pod["spec"].get("automountServiceAccountToken", True) is path.name.startswith("driver")


def test_the_driver_has_the_rights_it_needs_in_its_namespace_and_no_others():
    account, role, binding = load("rbac.yaml")
    assert [one["kind"] for one in (account, role, binding)] == [
        "ServiceAccount",
        "Role",
        "RoleBinding",
    ]
    (rule,) = role["rules"]
    assert rule["apiGroups"] == [""]
    assert set(rule["resources"]) == {"pods", "configmaps", "services", "persistentvolumeclaims"}
    assert "*" not in rule["verbs"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject["name"] == account["metadata"]["name"]
    submit = (FOLDER / "submit.sh").read_text()
    assert f"serviceAccountName={account['metadata']['name']} " in submit


def test_the_network_policy_is_of_the_pods_that_are_made():
    (policy,) = load("network-policy.yaml")
    labels = policy["spec"]["podSelector"]["matchLabels"]
    for path in PODS:
        (pod,) = load(path.name)
        assert labels.items() <= pod["metadata"]["labels"].items()
    (rule,) = policy["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": {"matchLabels": labels}}]}


# ---- the image --------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, each on one line."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE)
    text = re.sub(r"\\\n\s*", " ", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_every_instruction_is_one():
    known = {"ARG", "FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "ENTRYPOINT"}
    assert {name for name, _ in instructions()} <= known


def test_what_is_copied_is_there():
    stages, copied = set(), []
    for name, arguments in instructions():
        if name == "FROM":
            stages.add(arguments.rpartition(" AS ")[2])
        elif name == "COPY":
            words = arguments.split()
            stage = re.fullmatch(r"--from=(\S+)", words[0])
            if stage:
                assert stage[1] in stages
            else:
                copied += words[:-1]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source


def test_bases_are_pinned_by_tag():
    defaults = dict(
        arguments.split("=", 1) for name, arguments in instructions() if "=" in arguments[:30]
    )
    stages = {"scratch"}
    for name, arguments in instructions():
        if name != "FROM":
            continue
        image, _, stage = arguments.partition(" AS ")
        image = re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], image)
        assert image in stages or re.fullmatch(r"\S+:[\w.-]*\d[\w.-]*", image), image
        assert not image.endswith(":latest")
        stages.add(stage)


def test_versions_are_those_of_the_lanes():
    for lane in ("classic", "modern"):
        constraints = (ROOT / "conf" / f"constraints-{lane}.txt").read_text()
        version = re.search(r"^pyspark==(\S+)", constraints, flags=re.MULTILINE)[1]
        assert f"apache/spark:{version}-" in DOCKERFILE, lane


def test_it_runs_as_another_user_than_root_and_holds_no_secret():
    assert [user for name, user in instructions() if name == "USER"] == ["185"]
    # Of the last stage: what comes after it runs as that user.
    assert [name for name, _ in instructions()][-2:] == ["USER", "ENTRYPOINT"]
    for name, arguments in instructions():
        if name in ("ARG", "ENV"):
            assert not re.search(r"TOKEN|PASSWORD|SECRET|(?<!_CACHE)_KEY", arguments)


def test_what_templates_and_entry_point_call_is_installed():
    (packages,) = [a for name, a in instructions() if name == "RUN" and "apt-get install" in a]
    for package in ("procps", "tini", "openjdk-17-jre-headless"):
        assert f" {package} " in packages


def test_paths_that_the_submission_names_are_in_the_image():
    submit = (FOLDER / "submit.sh").read_text()
    named = set(re.findall(r"/opt/sparkdl-runner/([\w./-]+)", submit))
    assert len(named) == 2
    copies = [arguments.split() for name, arguments in instructions() if name == "COPY"]
    targets = {target: source for source, target in (words for words in copies if len(words) == 2)}
    for path in named:
        target = next(one for one in targets if f"/opt/sparkdl-runner/{path}".startswith(one + "/"))
        inside = f"/opt/sparkdl-runner/{path}".removeprefix(target + "/")
        assert (ROOT / targets[target] / inside).exists(), path
