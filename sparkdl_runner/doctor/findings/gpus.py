"""Has a host the GPUs that ranks need, and does torch see them?"""

from __future__ import annotations

from sparkdl_runner.doctor.findings.checks import HOST, Place
from sparkdl_runner.doctor.findings.finding import Finding, ok, problem, warning
from sparkdl_runner.rank.world import mig_instances


@HOST("gpu", expected="GPUs on every host on which ranks run")
def gpu(host: Place) -> Finding:
    """Whether a host has GPUs where it should, and as many as Spark gives to its tasks."""
    seen, given = host.facts["gpus"], host.gpus_given
    if not host.has_gpus and not host.needs_gpus and not host.some_have_gpus:
        said = f" (nvidia-smi: {seen['error']})" if seen.get("error") else ""
        return ok(f"none, and none expected{said}")
    if not host.has_gpus:
        why = seen.get("error") or "there is no nvidia-smi"
        but = f", though Spark gave {len(given)} to its tasks" if given else ""
        return problem(
            f"This host has no GPU{but}: {why.strip().rstrip('.')}.",
            advice="Look at nvidia-smi on that host: install or restart NVIDIA's driver, give its "
            "container GPUs (the NVIDIA container toolkit, nvidia.com/gpu), or leave the host "
            "out; and let Spark's discovery script list only what is there.",
        )
    instances = mig_instances(given)
    if instances and len(given) > 1:
        # Each is a device to Spark, and many of them are one GPU to nvidia-smi. Doctor's tasks are
        # as many as Spark has place for; ranks may be fewer.
        return warning(
            f"Spark gave {len(given)} GPUs to this host's tasks, and {len(instances)} of them are "
            f"MIG instances ({', '.join(instances)}); CUDA shows a process one MIG "
            "instance only, so that several ranks on this host would be refused.",
            expected="one MIG instance on each host, or whole GPUs",
            advice="Let Spark have one instance of this host and run one rank there (a pod counts "
            "as a host), or switch MIG off (nvidia-smi -mig 0).",
        )
    listed = seen["gpus"]
    if listed and len(given) > len(listed) and not instances:
        return problem(
            f"Spark gave {len(given)} GPUs to this host's tasks, and it has {len(listed)}.",
            expected="as many as there are",
            advice="Lower spark.executor.resource.gpu.amount (or spark.worker.resource.gpu.amount) "
            "or correct the discovery script.",
        )
    names = f", {listed[0]['name']}, driver {listed[0]['driver_version']}" if listed else ""
    return ok(f"{max(len(listed), host.torch.get('gpus', 0))} GPU(s){names}")


@HOST("gpu.torch", expected="torch sees the GPUs")
def torch_sees_them(host: Place) -> Finding | None:
    """Whether torch can use the GPUs of a host that has some."""
    torch, listed = host.torch, host.facts["gpus"]["gpus"]
    if not listed or not torch or "error" in torch or torch.get("gpus"):
        return None
    cuda, reason = torch.get("cuda"), torch.get("gpu_error")
    if cuda:
        text = f"torch {torch['version']} for CUDA {cuda} sees none of them"
        text += f": {reason}." if reason else "."
        advice = (
            f"NVIDIA's driver {listed[0]['driver_version']} is probably older than CUDA {cuda} "
            "needs: install a newer driver, or a torch for an older CUDA; and look at "
            "CUDA_VISIBLE_DEVICES."
        )
    else:
        text = f"torch {torch['version']} was built without CUDA, so it cannot use them."
        advice = "Install a CUDA build of torch (pip install torch, from its CUDA index)."
    return (problem if host.needs_gpus else warning)(text, advice=advice)
