"""Several hosts out of one machine: network namespaces on a bridge, with Spark's daemons in them.

All namespaces share one hostname, as badly set up clusters do.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyspark

from namespaces import ip

SPARK_HOME = Path(pyspark.__file__).parent


class Hosts:
    """Two hosts and a driver on one network.

    The hosts' interfaces have different names, and the second host has another one beside it, of
    a network that leads nowhere.
    """

    def __init__(self) -> None:
        # A busy kernel has once refused a pair of interfaces that it gave a moment later.
        for is_last in (False, True):
            try:
                self._make()
                return
            except subprocess.CalledProcessError as error:
                self.close()
                error.add_note(error.stderr)
                if is_last:
                    raise

    def _make(self) -> None:
        self.bridge, number = _new_bridge()
        self.driver = f"10.203.{number}.1"
        self.names = (f"sdl{number}a", f"sdl{number}b")
        self.addresses = (f"10.203.{number}.2", f"10.203.{number}.3")
        self.interfaces = ("eth7", "ens9")
        ip("address", "add", f"{self.driver}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for name, address, interface in zip(
            self.names, self.addresses, self.interfaces, strict=True
        ):
            ip("netns", "add", name)
            if name == self.names[1]:
                ip("-n", name, "link", "add", "aaa0", "type", "bridge")
                ip("-n", name, "address", "add", "192.0.2.77/24", "dev", "aaa0")
                ip("-n", name, "link", "set", "aaa0", "up")
            ip("link", "add", name, "type", "veth", "peer", "name", interface, "netns", name)
            ip("link", "set", name, "master", self.bridge)
            ip("link", "set", name, "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
            ip("-n", name, "link", "set", interface, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def cut(self, host: int) -> None:
        """Pulls a host's cable."""
        ip("link", "set", self.names[host], "down")

    def mend(self, host: int) -> None:
        """Plugs it in again."""
        ip("link", "set", self.names[host], "up")

    def separate(self, *, apart: bool) -> None:
        """Lets the hosts reach the driver alone, or one another as well."""
        for name in self.names:
            subprocess.run(
                ["bridge", "link", "set", "dev", name, "isolated", "on" if apart else "off"],
                check=True,
            )

    def close(self) -> None:
        """Removes the hosts."""
        for name in self.names:
            # The kernel removes a namespace, and the cables in it, after the command has returned.
            # The next hosts may have the same names.
            subprocess.run(["ip", "link", "delete", name], check=False)
            subprocess.run(["ip", "netns", "delete", name], check=False)
        subprocess.run(["ip", "link", "delete", self.bridge], check=False)


def _new_bridge() -> tuple[str, int]:
    """Makes a bridge of a number that no other test process has. Returns its name and number."""
    for number in range(20, 220):
        bridge = f"sdl{number}"
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "add", bridge, "type", "bridge")
            return bridge, number
    raise RuntimeError("the bridges sdl20 to sdl219 are all there: ip link show type bridge")


class Cluster:
    """A standalone Spark: the master beside the driver, and a worker with a fake GPU on each host.

    Args:
        hosts: Where.
        directory: For logs and the workers' own folders.
        gpus: The address of each host's GPU.
    """

    def __init__(self, hosts: Hosts, directory: Path, gpus: Sequence[str]) -> None:
        self._hosts = hosts
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("master", hosts.driver, [], "master.Master", ["--port", "0"])
        self._wait_for("master", "New state: ALIVE")
        log = (directory / "master.log").read_text()
        self.url = re.search(r"Starting Spark master at (spark://\S+)", log)[1]
        for name, address, gpu in zip(hosts.names, hosts.addresses, gpus, strict=True):
            script = directory / f"gpu-{name}.sh"
            script.write_text(f'echo \'{{"name": "gpu", "addresses": ["{gpu}"]}}\'\n')
            script.write_text("#!/bin/sh\n" + script.read_text())
            script.chmod(0o755)
            properties = directory / f"{name}.conf"
            properties.write_text(
                "spark.worker.resource.gpu.amount 1\n"
                f"spark.worker.resource.gpu.discoveryScript {script}\n"
            )
            self._start(
                name,
                address,
                ["ip", "netns", "exec", name],
                "worker.Worker",
                [
                    *("--cores", "2", "--memory", "700m", "--properties-file", str(properties)),
                    *("--work-dir", str(directory / f"work-{name}"), self.url),
                ],
            )
        for name in hosts.names:
            self._wait_for(name, "Successfully registered with master")

    def _start(
        self, name: str, address: str, prefix: list[str], daemon: str, arguments: list[str]
    ) -> None:
        command = [*prefix, str(SPARK_HOME / "bin" / "spark-class")]
        command += [f"org.apache.spark.deploy.{daemon}", "--host", address, "--webui-port", "0"]
        environment = {**os.environ, "SPARK_LOCAL_IP": address, "SPARK_HOME": str(SPARK_HOME)}
        environment["SPARK_DAEMON_MEMORY"] = "256m"
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=log)
            )

    def _wait_for(self, name: str, words: str) -> None:
        log = self._directory / f"{name}.log"
        deadline = time.monotonic() + 500
        while words not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    def lose(self, host: int) -> None:
        """Ends a worker and all that it has started, as if the host had lost its power."""
        worker = psutil.Process(self._processes[1 + host].pid)
        for process in [worker, *worker.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):  # It has ended with its parent.
                process.kill()

    def close(self) -> None:
        """Ends all daemons and what they have started."""
        family = [psutil.Process(process.pid) for process in self._processes]
        family += [child for parent in family for child in parent.children(recursive=True)]
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            process.kill()
        for daemon in self._processes:
            daemon.wait()
