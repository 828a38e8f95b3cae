"""A real HDFS whose name service has two NameNodes, which share the log of changes by a folder."""

from __future__ import annotations

import shutil
import signal

from yarn import DATA_NODE, HEAD, NAME_NODE, Yarn, write_properties

_PROXIES = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
_ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"
NAME = "pair"
PORTS = {"first": 8020, "second": 8021}
_TO_ASK_BY_HTTP = 1000


class NameService(Yarn):
    """``hdfs://pair``, on one machine."""

    def start_hdfs(self) -> None:
        """Starts it with the first NameNode active, and waits until its disk is registered."""
        self._begin_head()
        self._configure_pair()
        head = self.machines[HEAD]
        own = ["-D", "dfs.ha.namenode.id=first"]
        head.run(*self._java(HEAD), NAME_NODE, *own, "-format", "-nonInteractive")
        shutil.copytree(self.folder / "names-first", self.folder / "names-second")
        for name in PORTS:
            self._start(name, HEAD, NAME_NODE, "-D", f"dfs.ha.namenode.id={name}")
        self._start("datanode", HEAD, DATA_NODE)
        for name in PORTS:
            self._wait_for(name, "NameNode RPC up")
        self.activate("first")
        self._wait_for("datanode", "Successfully sent block report", times=len(PORTS))

    def activate(self, name: str) -> None:
        """Makes a NameNode the active one. The other one is on standby, or gone."""
        # Without the force, one that does not answer counts as active.
        self.machines[HEAD].run(
            *self._java(HEAD), _ADMIN, "-transitionToActive", "--forceactive", name
        )

    def kill(self, name: str) -> None:
        """Ends a NameNode without a word to anyone."""
        ((_, process),) = self.processes(f"dfs.ha.namenode.id={name}")
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def _configure_pair(self) -> None:
        write_properties(
            self.configuration / "core-site.xml",
            {"fs.defaultFS": f"hdfs://{NAME}", "hadoop.tmp.dir": str(self.folder / "tmp")},
        )
        addresses: dict[str, str] = {}
        for name, port in PORTS.items():
            addresses |= {
                f"dfs.namenode.rpc-address.{NAME}.{name}": f"{HEAD}:{port}",
                f"dfs.namenode.http-address.{NAME}.{name}": f"{HEAD}:{port + _TO_ASK_BY_HTTP}",
                f"dfs.namenode.name.dir.{NAME}.{name}": str(self.folder / f"names-{name}"),
            }
        write_properties(
            self.configuration / "hdfs-site.xml",
            {
                **self._hdfs_properties(),
                "dfs.nameservices": NAME,
                f"dfs.ha.namenodes.{NAME}": ",".join(PORTS),
                **addresses,
                "dfs.namenode.shared.edits.dir": f"file://{self.folder}/edits",
                "dfs.ha.tail-edits.period": "1s",
                f"dfs.client.failover.proxy.provider.{NAME}": _PROXIES,
            },
        )
