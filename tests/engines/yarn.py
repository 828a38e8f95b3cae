"""A real YARN with HDFS: the driver's machine with Hadoop's daemons, and two with a NodeManager.

The jars of Hadoop's daemons are in the folder ``$ENGINES``. They need those of a Spark 3.5 beside
them.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from xml.sax.saxutils import escape

import psutil
import pyspark
from machines import Machine

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 120
HEAD = "head"
ADDRESSES = {HEAD: "10.97.5.1", "one": "10.97.5.2", "two": "10.97.5.3"}
HOSTS = ("one", "two")
_PACKAGE = "org.apache.hadoop"
NAME_NODE = f"{_PACKAGE}.hdfs.server.namenode.NameNode"
DATA_NODE = f"{_PACKAGE}.hdfs.server.datanode.DataNode"
_NODE_MANAGER = f"{_PACKAGE}.yarn.server.nodemanager.NodeManager"
# What Hadoop 3.3 reaches into, and Java 17 has closed.
_OPENED = (
    *("java.lang", "java.lang.reflect", "java.util", "java.util.concurrent", "java.io"),
    *("java.net", "java.nio", "sun.nio.ch"),
)
# Of those in Spark's folder.
_JARS = ("hadoop-client-", "slf4j", "log4j", "commons-l", "jcl", "leveldbjni", "jackson", "snappy")
_JARS += ("metrics-core", "hadoop-shaded")
_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class Yarn:
    """ResourceManager, NameNode and DataNode on the driver's machine, a NodeManager on each other.

    Args:
        folder: For all that the daemons write.
        jars: The folder with the jars of Hadoop's daemons.
    """

    def __init__(self, folder: Path, jars: Path) -> None:
        self.folder = folder
        self._jars = jars
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.machines: dict[str, Machine] = {}
        self.hdfs = f"hdfs://{HEAD}:8020"
        self.configuration = folder / f"conf-{HEAD}"
        """For ``$HADOOP_CONF_DIR``."""
        names = [f"{address} {name}" for name, address in ADDRESSES.items()]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))

    def start(self) -> None:
        """Starts machines and daemons, and waits until hosts and disks are registered."""
        self.start_hdfs()
        manager = f"{_PACKAGE}.yarn.server.resourcemanager.ResourceManager"
        self._start("resourcemanager", HEAD, manager)
        self._wait_for("resourcemanager", "Transitioned to active state")
        for host in HOSTS:
            self.power_on(host)

    def start_hdfs(self) -> None:
        """Starts the driver's machine with HDFS alone, and waits until its disk is registered."""
        head = self._begin_head()
        head.run(*self._java(HEAD), NAME_NODE, "-format", "-nonInteractive")
        self._start("namenode", HEAD, NAME_NODE)
        self._wait_for("namenode", "NameNode RPC up")
        self._start("datanode", HEAD, DATA_NODE)
        self._wait_for("datanode", "Successfully sent block report")

    def power_on(self, host: str) -> None:
        """Starts a host with its daemon, and waits until YARN has it."""
        machine = self._begin(host)
        head = self.machines[HEAD]
        # The other machine's number is known outside of this one's process table alone.
        link = ["ip", "link", "add", host, "type", "veth", "peer", "name", "eth0"]
        subprocess.run(
            ["nsenter", f"--target={head.pid}", "--net", *link, "netns", str(machine.pid)],
            check=True,
        )
        head.run("ip", "link", "set", host, "master", "bridge")
        head.run("ip", "link", "set", host, "up")
        machine.run("ip", "address", "add", f"{ADDRESSES[host]}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        self._start(host, host, _NODE_MANAGER)
        self._wait_for(host, "Registered with ResourceManager")

    def power_off(self, host: str) -> None:
        """Ends a host without a word to anyone."""
        self.machines[HEAD].run("ip", "link", "delete", host)
        self.machines.pop(host).end()
        self._daemons.pop(host).wait()

    def inside(self, place: str, *command: object) -> list[str]:
        """The command that runs a command on a machine, which goes by its name there."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', place]
        return self.machines[place].inside(*named, *command)

    def processes(self, word: str) -> list[tuple[str, psutil.Process]]:
        """The processes that have a word in their command, with their machines."""
        found = []
        for name, machine in self.machines.items():
            space = os.readlink(f"/proc/{machine.pid}/ns/pid")
            for process in psutil.process_iter(["cmdline"]):
                with suppress(OSError, psutil.Error):
                    is_there = os.readlink(f"/proc/{process.pid}/ns/pid") == space
                    if is_there and any(word in one for one in process.info["cmdline"] or ()):
                        found.append((name, process))
        return found

    def close(self) -> None:
        """Ends all machines."""
        for machine in self.machines.values():
            machine.end()
        for daemon in self._daemons.values():
            daemon.wait()

    def _begin_head(self) -> Machine:
        head = self._begin(HEAD)
        head.run("ip", "link", "add", "bridge", "type", "bridge")
        head.run("ip", "address", "add", f"{ADDRESSES[HEAD]}/24", "dev", "bridge")
        head.run("ip", "link", "set", "bridge", "up")
        return head

    def _begin(self, name: str) -> Machine:
        self._configure(name)
        self.machines[name] = machine = Machine(self.folder)
        machine.run("mount", "--bind", self.folder / "hosts", "/etc/hosts")
        return machine

    def _configure(self, name: str) -> None:
        folder = self.folder / f"conf-{name}"
        folder.mkdir(exist_ok=True)
        own = self.folder / name
        write_properties(
            folder / "core-site.xml",
            {"fs.defaultFS": f"hdfs://{HEAD}:8020", "hadoop.tmp.dir": str(own / "tmp")},
        )
        write_properties(folder / "hdfs-site.xml", self._hdfs_properties())
        write_properties(
            folder / "yarn-site.xml",
            {
                "yarn.resourcemanager.hostname": HEAD,
                "yarn.nodemanager.hostname": name,
                "yarn.nodemanager.bind-host": ADDRESSES.get(name, ""),
                "yarn.nodemanager.webapp.address": f"{name}:0",
                "yarn.nodemanager.local-dirs": str(own / "local"),
                "yarn.nodemanager.log-dirs": str(own / "logs"),
                "yarn.nodemanager.resource.memory-mb": "6144",
                "yarn.nodemanager.resource.cpu-vcores": "4",
                "yarn.nodemanager.vmem-check-enabled": "false",
                # By default, Hadoop 3.3 leaves it to control groups to end a container over its
                # memory, also where it uses none.
                "yarn.nodemanager.resource.memory.enforced": "false",
                "yarn.nodemanager.container-monitor.interval-ms": "500",
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": (
                    "99.9"
                ),
                "yarn.scheduler.minimum-allocation-mb": "128",
                "yarn.application.classpath": "",
            },
        )
        write_properties(
            folder / "capacity-scheduler.xml",
            {
                "yarn.scheduler.capacity.root.queues": "default,small",
                "yarn.scheduler.capacity.root.default.capacity": "80",
                "yarn.scheduler.capacity.root.small.capacity": "20",
                "yarn.scheduler.capacity.root.small.maximum-capacity": "20",
                "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
                "yarn.scheduler.capacity.resource-calculator": (
                    f"{_PACKAGE}.yarn.util.resource.DominantResourceCalculator"
                ),
            },
        )
        (folder / "log4j2.properties").write_text(_LOGGING)

    def _hdfs_properties(self) -> dict[str, str]:
        return {
            "dfs.namenode.name.dir": str(self.folder / "names"),
            "dfs.datanode.data.dir": str(self.folder / "blocks"),
            "dfs.replication": "1",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.http-address": f"{HEAD}:0",
            "dfs.datanode.hostname": HEAD,
            "dfs.datanode.address": f"{HEAD}:0",
            "dfs.datanode.ipc.address": f"{HEAD}:0",
            "dfs.datanode.http.address": f"{HEAD}:0",
        }

    def _java(self, name: str) -> list[str]:
        spark = [one for one in (SPARK_HOME / "jars").glob("*.jar") if one.name.startswith(_JARS)]
        found = [self.folder / f"conf-{name}", *sorted(self._jars.glob("*.jar")), *sorted(spark)]
        java = [os.path.join(os.environ["JAVA_HOME"], "bin", "java"), "-Xmx400m"]
        java += [f"--add-opens=java.base/{one}=ALL-UNNAMED" for one in _OPENED]
        return [*java, "-cp", ":".join(map(str, found))]

    def _start(self, daemon: str, place: str, *command_of_java: str) -> None:
        # What the start scripts of a real daemon set: containers get these.
        homes = ("HADOOP_HOME", "HADOOP_COMMON_HOME", "HADOOP_HDFS_HOME", "HADOOP_YARN_HOME")
        environment = {**os.environ, **dict.fromkeys(homes, str(self.folder))}
        environment["HADOOP_CONF_DIR"] = str(self.folder / f"conf-{place}")
        self._log(daemon).unlink(missing_ok=True)  # What an earlier one said is of no interest.
        command = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', place]
        self._daemons[daemon] = self.machines[place].start(
            daemon, *command, *self._java(place), *command_of_java, environment=environment
        )

    def _log(self, daemon: str) -> Path:
        return self.folder / f"{daemon}.log"

    def _wait_for(self, daemon: str, words: str, times: int = 1) -> None:
        deadline = time.monotonic() + START_SECONDS
        while (told := self._log(daemon).read_text()).count(words) < times:
            if self._daemons[daemon].poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{daemon} does not start:\n{told[-6000:]}")
            time.sleep(0.2)


def write_properties(path: Path, properties: dict[str, str]) -> None:
    """Writes a file of Hadoop's configuration."""
    lines = [
        f"<property><name>{name}</name><value>{escape(value)}</value></property>"
        for name, value in properties.items()
    ]
    path.write_text("\n".join(["<configuration>", *lines, "</configuration>"]))
