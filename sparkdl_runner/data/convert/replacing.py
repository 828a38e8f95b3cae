"""Replaces an earlier conversion, by its manifest alone: no folder is moved.

Each conversion that stays has a sub folder of its own below the folder that a person named::

    orders/_manifest.json            the commit: lists _conversion-B/files/part-0.parquet
    orders/_conversion-B/files/part-0.parquet
    orders/_conversion-A/…           files of another conversion, which no reader reads

Files are written, then checked, then the manifest is replaced, then what the earlier manifest
listed is deleted. The underscore makes Spark, Arrow and petastorm pass over the sub folders when
they list the folder, so that no reader mixes two of them. While a sub folder is being written, it
has a marker that names its writer, so that only abandoned sub folders are deleted.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict

from pyarrow import fs

from sparkdl_runner.base.foreign_file import ForeignFileError
from sparkdl_runner.data.dataset.describe import list_parquet
from sparkdl_runner.data.dataset.footers import FOOTERS_NAME
from sparkdl_runner.data.dataset.held_folder import delete_folder, held
from sparkdl_runner.data.dataset.leftovers import MARKER_NAME, Owner
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME, MOST_BYTES, Manifest
from sparkdl_runner.data.errors import ConversionError, DatasetError, NoManifestError

SUBFOLDER_PREFIX = "_conversion-"
_FILES = "files"

_log = logging.getLogger(__name__)


def replace(
    filesystem: fs.FileSystem,
    folder: str,
    application_id: str,
    write: Callable[[str], Manifest],
) -> Manifest:
    """Writes a new conversion, which then replaces what the folder holds, if anything.

    Args:
        filesystem: Where the folder is.
        folder: Made if need be.
        application_id: Says in the marker who writes.
        write: Writes files into the sub folder of this name, such as ``"a/b/"``, which it makes;
            checks them; and returns a manifest whose paths are relative to the folder. It
            raises if anything is wrong, and then the folder is as it was.

    Returns:
        The manifest, which is in place.
    """
    earlier = _read_earlier(filesystem, folder)
    remove_abandoned(filesystem, folder)
    name = f"{SUBFOLDER_PREFIX}{time.strftime('%Y%m%d%H%M%S')}-{uuid.uuid4()}"
    try:
        _begin(filesystem, folder, name, application_id)
        manifest = write(f"{name}/{_FILES}/")
        # In a thread, where no exception of a signal handler can end it half-way: an object store
        # keeps what was written when the file is closed, whether that is complete or not.
        with ThreadPoolExecutor(1, "sparkdl-manifest") as thread:
            in_place = thread.submit(_put_in_place, filesystem, folder, name, manifest)
        try:
            in_place.result()
        except OSError as error:
            raise ConversionError(
                f"Cannot write {folder}/{MANIFEST_NAME}: {error}. Make the folder writable, and "
                "convert again."
            ) from error
    except BaseException:
        _give_up(filesystem, folder, name, earlier)
        raise
    _finish(filesystem, folder, name)
    return manifest


def _begin(filesystem: fs.FileSystem, folder: str, name: str, application_id: str) -> None:
    """Makes the sub folder, marked as being written by this process."""
    marker = json.dumps(asdict(Owner.this_process(name, application_id))).encode()
    try:
        try:
            _mark(filesystem, f"{folder}/{name}", marker)
        except FileNotFoundError:  # A concurrent overwrite deleted it as abandoned.
            _mark(filesystem, f"{folder}/{name}", marker)
    except OSError as error:
        raise ConversionError(
            f"Cannot write to {folder} ({error}): make it writable, or choose another place."
        ) from error


def _mark(filesystem: fs.FileSystem, folder: str, marker: bytes) -> None:
    filesystem.create_dir(folder, recursive=True)
    with held(filesystem, folder) as made:
        made.write(MARKER_NAME, marker)


def _read_earlier(filesystem: fs.FileSystem, folder: str) -> bytes | None:
    """The bytes of the manifest that is to be replaced, or None; warns if it is torn."""
    try:
        with held(filesystem, folder, may_be_link=True) as there:
            earlier = there.read(MANIFEST_NAME, MOST_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ForeignFileError) as error:
        raise ConversionError(
            f"Cannot read {folder}/{MANIFEST_NAME}: {error}. Make it readable, or choose another "
            "place."
        ) from error
    try:
        Manifest.read(filesystem, folder)
    except DatasetError as error:
        _log.warning(
            "The conversion in %s cannot be read, perhaps since an earlier overwrite was ended "
            "while it replaced the manifest; this one writes it anew. (%s)",
            folder,
            error,
        )
    return earlier


def _put_in_place(filesystem: fs.FileSystem, folder: str, name: str, manifest: Manifest) -> None:
    """Replaces the folder's manifest: from here on, it holds the new conversion."""
    with held(filesystem, folder, may_be_link=True) as there:
        if there.can_move:
            with held(filesystem, f"{there.path}/{name}") as beside:
                manifest.write_into(beside)
                try:
                    beside.move(MANIFEST_NAME, there)
                    return
                except OSError:  # A mounted object store may know no rename.
                    with suppress(OSError):
                        beside.remove(MANIFEST_NAME)
        manifest.write_into(there)


