"""Which CUDA compiler `conf/horovod/build.sh --gpu` takes, and what it says where none will do.

Made-up: torch's version file, nvcc, and the folders of pip's packages. Their CUDA is 99, so that no
toolkit of the machine's own fits.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "conf" / "horovod" / "build.sh"
pytestmark = pytest.mark.one_lane


@dataclass
class Machine:
    """A folder with a Python's packages, and a log of which nvcc was asked to compile."""

    folder: Path

    def install_torch(self, cuda: str | None) -> None:
        package = self.folder / "packages" / "torch"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "version.py").write_text(f"__version__ = '2.99.0'\ncuda = {cuda!r}\n")

    def install_nvcc(self, toolkit: Path, version: str, *, body: str = "") -> None:
        """An nvcc that tells its version, and otherwise runs `body` and notes that it was used."""
        nvcc = toolkit / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text(
            f"#!/bin/sh\n"
            f'[ "$1" != --version ] || {{ echo "tools, release {version}, V{version}.1"; exit; }}\n'
            f'{body}\necho "$0" >>{self.folder}/used\n'
        )
        nvcc.chmod(0o755)

    def install_pip_packages(self) -> None:
        """As pip lays them out: no lib64, and libraries by their number only."""
        nvidia = self.folder / "packages" / "nvidia"
        for file in ("cu99/lib/libcudart.so.99", "nccl/include/nccl.h", "nccl/lib/libnccl.so.2"):
            (nvidia / file).parent.mkdir(parents=True, exist_ok=True)
            (nvidia / file).touch()
        needed = 'test -e "${0%/bin/nvcc}/lib64/libcudart.so" || exit 1'
        self.install_nvcc(nvidia / "cu99", "99.0", body=needed)

    def check(self, **variables: str) -> subprocess.CompletedProcess[str]:
        temporary = self.folder / "temporary"
        temporary.mkdir()
        settings = {key: value for key, value in os.environ.items() if key != "CUDA_HOME"}
        settings |= {"PYTHONPATH": f"{self.folder}/packages", "TMPDIR": f"{temporary}"}
        command = [SCRIPT, "--check", "--gpu", "--python", sys.executable]
        done = subprocess.run(
            [*command, "--wheelhouse", self.folder / "wheelhouse"],
            env={**settings, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not list(temporary.iterdir()), "it left its work folder"
        return done

    @property
    def used(self) -> list[str]:
        log = self.folder / "used"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_toolkit_that_cuda_home_names_comes_first(machine, tmp_path):
    machine.install_torch("99.0")
    machine.install_pip_packages()
    machine.install_nvcc(tmp_path / "toolkit", "99.3")
    done = machine.check(CUDA_HOME=f"{tmp_path}/toolkit")
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.used == [f"{tmp_path}/toolkit/bin/nvcc"]


def test_pips_packages_are_taken_as_a_toolkit_where_the_machine_has_none(machine, tmp_path):
    machine.install_torch("99.0")
    machine.install_pip_packages()
    done = machine.check()
    assert (done.returncode, done.stderr) == (0, "")
    (nvcc,) = machine.used
    assert nvcc.startswith(f"{tmp_path}/temporary/")


def test_a_toolkit_that_was_named_and_is_of_another_cuda_is_refused(machine, tmp_path):
    machine.install_torch("99.0")
    machine.install_pip_packages()
    machine.install_nvcc(tmp_path / "toolkit", "12.8")
    done = machine.check(CUDA_HOME=f"{tmp_path}/toolkit")
    assert done.returncode == 1
    assert f"found CUDA 12.8 in CUDA_HOME={tmp_path}/toolkit, and --gpu needs" in done.stderr
    assert machine.used == []


def test_where_there_is_no_compiler_the_packages_to_install_are_named(machine):
    machine.install_torch("99.0")
    done = machine.check()
    assert done.returncode == 1
    assert "and no nvcc among pip's packages, and --gpu needs a compiler of CUDA 99" in done.stderr
    assert f"run {sys.executable} -m pip install 'cuda-toolkit[nvcc,cccl]==99.0.*'" in done.stderr


def test_cuda_12_has_no_compiler_among_pips_packages_and_none_is_advised(machine, tmp_path):
    machine.install_torch("12.8")
    done = machine.check(CUDA_HOME=f"{tmp_path}/toolkit")
    assert done.returncode == 1
    assert f"found no nvcc in CUDA_HOME={tmp_path}/toolkit" in done.stderr
    assert "install the CUDA toolkit 12.8 and name its folder with CUDA_HOME" in done.stderr
    assert "pip install" not in done.stderr


def test_an_nvcc_without_the_rest_of_the_toolkit_is_told_with_its_reason(machine, tmp_path):
    machine.install_torch("99.0")
    machine.install_nvcc(
        tmp_path / "toolkit", "99.0", body="echo 'fatal error: cuda_runtime.h: not there'; exit 1"
    )
    done = machine.check(CUDA_HOME=f"{tmp_path}/toolkit")
    assert done.returncode == 1
    assert "an nvcc that cannot compile (fatal error: cuda_runtime.h: not there)" in done.stderr


def test_a_torch_without_cuda_is_refused(machine):
    machine.install_torch(None)
    done = machine.check()
    assert done.returncode == 1
    assert "torch 2.99.0" in done.stderr
    assert "was built without CUDA, and --gpu needs it" in done.stderr
