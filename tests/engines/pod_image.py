"""The image of ``conf/kubernetes/Dockerfile``, made without a builder, of this lane's packages.

It is an archive as the OCI's image specification describes it: JSON, and a tar file for each layer.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyspark
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "conf" / "kubernetes" / "Dockerfile"
SUITE, PYTHON = "bookworm", (3, 11)
# What Debian's image with Python has, and the Dockerfile installs.
PACKAGES = (
    *("python3", "ca-certificates", "libgomp1", "libstdc++6", "zlib1g"),
    *("openjdk-17-jre-headless", "libnss-wrapper", "procps", "tini"),
)
EXTRAS = {"torch", "horovod", "mlflow", "jobs", "petastorm"}
ENVIRONMENT = f"opt/environment/lib/python{PYTHON[0]}.{PYTHON[1]}/site-packages"
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
MEDIA = "application/vnd.oci.image"


@dataclass(frozen=True)
class Blob:
    """A file of an image, by its hash."""

    digest: str
    size_bytes: int

    @classmethod
    def of(cls, path: Path) -> Blob:
        """Reads a file."""
        with path.open("rb") as file:
            return cls(
                "sha256:" + hashlib.file_digest(file, "sha256").hexdigest(), os.stat(path).st_size
            )

    def described(self, kind: str) -> dict[str, object]:
        """As a manifest refers to it."""
        return {"mediaType": f"{MEDIA}.{kind}", "digest": self.digest, "size": self.size_bytes}


def base_key() -> str:
    """What the layers below the project's own depend on, in a few letters."""
    found = importlib.metadata.distributions()
    versions = sorted({f"{one.name}=={one.version}" for one in found})
    makers = map(inspect.getsource, (make_system, make_environment, make_spark))
    text = "\n".join([SUITE, *PACKAGES, *versions, *makers])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_system(path: Path) -> None:
    """Debian with Java and Python, from its archive."""
    subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase"),
            *(f"--include={','.join(PACKAGES)}", SUITE, str(path)),
        ],
        check=True,
    )


def make_environment(path: Path) -> None:
    """Python's packages, as those of the image, from this lane's."""
    with _layer(path) as layer:
        # As a virtual environment has it.
        _add_text(layer, "opt/environment/pyvenv.cfg", "home = /usr/bin\n")
        python = f"/usr/bin/python{PYTHON[0]}.{PYTHON[1]}"
        for name, target in (("python", python), ("python3", "python")):
            link = tarfile.TarInfo(f"opt/environment/bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, target
            layer.addfile(link)
        for name in sorted(_top_levels(_needed("sparkdl-runner", EXTRAS))):
            _add(layer, SITE_PACKAGES / name, f"{ENVIRONMENT}/{name}")


def make_spark(path: Path) -> None:
    """Spark, as it is in its own image."""
    with _layer(path) as layer:
        for name in ("bin", "sbin", "jars", "python"):
            _add(layer, Path(pyspark.__file__).parent / name, f"opt/spark/{name}")


def make_project(path: Path) -> None:
    """This project, and the entry point."""
    with _layer(path) as layer:
        _add(layer, ROOT / "sparkdl_runner", f"{ENVIRONMENT}/sparkdl_runner")
        _add(layer, ROOT / "jobs", "opt/sparkdl-runner/jobs")
        _add(layer, ROOT / "conf" / "spark", "opt/sparkdl-runner/conf/spark")
        _add(layer, Path(__file__).with_name("entrypoint.sh"), "opt/entrypoint.sh")


def write_archive(
    path: Path,
    name: str,
    layers: Iterable[Blob],
    configuration: dict[str, object],
    files: Iterable[Path],
) -> None:
    """Writes an archive to import.

    Args:
        path: The archive.
        name: The image's, with its tag.
        layers: All of them, the lowest first.
        configuration: What a container of it runs, and how.
        files: Those of the layers that the importer does not have already.
    """
    digests = [one.digest for one in layers]
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": configuration,
        "rootfs": {"type": "layers", "diff_ids": digests},
    }
    with tarfile.open(path, "w") as archive:
        for file in files:
            archive.add(file, _place(Blob.of(file)))
        config = _add_blob(archive, described)
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}.manifest.v1+json",
            "config": config.described("config.v1+json"),
            "layers": [one.described("layer.v1.tar") for one in layers],
        }
        found = _add_blob(archive, manifest).described("manifest.v1+json")
        found["annotations"] = {"io.containerd.image.name": name}
        _add_text(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [found]}))
        _add_text(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))


def configuration() -> dict[str, object]:
    """What the Dockerfile says of its containers."""
    text = DOCKERFILE.read_text().rpartition("\nFROM ")[2].replace("\\\n", " ")
    said = dict(re.findall(r"^(ENV|WORKDIR|USER|ENTRYPOINT) (.*)$", text, re.MULTILINE))
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "User": said["USER"],
        "WorkingDir": said["WORKDIR"],
        "Entrypoint": json.loads(said["ENTRYPOINT"]),
        "Env": [one.replace("$PATH", path) for one in said["ENV"].split()],
    }


def _needed(name: str, extras: set[str]) -> set[str]:
    """The installed distributions that one needs, itself included; Spark is the image's own."""
    found: set[str] = set()
    todo = [(name, frozenset(extras))]
    while todo:
        name, wanted = todo.pop()
        if name in found or name in ("pyspark", "py4j"):
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or ():
            one = Requirement(line)
            if one.marker is None or any(
                one.marker.evaluate({"extra": extra}) for extra in wanted or {""}
            ):
                todo.append((re.sub(r"[-_.]+", "-", one.name).lower(), frozenset(one.extras)))
    return found


def _top_levels(distributions: Iterable[str]) -> set[str]:
    names = {
        file.parts[0]
        for one in distributions
        for file in importlib.metadata.files(one) or ()
        if not file.parts[0].startswith(("..", "__editable__"))
    }
    return {name for name in names if (SITE_PACKAGES / name).exists()} - {"__pycache__"}


def _layer(path: Path) -> tarfile.TarFile:
    return tarfile.open(path, "w", format=tarfile.GNU_FORMAT, dereference=False)


def _add(layer: tarfile.TarFile, source: Path, name: str) -> None:
    """Adds a file or a folder, which are then root's and everybody may read."""

    def as_roots(one: tarfile.TarInfo) -> tarfile.TarInfo:
        one.uid = one.gid = 0
        one.uname = one.gname = "root"
        one.mode = 0o755 if one.isdir() or one.mode & 0o100 else 0o644
        return one

    layer.add(source.resolve(), name, filter=as_roots)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text.encode())
    archive.addfile(member, io.BytesIO(text.encode()))


def _add_blob(archive: tarfile.TarFile, content: object) -> Blob:
    text = json.dumps(content)
    blob = Blob("sha256:" + hashlib.sha256(text.encode()).hexdigest(), len(text))
    _add_text(archive, _place(blob), text)
    return blob


def _place(blob: Blob) -> str:
    return "blobs/" + blob.digest.replace(":", "/")


def why_not() -> str | None:
    """Why this Python's packages cannot be in the image, or None if they can."""
    if sys.version_info[:2] != PYTHON:
        found = ".".join(map(str, sys.version_info[:2]))
        return f"the image has Debian's Python 3.11, and this lane's packages are for {found}"
    return None
