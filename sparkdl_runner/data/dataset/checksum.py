"""The CRC-32 of a whole file, from the checksums that Spark left beside it.

Writing to a ``file:`` URL, Hadoop keeps a CRC-32 of every 512 bytes of ``name`` in ``.name.crc``.
Those combine into the CRC-32 of the file without reading it again: appending bytes shifts a CRC-32
in a linear way, so the parts are put together pairwise, like the rounds of a tournament.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs

from sparkdl_runner.base.foreign_file import ForeignFileError, read_small

_HEADER = b"crc\0"
_POLYNOMIAL = 0xEDB88320  # CRC-32 as in zlib, PNG and Hadoop, lowest bit first
_READ_BYTES = 1 << 20

_Matrix = npt.NDArray[np.uint32]
"""``[32]``: what each bit of a checksum becomes."""


def crc32_from_sidecar(filesystem: pa.fs.FileSystem, path: str, size_bytes: int) -> int | None:
    """The CRC-32 of a file that Hadoop wrote, or None where it left no checksums of this file.

    Only local files have such checksums.
    """
    if not isinstance(filesystem, pa.fs.LocalFileSystem):
        return None
    folder, _, name = path.rpartition("/")
    try:
        content = read_small(filesystem, f"{folder}/.{name}.crc", size_bytes + _READ_BYTES)
    except (OSError, ForeignFileError):
        return None
    part_bytes = int.from_bytes(content[4:8], "big")
    if content[:4] != _HEADER or part_bytes < 1:
        return None
    if len(content) != 8 + 4 * -(-size_bytes // part_bytes):
        return None
    return combine(np.frombuffer(content, ">u4", offset=8), part_bytes, size_bytes)


def crc32_of(stream: Any) -> int:
    """The CRC-32 of a stream from where it stands to its end."""
    result = 0
    while part := stream.read(_READ_BYTES):
        result = zlib.crc32(part, result)
    return result


def combine(parts: npt.NDArray[Any], part_bytes: int, size_bytes: int) -> int:
    """The CRC-32 of a whole from those of its parts.

    Args:
        parts: ``[n]``, CRC-32 of each part.
        part_bytes: Bytes of each part, except that the last may be shorter.
        size_bytes: Bytes of the whole.
    """
    if size_bytes == 0:
        return 0
    last_bytes = size_bytes - (len(parts) - 1) * part_bytes
    crcs = parts[:-1].astype(np.uint32)
    shift = _shift_by(part_bytes)
    while len(crcs) > 1:
        if len(crcs) % 2:  # An empty part in front has the checksum 0 and changes nothing.
            crcs = np.concatenate([np.zeros(1, np.uint32), crcs])
        crcs = _apply(shift, crcs[0::2]) ^ crcs[1::2]
        shift = _apply(shift, shift)
    front = crcs if len(crcs) else np.zeros(1, np.uint32)
    return int(_apply(_shift_by(last_bytes), front)[0]) ^ int(parts[-1])


def _apply(matrix: _Matrix, values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    result = np.zeros_like(values)
    for bit in range(32):
        result ^= matrix[bit] * ((values >> np.uint32(bit)) & np.uint32(1))
    return result


def _shift_by(size_bytes: int) -> _Matrix:
    """The effect of appending so many zero bytes on a checksum, by repeated squaring."""
    one_bit = np.array([_POLYNOMIAL, *(1 << bit for bit in range(31))], dtype=np.uint32)
    power, bits = one_bit, 8 * size_bytes
    result = np.array([1 << bit for bit in range(32)], dtype=np.uint32)
    while bits:
        if bits & 1:
            result = _apply(power, result)
        power = _apply(power, power)
        bits >>= 1
    return result
