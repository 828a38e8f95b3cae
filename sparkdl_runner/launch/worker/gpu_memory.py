"""Whether an error says that a GPU's memory ran out, and what to do then."""

from __future__ import annotations

import re
import sys

# "CUDA out of memory." is torch's allocator, "CUDA error: out of memory" the driver, and
# "Cuda failure 2 'out of memory'" NCCL. cuBLAS and cuDNN have codes of their own.
_TEXTS = re.compile(
    r"(CUDA|HIP|Cuda)\b.{0,40}out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED", re.DOTALL
)


def ran_out(error: BaseException) -> bool:
    """Whether the error says that the memory of a GPU ran out."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError):
        return False
    if isinstance(error, getattr(torch, "OutOfMemoryError", ())):
        return True
    # Only texts: to format other objects would run the function's code.
    return any(isinstance(argument, str) and _TEXTS.search(argument) for argument in error.args)


def advice(error: BaseException) -> str:
    """Advice if a GPU's memory ran out; else ""."""
    if not ran_out(error):
        return ""
    return (
        "The memory of this rank's GPU ran out, not that of its host: take smaller batches per "
        "rank, bfloat16, or recompute activations (torch.utils.checkpoint). If nvidia-smi lists "
        "other processes on this GPU, end them; if those are ranks, start fewer on this host. If "
        "much is reserved by PyTorch but unallocated, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    )
