"""Takes from a Python process what Linux has and macOS lacks: on its search path, this is imported.

So are its child processes', which inherit the search path. What psutil reads it may read: on macOS
it asks the kernel by other means. Native code is not kept from anything.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import os
import socket
import sys
from typing import Any

import absent
import psutil  # Made for Linux, it needs at its start what is taken away below.

_SO_ATTACH_FILTER = 26


def _is_refused(path: Any) -> bool:
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str) or not path.startswith(absent.FOLDERS):
        return False
    frame: Any = sys._getframe()
    while frame is not None:
        if "/psutil/" in frame.f_code.co_filename:
            return False
        frame = frame.f_back
    return True


def _refuse(path: Any) -> None:
    if _is_refused(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir", "os.chdir") and arguments:
        _refuse(arguments[0])
    elif event == "ctypes.dlsym" and arguments[1] in absent.IN_C:
        raise AttributeError(f"dlsym(RTLD_DEFAULT, {arguments[1]}): symbol not found")
    elif event == "socket.bind" and arguments[1][0] == "127.0.0.2":
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))


def _without_folders(name: str) -> None:
    """Has one of the functions that no audit hook hears of refuse these folders."""
    known = getattr(os, name)

    @functools.wraps(known)
    def look(path: Any, *arguments: Any, **options: Any) -> Any:
        _refuse(path)
        return known(path, *arguments, **options)

    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if known in able:
            able.add(look)
    setattr(os, name, look)


class _Socket(socket.socket):
    def setsockopt(self, level: int, option: int, *value: Any) -> None:
        if (level, option) == (socket.SOL_SOCKET, _SO_ATTACH_FILTER):
            raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))
        super().setsockopt(level, option, *value)


for _module_name, _names in absent.NAMES.items():
    _module: Any = importlib.import_module(_module_name)
    for _name in _names:
        if hasattr(_module, _name):
            delattr(_module, _name)
            if _name in getattr(_module, "__all__", ()):
                _module.__all__.remove(_name)
for _name in ("access", "lstat", "readlink", "stat", "statvfs"):
    _without_folders(_name)
socket.socket = _Socket  # type: ignore[misc]
assert ctypes  # Imported here: its own start is not looked at.
assert psutil
sys.addaudithook(_hook)
