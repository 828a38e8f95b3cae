"""How a run is to be launched, watched and retried: validated once, on the driver."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sparkdl_runner.tracking.settings import Tracking

MOST_NAME_CHARACTERS = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_NAME_CHARACTERS - 1}}}")
_SWITCHES = (
    *("rerun_finished", "restart_user_errors", "allow_unencrypted", "refuse_shared_hosts"),
    *("slow_rank_stops", "preflight_excludes", "live_page"),
)
VERBOSITIES = ("all", "log_callback_only")
NODE_VIEWS = ("host", "task")
PREFLIGHTS = ("quick", "full")
GANGS = ("auto", "barrier", "tasks")
_LEAST_SECONDS = {
    "slot_wait_seconds": 0,
    "shutdown_grace_seconds": 0,
    "restart_backoff_seconds": 0,
    "start_timeout_seconds": 1,
    "rendezvous_timeout_seconds": 1,
    # Ranks report every second, so with a shorter limit healthy ones would be lost.
    "heartbeat_timeout_seconds": 3,
}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run. Each has a default.

    Raises:
        ValueError: A value is out of range or unknown.
        TypeError: A value has the wrong type.
    """

    name: str | None = None
    """What this training is called. The same call by another process, after a failure or on another
    day, goes on in the same MLflow run; one that has finished is not run again, and its value is
    returned. Letters, digits, ``.``, ``_`` and ``-``. Each training in an experiment needs its own.
    It needs MLflow, which keeps the name."""

    rerun_finished: bool = False
    """Whether a training of this ``name`` that has finished is trained anew, in a new run."""

    driver_log_verbosity: str = "all"
    """``"all"``: every line that any rank prints is shown on the driver, prefixed by its rank.
    ``"log_callback_only"``: only what was sent by ``log_to_driver`` (or ``LogCallback``)."""

    gang: str = "auto"
    """How Spark starts the ranks. ``"barrier"``: as one barrier stage, all at once. ``"tasks"``: as
    ordinary tasks, each of which holds its slot until the last has come; what has not come within
    ``start_timeout_seconds`` has them give their slots back, and wait for another try. ``"auto"``,
    the default: ``"tasks"`` where ``spark.dynamicAllocation.enabled`` is on, with which Spark
    starts no barrier stage, else ``"barrier"``."""

    ranks_per_task: int | None = None
    """How many ranks each Spark task starts, as processes that share its cores and its GPUs; the
    number of ranks must be a multiple. None, the default: as many as the task has GPUs
    (``spark.task.resource.gpu.amount``), or one. No more than ``num_proc``. Ranks on this host need
    no task."""

    log_directory: str | None = None
    """Where each host keeps the full log of its ranks. By default that is YARN's log folder, or
    one below the temporary folder, where only the logs of ranks that failed stay, for a week."""

    slot_wait_seconds: float = 60.0
    """How long to wait for executors to register when the cluster has too few slots. Those that
    YARN or Kubernetes has given a place, and that have yet to start, are waited for up to ten
    minutes more, unless this is 0. Slots that exist and are busy are waited for without limit, as
    Databricks documents."""

    start_timeout_seconds: float = 120.0
    """How long the ranks may take to find one another, from the start of the first; and then each
    to import the backend. No other deadline counts before that."""

    rendezvous_timeout_seconds: float = 120.0
    """How long a rank may wait in ``hvd.init()`` or ``init_process_group()``."""

    hang_timeout_seconds: float | None = 1800.0
    """How long all ranks together may make no progress, or one process show no sign of life, before
    the run is ended with their stacks. None waits for ever."""

    heartbeat_timeout_seconds: float = 30.0
    """How long a host may be silent before it counts as lost. A host that does not hear the
    driver for twice as long ends its ranks by itself."""

    shutdown_grace_seconds: float = 3.0
    """How long a worker may take to end before it is killed, once its function has returned or
    raised, or it is asked to stop (SIGTERM). The value of one that lingers counts, and a note says
    what kept it."""

    spare_seconds: float | None = None
    """How long a spare worker waits after a call for the next, which then need not import torch. It
    is a process beside each agent, with the backend imported and nothing of yours, from which ranks
    are forked. 0 keeps none. None, the default, is 60 in a notebook, an interactive Python and
    trials of ``tune``, else 0. With ``max_restarts`` there is one while ranks train, unless this is
    0, and a restart takes it. On Linux 5.3 or later alone."""

    time_limit_seconds: float | None = None
    """How long the training may take, restarts included, before ``should_stop`` tells it to end by
    itself; None for any time. Set it below the limit of the cluster's job."""

    max_restarts: int = 0
    """How often to start all ranks again after one died, hung or was lost. A restart from a
    checkpoint that was saved because a host will be taken away does not count, but with 0 there is
    none either."""

    restart_user_errors: bool = False
    """Whether to start again also after the function raised, which it will probably do again."""

    restart_backoff_seconds: float = 5.0
    """How long to wait before the first restart; twice as long before each further one, up to a
    minute. An attempt that ran for more than a minute is waited for as the first. After one that
    saved a further checkpoint the ranks start again at once, and the waits begin anew."""

    environment: Mapping[str, str] | Sequence[str] | None = field(default=None, repr=False)
    """Which of the driver's environment variables ranks on Spark get; ranks on this host have all.
    By default those that configure Horovod, NCCL, gloo and torch (``NCCL_*``, ``HOROVOD_*``,
    ``PYTORCH_*`` and the like), without secrets. A mapping sets more variables. A list of patterns
    such as ``["MY_*"]`` replaces the default and matches secrets too; ``[]`` copies nothing."""

    node_view: str = "host"
    """What the environment calls a node. ``"host"``, as torchrun: the ranks of a host are one node,
    ``LOCAL_RANK`` counts them, and each sees the GPUs of all. ``"task"``, as TorchDistributor: each
    Spark task is a node, ``NODE_RANK`` and ``GROUP_RANK`` are its number, ``LOCAL_RANK`` counts its
    ranks (one, where a task has one GPU), and they see its GPUs only. ``current_world()`` counts
    hosts."""

    min_num_proc: int | None = None
    """The least number of ranks with which the run may start or go on; None for as many as it was
    asked for. ``num_proc=(min, max)`` says the same."""

    require_collectives: bool | None = None
    """Whether ranks must join one another, by a process group, ``hvd.init`` or TensorFlow's
    strategy. None: if several ranks return and none ever did, there is a warning (except for
    ``gather``). True: RanksApartError is raised. False: the ranks are meant to be independent."""

    elastic_state_url: str | None = None
    """Where ``state.commit()`` keeps the state of code for Horovod's elastic mode
    (``hvd.elastic.run``): a folder or URL that all hosts see, one for each training. A restart
    goes on from there."""

    tracking: Tracking | bool | None = None
    """The MLflow run of the training: a ``Tracking`` describes it, True takes the defaults of
    that, False makes no run. None, the default, makes one if MLflow is set up (by its environment
    variables, on Databricks, or since this process has set a tracking URI or has a run active),
    or if the function, a helper function in its module, or the script calls MLflow."""

    events: str | None = None
    """Where the run tells programs what happens to it, a line of JSON an event: a path on the
    driver's host, to whose file they are added, or ``"-"`` for standard output."""

    live_page: bool = False
    """Whether the driver shows the training while it runs: curves, parts of a step by rank, memory,
    newest lines, faults. In a notebook in the cell; elsewhere as a page on the loopback interface,
    whose address is a secret: it is printed on a terminal, else a line names your file with it."""

    slow_rank_factor: float | None = 1.3
    """A rank is named, on the console and as a tag of the MLflow run, whose compute or data time in
    a step is beyond so many times the median of the other ranks. It needs ``log_metrics`` on all
    ranks, as the ``Trainer`` calls it. None names none."""

    slow_rank_steps: int = 50
    """Over how many steps ranks are compared, in two halves of 2.5 seconds at least. One whose time
    is little beyond the factor is named later, once that cannot be chance."""

    slow_rank_stops: bool = False
    """Whether ``should_stop`` then tells the function to end by itself, with the rank as the
    reason: to go on elsewhere, from the checkpoint."""

    preflight: str | None = None
    """Whether ranks measure their hosts before the training starts: ``"quick"`` in two seconds,
    ``"full"`` in twenty; None measures nothing. What is slow by ``slow_rank_factor``, or odd, is
    named on the console, in the MLflow run and in ``events``."""

    preflight_excludes: bool = False
    """Whether the executors of ranks that ``preflight`` finds slow or faulty get none of the
    training's ranks. There must be other slots, or ``min_num_proc`` ranks left."""

    port_range: tuple[int, int] | None = None
    """The first and the last port of the driver's channel and of what rank 0's host serves, for
    clusters with firewalls; None for any free ones. An attempt takes one port on the driver's host
    and two on rank 0's. Ranks connect to one another at free ports of the kernel's choice."""

    network_interface: str | None = None
    """The network on which ranks meet: an interface's name such as ``eth1``, or a network such as
    ``10.1.0.0/16`` if the names differ between hosts. The driver listens there too, if it has it.
    None for the network by which Spark knows the host."""

    allow_unencrypted: bool = False
    """Whether gradients may cross the network in the clear though Spark's settings ask for
    encryption; neither Horovod nor torch.distributed can encrypt them."""

    refuse_shared_hosts: bool = False
    """Whether to end an attempt before its ranks start where another user of one of its hosts is
    seen: gloo and NCCL let any of them join. Users are seen by their processes, sockets and logins,
    from uid 1000 on, without nobody and systemd's dynamic users; a container shows its own only.
    Each host looks once, at the start."""

    def chosen(self) -> dict[str, Any]:
        """The settings that differ from their defaults, without ``tracking``.

        Of ``environment`` only the names, since its values may be secrets.
        """
        chosen = {
            setting.name: getattr(self, setting.name)
            for setting in fields(self)
            if setting.name != "tracking" and getattr(self, setting.name) != setting.default
        }
        if self.environment is not None:
            chosen["environment"] = ", ".join(self.environment)
        return chosen

    def __post_init__(self) -> None:
        _check_choice("driver_log_verbosity", self.driver_log_verbosity, VERBOSITIES)
        _check_choice("node_view", self.node_view, NODE_VIEWS)
        _check_choice("gang", self.gang, GANGS)
        if self.preflight is not None:
            _check_choice("preflight", self.preflight, PREFLIGHTS)
        elif self.preflight_excludes:
            raise ValueError(
                "preflight_excludes is True and preflight is None, which measures nothing; set it "
                "to 'quick' or 'full'."
            )
        for name, least in _LEAST_SECONDS.items():
            _check_seconds(name, getattr(self, name), least=least)
        if self.hang_timeout_seconds is not None:
            _check_seconds("hang_timeout_seconds", self.hang_timeout_seconds, least=2)
        if self.spare_seconds is not None:
            _check_seconds("spare_seconds", self.spare_seconds, least=0)
        if self.time_limit_seconds is not None:
            _check_seconds("time_limit_seconds", self.time_limit_seconds, least=1)
        _check_count("max_restarts", self.max_restarts, least=0)
        _check_count("slow_rank_steps", self.slow_rank_steps, least=1)
        _check_factor("slow_rank_factor", self.slow_rank_factor)
        for name in ("min_num_proc", "ranks_per_task"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), least=1)
        object.__setattr__(self, "port_range", _port_range(self.port_range))
        _check_interface(self.network_interface)
        _check_name(self.name, self.tracking)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} is {getattr(self, name)!r}; it must be True or False.")
        if self.require_collectives not in (None, True, False):
            raise TypeError(
                f"require_collectives is {self.require_collectives!r}; it must be True, False or "
                "None."
            )
        if self.tracking is not None and not isinstance(self.tracking, (bool, Tracking)):
            raise TypeError(
                f"tracking is {self.tracking!r}; it must be a sparkdl_runner.tracking.Tracking, "
                "True, False or None."
            )
        _check_environment(self.environment)
        if self.elastic_state_url is not None:
            # Only now: few need it. Relative paths are the driver's, and ranks may be elsewhere.
            from sparkdl_runner.checkpoint.directory.storage import directory_url

            url = directory_url(self.elastic_state_url)
            object.__setattr__(self, "elastic_state_url", url)
        for name in ("log_directory", "events"):
            if not isinstance(getattr(self, name), str | None):
                raise TypeError(f"{name} is {getattr(self, name)!r}; it must be a path.")