def _finish(filesystem: fs.FileSystem, folder: str, name: str) -> None:
    """Deletes what the new conversion has replaced. It is in place already, so this only warns."""
    try:
        with held(filesystem, f"{folder}/{name}") as new:
            new.remove(MARKER_NAME)
        remove_abandoned(filesystem, folder)
        _remove_flat(filesystem, folder)
    except (OSError, DatasetError) as error:
        _log.warning(
            "The new conversion is in %s; not all of the earlier one could be deleted, which the "
            "next overwrite does: %s",
            folder,
            error,
        )


def _give_up(filesystem: fs.FileSystem, folder: str, name: str, earlier: bytes | None) -> None:
    """After a failure, deletes the new sub folder and puts back the earlier manifest.

    Changes nothing if the new manifest is in place already: then it was too late to stop.
    """
    try:
        try:
            if name in _subfolders_of(Manifest.read(filesystem, folder)):
                return
        except DatasetError:  # There is none, or it was being written in place.
            torn = filesystem.get_file_info(f"{folder}/{MANIFEST_NAME}").type == fs.FileType.File
            if torn or earlier is not None:
                with held(filesystem, folder, may_be_link=True) as there:
                    if earlier is None:
                        there.remove(MANIFEST_NAME)
                    else:
                        there.write(MANIFEST_NAME, earlier)
        if filesystem.get_file_info(f"{folder}/{name}").type != fs.FileType.NotFound:
            delete_folder(filesystem, f"{folder}/{name}")
        entries = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        if earlier is not None:
            _log.warning("The earlier conversion in %s is as it was.", folder)
        elif not entries and filesystem.get_file_info(folder).type != fs.FileType.NotFound:
            delete_folder(filesystem, folder)
    except Exception as error:
        _log.warning("Cannot delete the unfinished conversion %s/%s: %s", folder, name, error)


def remove_abandoned(filesystem: fs.FileSystem, folder: str) -> None:
    """Deletes sub folders that the manifest does not list and that no process writes."""
    entries = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    writers = {
        entry: _writer_of(filesystem, entry.path)
        for entry in entries
        if entry.type == fs.FileType.Directory and entry.base_name.startswith(SUBFOLDER_PREFIX)
    }
    # After looking for markers, since another process that commits deletes its marker last.
    try:
        kept = _subfolders_of(Manifest.read(filesystem, folder))
    except NoManifestError:
        kept = set()
    except DatasetError:
        return  # Torn: it cannot say which of them was the earlier conversion.
    for entry, writer in writers.items():
        if entry.base_name in kept:
            continue
        if writer is not None:
            if writer:
                _log.warning(
                    "%s is being written by %s, or was left when that was killed: delete it if "
                    "nothing is being converted to there. No training reads it.",
                    entry.path,
                    writer,
                )
            continue
        try:
            with held(filesystem, entry.path) as sub_folder:
                if _writer_of(filesystem, sub_folder.path) is not None:
                    continue  # It has begun meanwhile.
                if strange := _not_of_a_conversion(filesystem, sub_folder.path):
                    _log.warning(
                        "%s is not deleted, although it is named like a conversion: it holds %r, "
                        "which no conversion creates. Rename the folder, or delete it yourself.",
                        entry.path,
                        strange,
                    )
                    continue
                sub_folder.delete()
        except OSError as error:
            _log.warning("Cannot delete %s, which nobody reads: %s", entry.path, error)


def _remove_flat(filesystem: fs.FileSystem, folder: str) -> None:
    """Deletes replaced files in the folder itself, where temporary conversions have theirs."""
    listed = {file.path for file in Manifest.read(filesystem, folder).files}
    names = [name for name in list_parquet(filesystem, folder) if "/" not in name]
    replaced = [name for name in names if name not in listed]
    if listed & set(names):
        return
    there = {entry.base_name for entry in filesystem.get_file_info(fs.FileSelector(folder))}
    with held(filesystem, folder, may_be_link=True) as flat:
        for name in ("_SUCCESS", FOOTERS_NAME, *replaced):
            # The checksum first: a later call finds it by the file's name.
            for file_name in (f".{name}.crc", name):
                if file_name in there:
                    flat.remove(file_name)


def _not_of_a_conversion(filesystem: fs.FileSystem, path: str) -> str | None:
    """The name of an entry in a folder that no conversion creates, or None.

    Another user who may write to the parent folder can rename any folder there to a conversion's
    name, also one that is not theirs.
    """
    names = {entry.base_name for entry in filesystem.get_file_info(fs.FileSelector(path))}
    return min(names - {_FILES, MARKER_NAME, MANIFEST_NAME}, default=None)


def _subfolders_of(manifest: Manifest) -> set[str]:
    return {file.path.partition("/")[0] for file in manifest.files}


def _writer_of(filesystem: fs.FileSystem, path: str) -> str | None:
    """The process that may still be writing a sub folder.

    Returns:
        Words for a process that cannot be looked up from here; ``""`` for one that is running;
        None if no process writes there any more.
    """
    try:
        owner = Owner.of_directory(filesystem, path)
    except (FileNotFoundError, json.JSONDecodeError):
        return None  # Complete, or its writer was ended while it wrote the marker.
    except (OSError, ValueError):
        return "another process"
    if not owner.is_on_this_machine():
        return f"a process on {owner.hostname}"
    return None if owner.is_gone() else ""
