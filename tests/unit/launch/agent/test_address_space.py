from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from sparkdl_runner.launch.agent.host.address_space import lift_limit

LIMIT = 4 << 30


@pytest.fixture
def limited_process():
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, resource.RLIM_INFINITY))

    process = subprocess.Popen(["sleep", "600"], preexec_fn=limit)
    yield process.pid
    process.kill()
    process.wait()


def test_a_limit_that_may_be_lifted_is_lifted(limited_process):
    assert resource.prlimit(limited_process, resource.RLIMIT_AS)[0] == LIMIT
    assert lift_limit(limited_process) == ""
    assert resource.prlimit(limited_process, resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_a_limit_that_the_kernel_keeps_is_told_with_its_size_and_the_setting():
    code = (
        "import os, resource\n"
        "from sparkdl_runner.launch.agent.host.address_space import lift_limit\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}))\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "print(lift_limit(0))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "may use 4096 MiB of address space, as spark.executor.pyspark.memory" in told.stdout


def test_nothing_is_said_where_there_is_no_limit():
    assert lift_limit(os.getpid()) == ""


def test_nothing_is_said_of_a_process_that_has_ended():
    with subprocess.Popen(["true"]) as process:
        process.wait()
        assert lift_limit(process.pid) == ""