def check_min_num_proc(config: RunConfig, num_proc: int) -> None:
    """Raises ValueError if a restart would need more ranks than ``num_proc`` starts.

    Where that is 0, the cluster says how many, and is asked later.
    """
    least = config.min_num_proc
    if least is not None and num_proc and least > abs(num_proc):
        raise ValueError(
            f"min_num_proc is {least}, and num_proc={num_proc} starts only {abs(num_proc)} "
            "ranks; min_num_proc says with how few of them the run may go on: set it to "
            f"{abs(num_proc)} or less, or raise num_proc."
        )


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(
            f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices[:-1]))} and "
            f"{choices[-1]!r}."
        )


def _check_name(name: Any, tracking: Any) -> None:
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}; it must be a text.")
    if not _NAME.fullmatch(name):
        fitting = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:MOST_NAME_CHARACTERS]
        near = f", such as {fitting!r}" if fitting else ""
        raise ValueError(
            f"name is {name!r:.300}; it becomes a tag and a folder, so it must be 1 to "
            f"{MOST_NAME_CHARACTERS} letters (a to z), digits, '.', '_' and '-', and begin with a "
            f"letter or digit{near}."
        )
    if tracking is False:
        raise ValueError(
            f"name is {name!r} and tracking is False; a named training is found again by its "
            "MLflow run: leave one of them out."
        )
    if isinstance(tracking, Tracking) and tracking.run_id is not None:
        raise ValueError(
            f"name is {name!r} and tracking.run_id is {tracking.run_id!r}; either says which run "
            "to go on with: leave one of them out."
        )


