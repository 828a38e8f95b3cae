"""A real Kubernetes: etcd, API server, controllers, scheduler, and two nodes with a kubelet each.

Each node is a machine of its own, and so is the one of the others, "control", from which jobs are
submitted. Services have no proxy: the DNS knows the pods behind them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pod_image
import psutil
from machines import Machine

HERE = Path(__file__).parent
BUILD = pod_image.ROOT / "build" / "engines"
CGROUPS = Path("/sys/fs/cgroup")
CONTROL = "10.98.0.254"
# Kubernetes gives it to its own API server's service, for the pods.
SERVICE = "10.96.0.1"
TOKEN = "admin-for-tests"
IMAGE = "docker.io/sparkdl/runner:tests"
BASE = "docker.io/sparkdl/base:tests"
START_SECONDS = 120.0
NEEDED = {
    "containerd": "containerd",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "xz": "xz-utils",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}


def why_not(tools: Path) -> str | None:
    """A line that says why no cluster can run here; None if one can."""
    for name in ("kubernetes", "etcd"):
        if not list(tools.glob(f"bin/{name}-*.xz")):
            return f"there is no {tools}/bin/{name}-VERSION.xz: set ENGINES to the engines' folder"
    if os.geteuid():
        return "only root can make nodes"
    if missing := sorted({NEEDED[one] for one in NEEDED if shutil.which(one) is None}):
        return f"it needs more programs: apt-get install {' '.join(missing)}"
    if not (CGROUPS / "cpuset").is_dir():
        return f"there is no {CGROUPS}/cpuset: the nodes' limits are set by version 1 of cgroups"
    return pod_image.why_not()


class Kubernetes:
    """One cluster; used as a context, nothing of it is left.

    Args:
        tools: The folder of the engines' programs.
    """

    def __init__(self, tools: Path) -> None:
        self._tools = tools
        self.folder = BUILD / f"run-{os.getpid()}"
        """All that it writes, beside the images, which it has as links."""
        self.logs = self.folder / "logs"
        self.shared = self.folder / "shared"
        """A folder that all pods mount at /mnt/shared."""
        self.nodes: dict[str, Node] = {}
        self.url = f"https://{CONTROL}:443"
        self.authority = self.folder / "pki" / "ca.crt"

    def __enter__(self) -> Kubernetes:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.end()
        if hasattr(self, "control"):
            self.control.end()
        _remove(self.folder)

    def kubectl(self, *arguments: object) -> str:
        """Runs it as the cluster's administrator. Returns its output."""
        return self.control.run(*self._kubectl, *arguments)

    def get(self, *arguments: object) -> list[dict]:
        """What ``kubectl get`` lists."""
        found: list[dict] = json.loads(self.kubectl("get", "--output=json", *arguments))["items"]
        return found

    def processes(self, word: str, pods: list[dict]) -> list[psutil.Process]:
        """Those of some pods that have a word in their command line."""
        groups = [f"/pod{one['metadata']['uid']}/" for one in pods]
        found = []
        for one in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.Error, OSError):
                is_one = any(word in argument for argument in one.info["cmdline"] or ())
                group = Path(f"/proc/{one.pid}/cgroup").read_text()
                if is_one and any(name in group for name in groups):
                    found.append(one)
        return found

    def lose(self, name: str) -> None:
        """Cuts a node's power, and so its network first."""
        self.control.run("ip", "link", "set", name, "down")
        self.nodes[name].machine.end()

    def revive(self, name: str) -> None:
        """Starts a node anew that was lost, and waits until pods can run there."""
        self.nodes[name].end()
        # The kernel may not have removed it yet with its other end.
        with contextlib.suppress(RuntimeError):
            self.control.run("ip", "link", "delete", name)
        self._start_node(name)
        self._wait_for_nodes()

    # ---- the start -----------------------------------------------------------------------------

    def _start(self) -> None:
        for old in BUILD.glob("run-*"):  # Of one that was killed.
            if not psutil.pid_exists(int(old.name.removeprefix("run-"))):
                _remove(old)
        for one in (self.folder, self.logs, self.shared):
            one.mkdir(parents=True)
        self.program = self._unpacked("kubernetes")
        self._kubectl = [self.program, "kubectl", f"--kubeconfig={self.folder}/kubeconfig"]
        self._certify()
        self.control = Machine(self.logs)
        self._connect()
        self._start_control_plane()
        with images(self.folder) as self.store:
            for name in ("node-1", "node-2"):
                self._start_node(name)
        self._wait_for_nodes()

    def _unpacked(self, name: str) -> Path:
        """An engine's program, unpacked once."""
        (packed,) = self._tools.glob(f"bin/{name}-*.xz")
        program = BUILD / packed.stem
        if not program.exists():
            part = program.with_name(f"{program.name}.{os.getpid()}")
            with part.open("wb") as file:
                subprocess.run(["xz", "--decompress", "--stdout", packed], stdout=file, check=True)
            part.chmod(0o755)
            part.rename(program)
        return program

    def _certify(self) -> None:
        """Makes the cluster's own authority, and the certificates of its servers."""
        pki = self.authority.parent
        pki.mkdir()

        def openssl(*arguments: object) -> None:
            command = ["openssl", *map(str, arguments)]
            subprocess.run(command, cwd=pki, check=True, capture_output=True)

        key = ("-newkey", "rsa:2048", "-noenc")
        openssl("req", "-x509", *key, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
        names = f"IP:{CONTROL},IP:{SERVICE},DNS:kubernetes.default.svc"
        (pki / "names").write_text(f"subjectAltName={names}")
        for name, subject in (
            ("server", "/CN=kube-apiserver"),
            ("client", "/CN=kube-apiserver/O=system:masters"),
        ):
            openssl("req", *key, "-subj", subject, "-keyout", f"{name}.key", "-out", "request")
            signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
            openssl("x509", "-req", "-in", "request", *signed, "-out", f"{name}.crt")
        openssl("genrsa", "-out", "accounts.key", 2048)
        openssl("rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")
        (pki / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "here", "context": {"cluster": "cluster", "user": "admin"}}],
        }
        (self.folder / "kubeconfig").write_text(json.dumps(content))

    def _connect(self) -> None:
        # A bridge's own address would change with its members, and nodes would send to the old one.
        ip = ("ip", "link", "add", "nodes", "address", "02:00:00:00:00:fe", "type", "bridge")
        self.control.run(*ip)
        for address in (f"{CONTROL}/24", f"{SERVICE}/32"):
            self.control.run("ip", "address", "add", address, "dev", "nodes")
        self.control.run("ip", "link", "set", "nodes", "up")
        self.control.run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    def _start_control_plane(self) -> None:
        pki, etcd = self.authority.parent, "http://127.0.0.1:2379"
        config = f"--kubeconfig={self.folder}/kubeconfig"
        self.control.start(
            "etcd",
            *(self._unpacked("etcd"), f"--data-dir={self.folder}/etcd"),
            *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
        )
        self.control.start(
            "apiserver",
            *(self.program, "kube-apiserver", f"--etcd-servers={etcd}", "--secure-port=443"),
            *(f"--advertise-address={CONTROL}", "--service-cluster-ip-range=10.96.0.0/16"),
            *(f"--tls-cert-file={pki}/server.crt", f"--tls-private-key-file={pki}/server.key"),
            *(f"--client-ca-file={pki}/ca.crt", f"--token-auth-file={pki}/tokens.csv"),
            f"--service-account-key-file={pki}/accounts.pub",
            f"--service-account-signing-key-file={pki}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            *("--authorization-mode=Node,RBAC", "--kubelet-preferred-address-types=InternalIP"),
            f"--kubelet-client-certificate={pki}/client.crt",
            f"--kubelet-client-key={pki}/client.key",
        )
        self._wait_until("API server", lambda: self.kubectl("get", "--raw=/readyz"))
        self.control.start(
            "controllers",
            *(self.program, "kube-controller-manager", config, "--leader-elect=false"),
            f"--service-account-private-key-file={pki}/accounts.key",
            *(f"--root-ca-file={pki}/ca.crt", "--use-service-account-credentials=true"),
        )
        self.control.start(
            "scheduler", self.program, "kube-scheduler", config, "--leader-elect=false"
        )
        dns = (sys.executable, HERE / "pod_dns.py", CONTROL, self.url, TOKEN, self.authority)
        self.control.start("dns", *dns)

    def _start_node(self, name: str) -> None:
        number = int(name.removeprefix("node-"))
        node = self.nodes[name] = Node(name, self.folder, self.logs, f"10.244.{number}")
        ip = ["nsenter", f"--target={self.control.pid}", "--net", "ip"]
        there = ("name", "eth0", "address", f"02:00:00:00:00:{number:02x}")
        veth = ("link", "add", name, "type", "veth", "peer", *there)
        subprocess.run([*ip, *veth, "netns", str(node.machine.pid)], check=True)
        self.control.run("ip", "link", "set", name, "master", "nodes", "up")
        address = f"10.98.0.{number}"
        pods = f"10.244.{number}.0/24"
        self.control.run("ip", "route", "replace", pods, "via", address)
        node.connect(address)
        node.start(self.store, self.program, address)

    def _wait_for_nodes(self) -> None:
        def are_ready() -> bool:
            for node in self.nodes.values():
                node.keep_kubelet()
            ready = [
                condition["status"]
                for one in self.get("nodes")
                for condition in one["status"]["conditions"]
                if condition["type"] == "Ready"
            ]
            return ready == ["True"] * len(self.nodes)

        self._wait_until("nodes", are_ready)

    def _wait_until(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(RuntimeError):
                if holds():
                    return
            if time.monotonic() > deadline:
                logs = [path.read_text()[-1500:] for path in sorted(self.logs.iterdir())]
                raise RuntimeError(f"{what}: not ready\n" + "\n".join(logs))
            time.sleep(0.5)


class Node:
    """A machine with containerd and a kubelet.

    Args:
        name: Its name in the cluster.
        folder: The cluster's.
        logs: Where its programs' output goes.
        network: The first three numbers of its pods' addresses.
    """

    def __init__(self, name: str, folder: Path, logs: Path, network: str) -> None:
        self.name = name
        self.folder = folder / name
        self._cluster = folder
        self._network = network
        self._cgroup = f"sparkdl-{os.getpid()}-{name}"
        self._socket = self.folder / "containerd.sock"
        self.machine = Machine(logs)
        # Programs write there and cannot be told to write elsewhere.
        for one in ("/run", "/var/log", "/var/lib"):
            self.machine.run("mount", "-t", "tmpfs", "none", one)

    def connect(self, address: str) -> None:
        """Gives it its place in the nodes' network, and lets it forward its pods' packets."""
        self.machine.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        self.machine.run("ip", "link", "set", "eth0", "up")
        self.machine.run("ip", "route", "add", "default", "via", CONTROL)
        self.machine.run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    def start(self, store: Path | None, program: Path, address: str) -> None:
        """Starts its programs.

        Args:
            store: The store with the base image, to have a copy of.
            program: Kubernetes' programs.
            address: The node's.
        """
        self.start_containerd(store)
        self.add_project()
        self._limit()
        config = self.folder / "kubelet.json"
        never = {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"}
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "resolvConf": "",
            "evictionHard": never,
            "clusterDomain": "cluster.local",
            "clusterDNS": [CONTROL],
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(self.folder / "pod-logs"),
            "volumePluginDir": str(self.folder / "plugins"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._cluster / "pki" / "ca.crt")},
            },
        }
        config.write_text(json.dumps(settings))
        self._kubelet_command = [
            *(program, "kubelet", f"--kubeconfig={self._cluster}/kubeconfig"),
            *(f"--config={config}", f"--root-dir={self.folder}/kubelet"),
            *(f"--hostname-override={self.name}", f"--node-ip={address}"),
        ]
        self._start_kubelet()

    def _start_kubelet(self) -> None:
        self._kubelet = self.machine.start(f"{self.name}-kubelet", *self._kubelet_command)

    def keep_kubelet(self) -> None:
        """Starts the kubelet again if it has ended, as an init system does: its start may fail."""
        if self._kubelet.poll() is not None:
            self._start_kubelet()

    def start_containerd(self, store: Path | None = None) -> None:
        """Starts containerd on a copy of a store of images, or an empty one."""
        images = self.folder / "containerd"
        if not images.exists():
            self.folder.mkdir()
            if store is not None:
                _copy_store(store, images)
            network = self.folder / "cni"
            network.mkdir()
            addresses = {
                "type": "host-local",
                "dataDir": str(self.folder / "addresses"),
                "ranges": [[{"subnet": f"{self._network}.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            }
            bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": addresses}
            pods = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
            (network / "10-pods.conflist").write_text(json.dumps(pods))
        config = self.folder / "containerd.toml"
        # Root may not be allowed to raise its own limits: then containers cannot lower them either.
        config.write_text(
            f'version = 2\nroot = "{images}"\nstate = "/run/containerd"\n'
            f'[grpc]\naddress = "{self._socket}"\n'
            '[plugins."io.containerd.grpc.v1.cri"]\n'
            f'sandbox_image = "{BASE}"\nrestrict_oom_score_adj = true\n'
            '[plugins."io.containerd.grpc.v1.cri".cni]\n'
            f'bin_dir = "/usr/lib/cni"\nconf_dir = "{self.folder}/cni"\n'
            '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
            'runtime_type = "io.containerd.runc.v2"\n'
        )
        self._socket.unlink(missing_ok=True)
        self.machine.start(f"{self.name}-containerd", "containerd", f"--config={config}")
        deadline = time.monotonic() + START_SECONDS
        while not self._socket.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: containerd does not start")
            time.sleep(0.1)

    def import_image(self, archive: Path) -> None:
        """Takes an image into the store."""
        ctr = ("ctr", f"--address={self._socket}", "--namespace=k8s.io")
        self.machine.run(*ctr, "image", "import", archive)

    def add_project(self) -> None:
        """Puts this project's layer upon the base image."""
        base = [
            pod_image.Blob(*one)
            for one in json.loads((self.folder / "containerd" / "layers.json").read_text())
        ]
        layer, archive = self.folder / "project.tar", self.folder / "image.tar"
        pod_image.make_project(layer)
        layers = [*base, pod_image.Blob.of(layer)]
        pod_image.write_archive(archive, IMAGE, layers, pod_image.configuration(), [layer])
        self.import_image(archive)

    def end(self) -> None:
        """Ends all that runs there."""
        self.machine.end()
        for controller in CGROUPS.iterdir():
            _remove_cgroups(controller / self._cgroup)

    def _limit(self) -> None:
        """Makes the group of its pods' processes, which counts as much as a machine of its own."""
        for controller in CGROUPS.iterdir():
            if controller.is_dir() and controller.name != "unified":
                (controller / self._cgroup).mkdir(exist_ok=True)
        for name in ("cpus", "mems"):
            value = (CGROUPS / "cpuset" / f"cpuset.{name}").read_text()
            (CGROUPS / "cpuset" / self._cgroup / f"cpuset.{name}").write_text(value)
        (CGROUPS / "cpu" / self._cgroup / "cpu.shares").write_text("4096")


def _remove(folder: Path) -> None:
    """Removes a folder of some 200,000 files, for which Python would need half a minute."""
    subprocess.run(["rm", "-rf", folder], check=True)


def _remove_cgroups(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


@contextlib.contextmanager
def images(folder: Path) -> Iterator[Path]:
    """A store of containerd with the base image, made once for its inputs; others wait."""
    store = BUILD / f"images-{pod_image.base_key()}"
    with (BUILD / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not store.exists():
            # One for each lane, and for each state of it: the older ones are large.
            for old in sorted(BUILD.glob("images-*"), key=os.path.getmtime)[:-1]:
                _remove(old)
            _make_store(folder / "making").rename(store)
        os.utime(store)
        yield store


def _make_store(folder: Path) -> Path:
    folder.mkdir()
    makers = {
        "system": pod_image.make_system,
        "environment": pod_image.make_environment,
        "spark": pod_image.make_spark,
    }
    files = [folder / f"{name}.tar" for name in makers]
    for make, file in zip(makers.values(), files, strict=True):
        make(file)
    layers = [pod_image.Blob.of(file) for file in files]
    # Its containers hold the namespaces of a pod, and do nothing.
    waits = {"Entrypoint": ["/bin/sleep", "infinity"]}
    pod_image.write_archive(folder / "image.tar", BASE, layers, waits, files)
    node = Node("making", folder, folder, "10.244.0")
    try:
        node.start_containerd()
        node.import_image(folder / "image.tar")
    finally:
        node.end()
    store = node.folder / "containerd"
    (store / "layers.json").write_text(json.dumps([[one.digest, one.size_bytes] for one in layers]))
    for file in (*files, folder / "image.tar"):
        file.unlink()
    return store


def _copy_store(store: Path, copy: Path) -> None:
    """Copies a store of images: its layers, which nobody changes, as links."""
    subprocess.run(["cp", "-a", "--link", str(store), str(copy)], check=True)
    for database in copy.rglob("*.db"):
        content = database.read_bytes()
        database.unlink()
        database.write_bytes(content)
