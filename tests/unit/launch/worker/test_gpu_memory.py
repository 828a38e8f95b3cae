"""A GPU without memory: told from other errors, with what to do, and as a cause of its own."""

from __future__ import annotations

import json

import pytest
import torch
from torch.distributed import DistBackendError

from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.wire.message_json import encode
from sparkdl_runner.launch.wire.messages import Message
from sparkdl_runner.launch.worker import __main__ as worker
from sparkdl_runner.launch.worker import gpu_memory

# As torch 2.13's allocator, the driver, NCCL 2.29 and cuBLAS say it.
OF_GPUS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has …"),
    RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to …"),
    DistBackendError("ncclUnhandledCudaError: …\nLast error:\nCuda failure 2 'out of memory'"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]
OTHERS = [
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] not enough memory: you tried to allocate"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    MemoryError("CUDA out of memory"),
    DistBackendError("NCCL error: remote process exited"),
]


class Line:
    """Keeps what a worker sends."""

    def send(self, message: Message) -> None:
        self.message = json.loads(json.dumps(encode(message)[0]))


@pytest.mark.parametrize("error", OF_GPUS)
def test_it_is_known_by_whoever_says_it(error):
    assert gpu_memory.advice(error).startswith("The memory of this rank's GPU ran out, not that")


@pytest.mark.parametrize("error", OTHERS)
def test_other_errors_get_no_advice(error):
    assert not gpu_memory.ran_out(error)
    assert gpu_memory.advice(error) == ""


@pytest.mark.parametrize(("error", "is_effect"), [(OF_GPUS[2], False), (OTHERS[3], True)])
def test_nccl_running_out_of_memory_is_no_lost_peer(error, is_effect):
    line = Line()
    worker._send_failure(line, get_backend("torch"), error)
    assert line.message["is_communication_error"] is is_effect
