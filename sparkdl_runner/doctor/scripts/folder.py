"""Writes and looks for small files in a folder on remote storage, as a rank would."""

from __future__ import annotations

import json
import sys
from typing import Any

answer: dict[str, Any] = {}
try:
    from sparkdl_runner.filesystem import open_filesystem

    request = json.loads(sys.argv[1])
    filesystem, path = open_filesystem(request["url"])
    if request.get("write"):
        filesystem.create_dir(path, recursive=True)
        with filesystem.open_output_stream(f"{path}/{request['write']}") as stream:
            stream.write(b"sparkdl_runner\n")
    if request.get("look_for"):
        found = filesystem.get_file_info(f"{path}/{request['look_for']}")
        answer["seen"] = found.is_file
    if request.get("remove"):
        filesystem.delete_file(f"{path}/{request['remove']}")
except BaseException as error:
    answer["error"] = f"{type(error).__name__}: {error}"[:600]
print("\x1e" + json.dumps({"folder": answer}), flush=True)
