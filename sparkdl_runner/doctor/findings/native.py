"""Do torch, Horovod and TensorFlow load, and what were they built for?"""

from __future__ import annotations

import re

from sparkdl_runner.doctor.findings.checks import PYTHON, Place
from sparkdl_runner.doctor.findings.finding import Finding, ok, problem, refused, warning
from sparkdl_runner.doctor.findings.versions import out_of_range, pip_install, range_of
from sparkdl_runner.launch.backends import get_backend

BUILD = "sparkdl-runner build-horovod"
SCRIPT = "conf/horovod/build.sh"
# The first revision of that script's wheels whose process sets keep the given interface.
FIRST_MENDED_REVISION = 2


@PYTHON("torch", expected=range_of("torch"))
def torch(place: Place) -> Finding | None:
    """Whether a supported torch loads."""
    version = place.facts["packages"].get("torch")
    missing = refused(get_backend("torch").missing_sentence)
    if version is None and ("error" in place.torch or not place.torch):
        return None if place.question.backends == ("tensorflow",) else missing
    if error := _why_not_loaded("torch", place):
        return problem(
            f"torch {version} does not load: {error}.",
            expected="torch loads",
            advice="Install it again (pip install --force-reinstall torch); a CPU build needs no "
            "driver and no CUDA.",
        )
    cuda = place.torch.get("cuda")
    text = f"torch {place.torch['version']}, {f'for CUDA {cuda}' if cuda else 'for CPUs'}"
    outside = out_of_range("torch", place.torch["version"], found=text, advice=missing.advice)
    return outside or ok(text)


@PYTHON("horovod", expected="a Horovod built for the installed torch")
def horovod(place: Place) -> Finding | None:
    """Whether a Horovod loads that was built for the installed torch."""
    if "horovod" not in place.question.backends:
        return None
    version = place.facts["packages"].get("horovod")
    if version is None:
        finding = refused(get_backend("horovod").missing_sentence)
        if place.question.horovod_is_wanted:
            return finding
        return warning(finding.found, advice=finding.advice)
    torch = place.torch.get("version") or place.facts["packages"].get("torch")
    built_for = place.facts["horovod_record"].get("torch")
    is_other = bool(built_for and torch) and built_for != torch
    rebuild = f"Build it again for this torch, with {BUILD} in {place.facts['executable']}"
    if error := _why_not_loaded("horovod", place):
        if is_other:
            error = f"it was built for torch {built_for}, and this is torch {torch} ({error})"
        return problem(
            f"Horovod does not load: {error}.",
            advice=f"{rebuild}; or use the torch backend, which needs none.",
        )
    if is_other:
        return warning(
            f"Horovod {version} loads, and was built for torch {built_for}; this is {torch}.",
            advice=f"{rebuild}.",
        )
    features = place.facts["native"]["horovod"]
    kinds = [name for name in ("gloo", "nccl", "cuda", "mpi", "rocm") if features.get(name)]
    return ok(f"Horovod {version} for torch {torch}, with {', '.join(kinds)}")


@PYTHON("horovod.build", expected="a build that keeps the network interface that it is told")
def horovod_build(place: Place) -> Finding | None:
    """Whether a Horovod that loads has what ranks need, and our corrections."""
    if "horovod" not in place.question.backends or _why_not_loaded("horovod", place):
        return None
    features = place.facts["native"]["horovod"]
    if not features["gloo"]:
        return problem(
            "Horovod was built without gloo, by which ranks find one another.",
            expected="HOROVOD_WITH_GLOO=1",
            advice=f"Build it with {BUILD}.",
        )
    if (place.question.gpus or place.has_gpus) and not features["nccl"]:
        return problem(
            "Horovod was built without NCCL, so that gradients of GPUs go through the CPU.",
            expected="HOROVOD_GPU_OPERATIONS=NCCL",
            advice=f"Build it with {BUILD} --gpu.",
        )
    revision = re.search(r"-r(\d+)$", place.facts["horovod_record"].get("wheel_folder", ""))
    if revision and int(revision[1]) >= FIRST_MENDED_REVISION:
        return ok(f"built by {SCRIPT}, revision {revision[1]}")
    text = f"This Horovod was not built by today's {SCRIPT}, as far as its record tells."
    name = place.facts["name"]
    if str(name.get("leads_to", "")).startswith("127."):
        # On one host that is still an address at which its ranks reach one another.
        text += f" And the host's name {name['name']} leads to the loopback interface."
    return warning(
        text,
        advice=f"Build it with {BUILD}: as it was released, Horovod 0.28.1 forgets "
        "HOROVOD_GLOO_IFACE in process sets, and takes the address to which the host's own name "
        "leads.",
    )


@PYTHON("tensorflow", expected=range_of("tensorflow"))
def tensorflow(place: Place) -> Finding | None:
    """Whether a supported TensorFlow loads, where ranks may use it."""
    question, facts = place.question, place.facts["native"].get("tensorflow", {})
    if "tensorflow" not in question.backends:
        return None
    missing = refused(get_backend("tensorflow").missing_sentence)
    # Some of its builds, such as tensorflow-cpu, have names of their own.
    version = facts.get("version") or place.facts["packages"].get("tensorflow")
    if version is None and "No module named 'tensorflow'" in facts.get("error", ""):
        return missing if question.backends == ("tensorflow",) else None
    if error := _why_not_loaded("tensorflow", place):
        return problem(
            f"TensorFlow {version or ''} does not load: {error}.".replace("  ", " "),
            expected="TensorFlow loads",
            advice=f"Install it again, by itself: {pip_install('tensorflow')}.",
        )
    text = f"TensorFlow {version}"
    return out_of_range("tensorflow", version, found=text, advice=missing.advice) or ok(
        f"{text} loads"
    )


def _why_not_loaded(name: str, place: Place) -> str | None:
    answer = place.facts["native"].get(name)
    if answer is None:
        return str(place.facts["native"].get("end", "it was not tried"))
    return str(answer["error"]).strip().rstrip(".") if "error" in answer else None
