"""Every message between worker, agent and driver: its fields, who may send it, and how surely.

The tables at the end say who sends what. A message is bounded or acknowledged. Of
bounded ones so many wait to be sent, and any more are dropped. An acknowledged one is kept until
the driver has confirmed it. A field of bytes, one at most, travels beside the others as it is.
"""

# Without ``from __future__ import annotations``: ``message_json`` reads the types of fields. Not
# frozen: that doubles the time to define a class, and each worker defines these when it starts.

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sparkdl_runner.launch.wire.assignments import Assignment
from sparkdl_runner.launch.wire.outcome import Outcome
from sparkdl_runner.rank.world import Peer, World

# A figure is one frame of the log channel.
MAX_FIGURE_BYTES = 512 * 1024
# How many figures a run may show.
MAX_FIGURES = 200
REFUSED = -1


@dataclass
class Message:
    """A value that travels as a JSON object of its class's name and its fields."""

    most_waiting: ClassVar[int] = 256
    """How many may wait: of bounded messages to be sent, of acknowledged ones to be confirmed."""


@dataclass
class Acknowledged(Message):
    """A message that must arrive: the driver confirms its number, and takes no number twice."""

    most_waiting = 2000
    number: int = field(default=0, kw_only=True)
    """Given by the agent's ``Outbox``."""


@dataclass
class Hello(Message):
    """Opens a connection: who the agent is, which may not know its rank yet."""

    peer: Peer
    copy: int = 0
    """How often Spark had started this agent's task before."""


@dataclass
class Placed(Message):
    """The agent has its place. Comes before all that its rank sends."""

    world: World


class Alive(Message):
    """The agent is there. Sent where there is nothing else to send."""


@dataclass
class Output(Message):
    """Lines that the rank printed."""

    lines: list[str]


@dataclass
class Unfinished(Message):
    """The line that the rank has begun and not ended, as it is now; empty once there is none.

    A later one makes up for it, so that one at most waits to be sent.
    """

    text: str


@dataclass
class Text(Message):
    """A text that the function sent with ``log_to_driver``."""

    text: str


@dataclass
class Failed(Acknowledged):
    """The rank has failed or died."""

    most_waiting = sys.maxsize
    outcome: Outcome


@dataclass(kw_only=True)
class VitalSigns(Message):
    """One look at a worker."""

    silent_seconds: float
    """Since the last sign of life."""
    idle_seconds: float
    """Since the last progress."""
    joining_seconds: float
    """For how long it has been in the backend's rendezvous; 0 if it is not."""
    state: str
    """As in proc(5): R, S, D, T, Z; empty if unknown."""
    has_begun: bool
    """Whether it has done its imports and has the function. The other fields count from then."""
    has_returned: bool = False
    """Whether the function has returned: the process has only to end, which its agent sees to."""


@dataclass
class Progress(Message):
    """A rank's report, in JSON (see ``tracking.rank.recorder``). A later one makes up for it."""

    report: bytes

    @staticmethod
    def of(report: dict[str, Any]) -> "Progress | Logged":
        """Encodes a report. Nothing looks into it before the driver decodes it."""
        text = json.dumps(report).encode()
        if report["entries"] or report["problems"]:
            return Logged(text, len(report["entries"]))
        return Progress(text)


@dataclass
class Logged(Acknowledged):
    """A report that has entries or problems: no later one holds them."""

    report: bytes
    num_entries: int


@dataclass
class LoaderPlan(Acknowledged):
    """How the rank is about to read its data: see ``hooks.loader_plans``."""

    plan: dict[str, Any]


@dataclass
class Replica(Acknowledged):
    """What a rank's copy of a model comes to: see ``rank.replicas``."""

    told: dict[str, Any]


@dataclass
class Unsent(Acknowledged):
    """The rank failed, and was ended before it had sent all that it had logged."""

    count: int


@dataclass
class HostMetrics(Message):
    """How busy the host is, from one of its ranks."""

    values: dict[str, float]


@dataclass
class FilePart(Acknowledged):
    """The next part of a file that is kept with the run."""

    most_waiting = 32
    name: str
    data: bytes
    is_first: bool


class LogPart(FilePart):
    """A part of a log that still grows. If it is refused (its number says so), it is sent later."""


@dataclass
class Figure(Acknowledged):
    """A figure that the function showed: the picture, and which one of the rank's it is."""

    most_waiting = 32
    count: int
    png: bytes


@dataclass
class Stacks(Message):
    """The answer to ``AskStacks``."""

    text: str
    unanswered: list[str]
    """The addresses of hosts that do not acknowledge what the worker sent."""
    collectives: dict[str, Any] = field(default_factory=dict)
    """``calls``, by ``worker.collectives``; or empty."""
    nccl: str = ""
    """What NCCL says of all ranks, told by rank 0 alone."""


