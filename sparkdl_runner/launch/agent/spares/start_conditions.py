"""Conditions of a worker's start, which no later message can change. Asked for on Linux alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

# Variables that Python, the C library, BLAS, OpenMP, CUDA, torch or Horovod read while they start.
READ_AT_START = (
    *("ACC_*", "ATEN_*", "BLAS_*", "BLIS_*", "C10_*", "COMPILE_*", "CONDA_*", "CUBLAS*", "CUDA*"),
    *("CUDNN_*", "DISABLE_*", "DNNL_*", "ENABLE_*", "FX_*", "GCONV_PATH", "GFORTRAN_*"),
    *("GLIBC_TUNABLES", "GLOO_*", "GOMP_*", "GOTO*", "HIP_*", "HOME", "HOROVOD_*", "HSA_*"),
    *("INTEL_*", "I_MPI_*", "JEMALLOC_*", "KINETO_*", "KMP_*", "LANG", "LANGUAGE", "LC_*", "LD_*"),
    *("LOCPATH", "LOGNAME", "MALLOC_*", "MIMALLOC_*", "MKL*", "MPI_*", "NCCL_*", "NO_*", "NPY_*"),
    *("NUMBA_*", "NUMEXPR_*", "NUMPY_*", "NVIDIA_*", "NVPL_*", "OMPI_*", "OMP_*", "ONEDNN_*"),
    *("OPENBLAS_*", "OPENSSL_*", "PATH", "PMI*", "PSM*", "PSUTIL_*", "PYTHON*", "PYTORCH_*"),
    *("ROCM_*", "ROCR_*", "SPARKDL_RUNNER_*", "TBB_*", "TCMALLOC_*", "TEMP", "TF_*", "TMP"),
    *("TMPDIR", "TORCH*", "TRITON_*", "TZ", "TZDIR", "UCX_*", "USE_*", "USER", "VECLIB_*"),
    *("VIRTUAL_ENV", "XDG_*", "XLA_*", "_PYTHON_*", "__PYVENV_LAUNCHER__"),
)
# Names that an installer adds to a folder of packages.
_OF_PACKAGES = (".dist-info", ".egg-info", ".egg-link", ".pth")
# Signal n is bit n - 1.
_LIBRARY_SIGNALS = 1 << 31 | 1 << 32
# In /proc/thread-self; those of the thread are what its child processes get.
_FILES = ("cgroup", "limits", "oom_score_adj", "personality", "root", "ns")
_STATUS = (
    *("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "Cap", "NoNewPrivs", "Seccomp"),
    *("Cpus_allowed", "Mems_allowed", "THP_enabled"),
)


@dataclass(frozen=True)
class StartConditions:
    """The conditions that a template and a new worker must share."""

    backend: str
    variables: frozenset[tuple[str, str]] = field(repr=False)
    """Those that are read while a worker starts."""
    program: tuple[object, ...]
    """The interpreter's file."""
    folder: tuple[object, ...]
    """The working folder."""
    packages: tuple[object, ...] = field(repr=False)
    """The packages on the search path: libraries look for others while they are imported."""
    inherited: tuple[str, ...] = field(repr=False)
    """State that a child inherits: user, groups, limits, priority, signals, cgroup, namespaces."""

    @classmethod
    def now(cls, backend: str, environment: Mapping[str, str]) -> StartConditions:
        """Those of a worker that this thread would start now.

        Args:
            backend: The backend's name.
            environment: All that the worker would start with.
        """
        return cls(
            backend=backend,
            variables=frozenset(
                variable for variable in environment.items() if is_read_at_start(variable[0])
            ),
            program=_identity(sys.executable),
            folder=_identity(os.getcwd())[:3],
            packages=tuple(_packages(path) for path in sys.path),
            inherited=(
                str(os.getpriority(os.PRIO_PROCESS, 0)),
                *_from_proc(),
            ),
        )


def is_read_at_start(name: str) -> bool:
    """Whether a variable may act while a worker starts, so that a later change comes too late."""
    return any(fnmatchcase(name, pattern) for pattern in READ_AT_START)


def _packages(path: str) -> tuple[object, ...]:
    """The packages installed in a folder of the search path; the state of an archive."""
    try:
        with os.scandir(path or ".") as entries:
            packages = {
                (entry.name, entry.inode())
                for entry in entries
                if entry.name.endswith(_OF_PACKAGES)
            }
            return path, frozenset(packages)
    except NotADirectoryError:
        return _identity(path)
    except OSError:
        return (path,)  # It is not there.


def _identity(path: str) -> tuple[object, ...]:
    status = os.stat(path)
    return path, status.st_dev, status.st_ino, status.st_mtime_ns


def _from_proc() -> list[str]:
    files = [_text_of(Path("/proc/thread-self", name)) for name in _FILES]
    return [str(os.sched_getscheduler(0)), *files, *_status()]


def _status() -> list[str]:
    text = _text_of(Path("/proc/thread-self/status"))
    return [_of_programs(line) for line in text.splitlines() if line.startswith(_STATUS)]


def _of_programs(line: str) -> str:
    """The line without the C library's own signals, 32 and 33.

    A process may be started with these ignored. That ends with its first thread, and means nothing
    to what it starts.
    """
    name, _, value = line.partition(":\t")
    if not name.startswith("Sig"):
        return line
    return f"{name}:\t{int(value, 16) & ~_LIBRARY_SIGNALS:016x}"


def _text_of(path: Path) -> str:
    """A file's text, where a link leads, or where each link of a folder leads."""
    try:
        if path.is_symlink():
            return os.readlink(path)
        if path.is_dir():
            return " ".join(sorted(os.readlink(link) for link in path.iterdir()))
        return path.read_text()
    except OSError:
        return ""  # This kernel has no such file.
