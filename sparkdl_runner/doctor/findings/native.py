"""Do torch and Horovod load on a host, what were they built for, and do they see its GPUs?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sparkdl_runner.doctor.findings.finding import Finding, ok, problem, warning
from sparkdl_runner.doctor.findings.versions import SUPPORTED, in_words, is_older, is_within
from sparkdl_runner.world import mig_instances

BUILD = "sparkdl-runner build-horovod"
SCRIPT = "conf/horovod/build.sh"
# The first revision of what that script makes whose process sets keep the interface they are told.
FIRST_MENDED_REVISION = 2


def judge_torch(facts: dict[str, Any], where: str) -> Finding:
    """Whether a supported torch loads."""
    check, limits = "torch", SUPPORTED["torch"]
    version, answer = facts["packages"].get("torch"), facts["native"].get("torch")
    install = "pip install 'sparkdl-runner[torch]' on the driver and on every executor"
    if version is None and (answer is None or "error" in answer):
        return problem(
            check,
            "torch is not installed.",
            expected=f"torch {in_words(limits)}",
            advice=f"{install}.",
            where=where,
        )
    error = _why_not_loaded(answer, facts)
    if error is not None or answer is None:
        return problem(
            check,
            f"torch {version} does not load: {error}.",
            expected="torch loads",
            advice="Install it again (pip install --force-reinstall torch); a CPU build needs no "
            "driver and no CUDA.",
            where=where,
        )
    found = f"torch {answer['version']}, {_cuda_words(answer)}"
    if is_older(answer["version"], limits[0]):
        return problem(
            check,
            f"{found}, is too old.",
            expected=f"torch {in_words(limits)}",
            advice=f"{install}.",
            where=where,
        )
    if not is_within(answer["version"], limits):
        return warning(
            check,
            f"{found}, is newer than what was tested.",
            expected=f"torch {in_words(limits)}",
            advice=f"If training fails: pip install 'torch<{limits[1]}'.",
            where=where,
        )
    return ok(check, found, where)


def judge_horovod(
    facts: dict[str, Any], where: str, *, is_wanted: bool, wants_gpus: bool
) -> Iterator[Finding]:
    """Whether a Horovod loads that was built for this torch, and which build it is.

    Args:
        facts: The host's.
        where: The host.
        is_wanted: Whether the ranks are surely Horovod's; else its absence is no problem.
        wants_gpus: Whether ranks will train on GPUs.
    """
    check, version = "horovod", facts["packages"].get("horovod")
    answer, record = facts["native"].get("horovod"), facts["horovod_record"]
    torch = (facts["native"].get("torch") or {}).get("version") or facts["packages"].get("torch")
    if version is None:
        yield (problem if is_wanted else warning)(
            check,
            "Horovod is not installed.",
            expected="Horovod 0.28.1, built for the installed torch",
            advice=f"Run {BUILD}, which builds it for the installed torch and installs it (on "
            f"Databricks, make {SCRIPT} the cluster's init script); or use the torch backend, "
            "which needs none.",
            where=where,
        )
        return
    rebuild = f"Build it again for this torch, with {BUILD} in {facts['executable']}"
    built_for = record.get("torch")
    is_other = bool(built_for and torch) and built_for != torch
    error = _why_not_loaded(answer, facts)
    if error is not None or answer is None:
        reason = (
            f"it was built for torch {built_for}, and this is torch {torch} ({error})"
            if is_other
            else error
        )
        yield problem(
            check,
            f"Horovod does not load: {reason}.",
            expected=f"a Horovod built for torch {torch}",
            advice=f"{rebuild}; or use the torch backend, which needs none.",
            where=where,
        )
        return
    if is_other:
        yield warning(
            check,
            f"Horovod {version} loads, and was built for torch {built_for}; this is {torch}.",
            expected=f"a Horovod built for torch {torch}",
            advice=f"{rebuild}.",
            where=where,
        )
    else:
        kinds = [name for name in ("gloo", "nccl", "cuda", "mpi", "rocm") if answer.get(name)]
        yield ok(check, f"Horovod {version} for torch {torch}, with {', '.join(kinds)}", where)
    yield _judge_build(facts, answer, where, wants_gpus=wants_gpus)


def _judge_build(
    facts: dict[str, Any], answer: dict[str, Any], where: str, *, wants_gpus: bool
) -> Finding:
    check = "horovod.build"
    if not answer["gloo"]:
        return problem(
            check,
            "Horovod was built without gloo, by which ranks find one another.",
            expected="HOROVOD_WITH_GLOO=1",
            advice=f"Build it with {BUILD}.",
            where=where,
        )
    if wants_gpus and not answer["nccl"]:
        return problem(
            check,
            "Horovod was built without NCCL, so that gradients of GPUs go through the CPU.",
            expected="HOROVOD_GPU_OPERATIONS=NCCL",
            advice=f"Build it with {BUILD} --gpu.",
            where=where,
        )
    folder = facts["horovod_record"].get("wheel_folder", "")
    revision = re.search(r"-r(\d+)$", folder)
    if revision and int(revision.group(1)) >= FIRST_MENDED_REVISION:
        return ok(check, f"built by {SCRIPT}, revision {revision.group(1)}", where)
    found = f"This Horovod was not built by today's {SCRIPT}, as far as its record tells."
    expected = "a build that keeps the network interface that it is told"
    advice = (
        f"Build it with {BUILD}: as it was released, Horovod 0.28.1 forgets HOROVOD_GLOO_IFACE "
        "in process sets, and takes the address to which the host's own name leads."
    )
    if _leads_to_loopback(facts):
        # On one host that is still an address at which its ranks reach one another.
        found += f" And the host's name {facts['name']['name']} leads to the loopback interface."
    return warning(check, found, expected=expected, advice=advice, where=where)


def judge_gpus(
    facts: dict[str, Any],
    where: str,
    *,
    expected: bool,
    given: Sequence[str] | None = None,
    others_have: bool = False,
) -> Iterator[Finding]:
    """Whether a host has GPUs where it should, and torch can use them.

    Args:
        facts: The host's.
        where: The host.
        expected: Whether ranks on this host need GPUs.
        given: The addresses of those that Spark has given to its tasks; None if it was not asked
            to.
        others_have: Whether another host has some.
    """
    seen, native = facts["gpus"], facts["native"].get("torch") or {}
    there, usable = len(seen["gpus"]), native.get("gpus", 0)
    count = max(there, usable)
    if not count and not expected and not others_have:
        yield ok("gpu", "none, and none expected" + _smi_words(seen), where)
        return
    if not count:
        why = seen.get("error") or "there is no nvidia-smi"
        but = f", though Spark gave {len(given)} to its tasks" if given else ""
        yield problem(
            "gpu",
            f"This host has no GPU{but}: {why.strip().rstrip('.')}.",
            expected="GPUs on every host on which ranks run",
            advice="Look at nvidia-smi on that host: install or restart NVIDIA's driver, give its "
            "container GPUs (the NVIDIA container toolkit, nvidia.com/gpu), or leave the host "
            "out; and let Spark's discovery script list only what is there.",
            where=where,
        )
        return
    names = seen["gpus"][0] if seen["gpus"] else {}
    words = f"{count} GPU(s)"
    if names:
        words += f", {names['name']}, driver {names['driver_version']}"
    instances = mig_instances(given or ())
    if given and instances and len(given) > 1:
        # Each is a device to Spark, and many of them are one GPU to nvidia-smi. Doctor's tasks are
        # as many as Spark has place for; ranks may be fewer.
        yield warning(
            "gpu",
            f"Spark gave {len(given)} GPUs to this host's tasks, and {len(instances)} of them are "
            f"MIG instances ({', '.join(instances)}); CUDA shows a process one MIG "
            "instance only, so that several ranks on this host would be refused.",
            expected="one MIG instance on each host, or whole GPUs",
            advice="Let Spark have one instance of this host and run one rank there (a pod counts "
            "as a host), or switch MIG off (nvidia-smi -mig 0).",
            where=where,
        )
    elif given and there and len(given) > there and not instances:
        yield problem(
            "gpu",
            f"Spark gave {len(given)} GPUs to this host's tasks, and it has {there}.",
            expected="as many as there are",
            advice="Lower spark.executor.resource.gpu.amount (or spark.worker.resource.gpu.amount) "
            "or mend the discovery script.",
            where=where,
        )
    else:
        yield ok("gpu", words, where)
    if not native or "error" in native or usable:
        return
    reason = native.get("gpu_error")
    if not native.get("cuda"):
        found = f"torch {native['version']} was built without CUDA, so it cannot use them."
        advice = "Install a CUDA build of torch (pip install torch, from its CUDA index)."
    else:
        driver = f" {names['driver_version']}" if names else ""
        found = (
            f"torch {native['version']} for CUDA {native['cuda']} sees none of them"
            f"{f': {reason}' if reason else ''}."
        )
        advice = (
            f"NVIDIA's driver{driver} is probably older than CUDA {native['cuda']} needs: install "
            "a newer driver, or a torch for an older CUDA; and look at CUDA_VISIBLE_DEVICES."
        )
    yield (problem if expected else warning)(
        "gpu.torch", found, expected="torch sees the GPUs", advice=advice, where=where
    )


def has_gpus(facts: dict[str, Any]) -> bool:
    """Whether a host has GPUs, by any account."""
    native = facts["native"].get("torch") or {}
    return bool(facts["gpus"]["gpus"] or native.get("gpus"))


def _leads_to_loopback(facts: dict[str, Any]) -> bool:
    return str(facts["name"].get("leads_to", "")).startswith("127.")


def _why_not_loaded(answer: dict[str, Any] | None, facts: dict[str, Any]) -> str | None:
    if answer is None:
        return str(facts["native"].get("end", "it was not tried"))
    if "error" in answer:
        return str(answer["error"]).strip().rstrip(".")
    return None


def _cuda_words(answer: dict[str, Any]) -> str:
    return f"for CUDA {answer['cuda']}" if answer.get("cuda") else "for CPUs"


def _smi_words(seen: dict[str, Any]) -> str:
    return f" (nvidia-smi: {seen['error']})" if seen.get("error") else ""