@dataclass
class PlainValue(Acknowledged):
    """The value of a rank whose function has returned, by ``function.plain_result``."""

    text: str


@dataclass
class ValuePart(Acknowledged):
    """The next part of a rank's pickled value, which is too large for Spark."""

    most_waiting = 32
    data: bytes
    is_first: bool


@dataclass
class ValueSent(Message):
    """All parts of it have been sent. Said again and again, until the driver has answered."""

    size: int
    sha256: str


@dataclass
class ValueTaken(Message):
    """The answer, once all parts have arrived: why the driver has not kept them; else empty."""

    problem: str


class Ended(Message):
    """The rank has ended, and its agent sends nothing more."""


@dataclass
class Stop(Message):
    """The worker is to end."""

    will_restart: bool = False
    """Whether the ranks are expected to be started again."""


@dataclass
class RequestStop(Message):
    """The function is asked to end by itself: see ``checkpoint.stopping``."""

    reason: str


@dataclass
class Preempt(Message):
    """The agent's host will be taken away, so that its rank is to save and end."""

    reason: str


@dataclass
class RequestGrowth(Message):
    """The ranks are asked to end with their next checkpoint, to be started again as more."""

    reason: str


@dataclass
class Assigned(Message):
    """The agent's assignment, once the driver knows all agents."""

    assignment: Assignment


@dataclass
class Hosts(Message):
    """Some of the addresses of all hosts, before the assignment whose ``peers`` they are."""

    addresses: list[str]


class Gather(Message):
    """Asks all agents to exchange their reports, since some do not reach the driver."""


class Superfluous(Message):
    """Another task has this agent's rank: it is to wait, and do nothing."""


class AskStacks(Message):
    """The driver wants the Python stacks of the worker's threads."""


@dataclass
class Confirmed(Message):
    """All acknowledged messages up to a number have arrived."""

    number: int


class Ping(Message):
    """The driver is there."""


@dataclass(kw_only=True)
class Pulse(Message):
    """The places of the worker's threads in its code: see ``worker.pulse``."""

    place: int
    """A number that stays the same as long as the function waits at one spot."""
    threads: list[int]
    """The threads that the place is of."""
    joining: bool
    """Whether the main thread is in the backend's rendezvous."""
    communicating: bool
    """Whether it is in any of the backend's calls."""
    on_gpu: bool
    """Whether the process uses a GPU."""
    lingering: str
    """The cause that keeps the process alive after its function returned; else empty."""
    collectives: dict[str, Any] = field(default_factory=dict)
    """As in ``Stacks``, where neither the place nor their number has changed for a second."""


class Delivered(Message):
    """The worker has sent all that its function had logged when it failed, or was to end."""


class Serving(Message):
    """The worker would end, but other ranks may need what it serves."""


class Release(Message):
    """No other rank needs what the worker serves."""


@dataclass
class Returned(Message):
    """The function returned."""

    plain: str = ""
    """The same by ``function.plain_result``; empty if it is not plain."""
    has_joined: bool = True
    """Whether it had ever joined the other ranks: see ``backends.joined``."""
    of_each: bool = False
    """Whether the driver wants each rank's value."""
    checkpoint: str = ""
    """The URL of the newest checkpoint that this process saved; empty if it saved none."""
    payload: bytes = field(default=b"", repr=False)
    """Its packed value."""


@dataclass(kw_only=True)
class Raised(Message):
    """The function raised. See ``Outcome``."""

    exception: str
    message: str
    traceback: str = ""
    is_communication_error: bool = False
    is_preemption: bool = False
    preempted_ranks: tuple[int, ...] = ()
    is_growth: bool = False
    is_worth_a_restart: bool = False
    refused_result: str = ""
    num_entries: int = 0
    """How many entries for MLflow it had logged; those that have not been sent follow."""
    payload: bytes = field(default=b"", repr=False)
    """The pickled exception."""


Table = Mapping[str, type[Message]]


def _table(*messages: type[Message]) -> Table:
    return {message.__name__: message for message in messages}


_FROM_RANK = (Text, Progress, Logged, LoaderPlan, Replica, Figure)
WORKER_TO_AGENT = _table(*_FROM_RANK, Pulse, Delivered, Serving, Returned, Raised)
# An agent sends its worker Stop and Release; the worker needs to know only that one has come.
AGENT_TO_DRIVER = _table(
    *(Hello, Placed, Alive, Ended, Acknowledged, Stacks),
    *(Output, Failed, VitalSigns, Unsent, HostMetrics, FilePart, LogPart, PlainValue, *_FROM_RANK),
    *(Unfinished, ValuePart, ValueSent),
)
DRIVER_TO_AGENT = _table(
    *(Hosts, Assigned, Gather, Superfluous, Stop, RequestStop, Preempt, RequestGrowth),
    *(AskStacks, Confirmed, ValueTaken, Ping),
)