def _port_range(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    is_pair = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2
    if not is_pair or not all(type(port) is int for port in value):
        raise TypeError(f"port_range is {value!r}; it must be the first and the last port.")
    first, last = value
    if not 1024 <= first <= last <= 65535:
        raise ValueError(
            f"port_range is {value!r}; it must be two ports from 1024 to 65535, the lower first."
        )
    return first, last


def _check_interface(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        raise TypeError(
            f"network_interface is {value!r}; it must be the name of an interface, or a network "
            "such as '10.1.0.0/16'."
        )
    if "/" in value:
        try:
            ipaddress.ip_network(value, strict=False)
        except ValueError as error:
            raise ValueError(
                f"network_interface is {value!r}, which is no network ({error}); write it as "
                "'10.1.0.0/16'."
            ) from None


def _check_environment(value: Any) -> None:
    if value is None:
        return
    is_mapping = isinstance(value, Mapping)
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    # Neither a name nor its value is shown: one may be a secret in the wrong place.
    if not (is_mapping or is_list) or not all(isinstance(name, str) and name for name in value):
        raise TypeError(
            f"environment is a {type(value).__name__}; it must be a dict of names and texts, or a "
            "list of patterns of names."
        )
    for name, text in value.items() if is_mapping else ():
        if not isinstance(text, str):
            raise TypeError(
                f"environment[{name!r}] is a {type(text).__name__}; it must be a text, in quotes."
            )
        if "=" in name or "\0" in name + text or name in ("PYTHONPATH", "PYTHONHOME"):
            raise ValueError(
                f"environment names {name!r}, which cannot be set for ranks. Modules are found "
                "where the driver's sys.path and PYTHONPATH say."
            )


def _check_seconds(name: str, value: Any, *, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; it must be a number of seconds.")
    if not least <= value < float("inf"):
        raise ValueError(f"{name} is {value!r}; it must be {least} or more seconds, and finite.")


def _check_factor(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; it must be a number, or None.")
    if not 1 < value < float("inf"):
        raise ValueError(f"{name} is {value!r}; it must be more than 1, and finite.")


def _check_count(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be a whole number.")
    if value < least:
        raise ValueError(f"{name} is {value!r}; it must be {least} or more.")
