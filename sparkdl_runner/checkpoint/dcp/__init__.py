"""``torch.distributed.checkpoint`` (DCP) over this package's checkpoints.

DCP's ``save`` and ``async_save`` take a :class:`DcpWriter`, its ``load`` a :class:`DcpReader`. What
they write is a checkpoint like any other: sharded, without pickle, committed by its manifest.
:func:`load_newest` passes over a damaged one.
"""

from sparkdl_runner.checkpoint.dcp.reader import DcpReader as DcpReader
from sparkdl_runner.checkpoint.dcp.reader import load_newest as load_newest
from sparkdl_runner.checkpoint.dcp.writer import DcpWriter as DcpWriter

__all__ = ["DcpReader", "DcpWriter", "load_newest"]
