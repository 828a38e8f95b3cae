"""The driver's end of its channel to the agents: gives them their ranks, hears them, stops them.

Each has a TCP connection, in frames that only the run's agents can make. Nothing is unpickled.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.base.version import __version__
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.watch import Watch
from sparkdl_runner.launch.wire import messages
from sparkdl_runner.launch.wire.assignments import Assignment, assignments_of
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.channel import FLUSH_SECONDS, ChannelAddress
from sparkdl_runner.launch.wire.frames import NONCE_BYTES, FrameCodec, read_frame
from sparkdl_runner.launch.wire.message_json import decode, encode
from sparkdl_runner.launch.wire.messages import Message, Stacks
from sparkdl_runner.launch.wire.receiver import DriversReceiver
from sparkdl_runner.launch.wire.serving import ServerThread
from sparkdl_runner.rank.world import Peer, World

HELLO_SECONDS = 10.0
# An agent tells little but the addresses of its host. Strangers may send as much, each of them.
HELLO_BYTES = 64 * 1024
PING_SECONDS = 1.0
# After so much of the time for the start, counted from the first agent, one that has not come is
# taken for one that cannot reach the driver. The rest of the time is for Spark's barrier, which
# sends each agent what all have told, and so grows with the square of their number.
GATHER_SHARE = 0.5
# How soon Spark knows of the end of a task whose rank has ended, unless that was lost.
ENDED_SECONDS = 10.0
# A stopped process is woken for its stacks, which takes a moment. Rank 0 may ask NCCL, too.
STACKS_SECONDS, FIRST_STACKS_SECONDS = 6.0, 15.0
CHUNK_BYTES = 1 << 16
ADDRESSES_IN_FRAME = 4096  # Of 45 characters at most.
# Taken in the server's own thread, as none of them blocks: a change of threads for each message
# would cost a thousand ranks more than the message itself.
PROMPT = (messages.VitalSigns, messages.Failed, messages.PlainValue, messages.Ended, Stacks)
# Pings that are sent before messages are read again.
PINGS_AT_ONCE = 256


class _Agent:
    """A connection to one agent."""

    def __init__(self, writer: asyncio.StreamWriter, codec: FrameCodec) -> None:
        self.writer = writer
        self._codec = codec
        self._requested: list[Message] = []
        self.rank: int | None = None
        """Not known before it has said so."""

    def request(self, request: Message) -> None:
        """Asks once for the same: an agent that comes meanwhile is asked from two sides."""
        if request not in self._requested:
            self._requested.append(request)
            self.send(request)

    def assign(self, assignment: Assignment) -> None:
        """Sends its assignment; the addresses of thousands of hosts would not fit one frame."""
        for start in range(0, len(assignment.peers), ADDRESSES_IN_FRAME):
            self.send(messages.Hosts(list(assignment.peers[start : start + ADDRESSES_IN_FRAME])))
        self.send(messages.Assigned(replace(assignment, peers=())))

    def send(self, message: Message) -> None:
        self.writer.write(self._codec.seal(*encode(message)))


class LogServer(ServerThread):
    """The driver's end.

    Args:
        listener: A listening socket on the driver's address.
        host: The name or address under which executors reach the driver.
        num_proc: How many agents there will be.
        ranks_per_task: How many of them each Spark task has.
        receiver: Takes what they say.
        attempt: What they run.
        is_barrier: Whether agents that do not reach us may find one another without us.
    """

    watch: Watch

    def __init__(
        self,
        listener: socket.socket,
        *,
        host: str,
        num_proc: int,
        receiver: DriversReceiver,
        attempt: AttemptSpec,
        is_barrier: bool = True,
        ranks_per_task: int = 1,
    ) -> None:
        super().__init__(listener, name="sparkdl-log-channel", expected=num_proc)
        self._receiver = receiver
        self._num_proc = num_proc
        self._key = secrets.token_bytes(32)
        self._host = host
        self._stop_requested = False
        self._requests: list[Message] = []
        self._attempt = attempt
        self._is_barrier = is_barrier
        self._ranks_per_task = ranks_per_task
        self._copies: dict[int, int] = {}
        """For each of Spark's tasks, which of its starts has the ranks."""
        self._known: dict[int, Peer] = {}
        self._assignments: Mapping[int, Assignment] = {}
        self._is_gathering = False
        self._agents: dict[int, _Agent] = {}
        self._delivering: set[int] = set()
        self._stacks: dict[int, Stacks] = {}
        self._pinging: asyncio.Task[None] | None = None
        self._confirmed: dict[int, int] = {}
        """For each partition, the number of the last acknowledged message that has arrived."""

    @property
    def channel(self) -> ChannelAddress:
        """The address and key by which agents connect."""
        return ChannelAddress(host=self._host, port=self.address[1], key=self._key)

    def stop_ranks(self, *, will_restart: bool = False) -> None:
        """Tells every agent to end its worker, also one that connects later."""
        self.call(self._send_stop(will_restart), FLUSH_SECONDS)

    def request(self, request: messages.RequestStop | messages.RequestGrowth) -> None:
        """Asks all ranks for something, also that of an agent that connects later."""
        self._requests.append(request)
        self.call(self._send_request(request), FLUSH_SECONDS)

    def preempt(self, partitions: Collection[int], reason: str) -> None:
        """Tells agents that their hosts will be taken away; an agent hears each reason once."""
        self.call(self._send_preempt(partitions, reason), FLUSH_SECONDS)

    def ask_stacks(self) -> dict[int, Stacks]:
        """The Python stacks of all ranks that answer in time, by rank."""
        self._stacks.clear()
        self.call(self._gather_stacks(), FIRST_STACKS_SECONDS)
        return dict(self._stacks)

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        """Waits until all agents that are connected have said their last word, at most so long."""
        self.call(self._drain(), timeout_seconds)

    def addresses_of(self, world: World) -> tuple[str, ...]:
        """All addresses of a rank's host, as its agents have told them."""
        peers = self._known.values()
        return next((peer.addresses for peer in peers if peer.address == world.address), ())

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Listens to one agent."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        writer.write(nonce)
        incoming = FrameCodec(self._key, nonce, b"agent")
        async with asyncio.timeout(HELLO_SECONDS):
            content = await read_frame(reader, incoming, most_bytes=HELLO_BYTES)
        hello = decode(*content, messages.AGENT_TO_DRIVER)
        if not isinstance(hello, messages.Hello):
            raise ValueError("the first message is no hello")
        partition = hello.peer.partition
        if not 0 <= partition < self._num_proc:
            raise ValueError("not the hello of one of the run's agents")
        self.recognize()
        if self._is_superfluous(partition, hello.copy):
            agent = _Agent(writer, FrameCodec(self._key, nonce, b"driver"))
            await self._hold(agent, partition, hello)
            return
        if partition in self._agents:
            self._agents[partition].writer.transport.abort()  # It comes again: the link had broken.
        agent = self._agents[partition] = _Agent(writer, FrameCodec(self._key, nonce, b"driver"))
        self.watch.present(partition, hello.peer.host)
        self._pinging = self._pinging or self.spawn(self._ping())
        try:
            if self._stop_requested:
                agent.send(messages.Stop())
            else:
                self._assign(hello.peer)
            for request in self._requests:
                agent.request(request)
            agent.send(messages.Ping())  # By the first answer it knows that we are the driver.
            await self._listen(partition, agent, reader, incoming)
        finally:
            self._delivering.discard(partition)
            if self._agents.get(partition) is agent:
                del self._agents[partition]
                self.watch.gone(partition)

    def _is_superfluous(self, partition: int, copy: int) -> bool:
        """Whether another task has the rank. Before there are ranks, the newest may have it."""
        task = partition // self._ranks_per_task
        first = self._copies.setdefault(task, copy)
        if copy > first and not self._assignments:
            self._copies[task] = copy
            for own in range(task * self._ranks_per_task, (task + 1) * self._ranks_per_task):
                if (agent := self._agents.pop(own, None)) is not None:
                    agent.writer.transport.abort()
                    self.watch.gone(own)
            return False
        return copy != first

    async def _hold(self, agent: _Agent, partition: int, hello: messages.Hello) -> None:
        """Lets a task that Spark has started again do nothing, for as long as its rank runs."""
        is_lost = partition not in self._agents
        until = math.inf
        if self._assignments:
            rank, host = self._assignments[partition].world.rank, hello.peer.host
            then = "is lost, and begins no second time" if is_lost else "goes on where it is"
            tell(f"Spark has started the task of rank {rank} again, on {host}: the rank {then}.")
            if is_lost and not self.watch.replaced(partition):
                until = self._loop.time() + ENDED_SECONDS
        agent.send(messages.Superfluous())
        while not (self._stop_requested or agent.writer.is_closing() or self._loop.time() > until):
            agent.send(messages.Ping())
            await asyncio.sleep(PING_SECONDS)
        agent.send(messages.Stop())

    def _assign(self, peer: Peer) -> None:
        """Answers an agent that has come; the last one to come lets all have their ranks."""
        if not self._known and self._is_barrier:
            seconds = GATHER_SHARE * self._attempt.config.start_timeout_seconds
            self._loop.call_later(seconds, self._gather)
        self._known[peer.partition] = peer
        waiting = self._agents
        if self._is_gathering:
            self._agents[peer.partition].send(messages.Gather())
            return
        if self._assignments:
            waiting = {peer.partition: self._agents[peer.partition]}
        elif len(self._agents) == self._num_proc:
            try:
                self._assignments = assignments_of(
                    list(self._known.values()),
                    backend=self._attempt.backend,
                    attempt=self._attempt.number,
                    version=__version__,
                )
            except LaunchError as error:
                self.watch.refuse(str(error))
        if self._assignments:
            for partition, agent in waiting.items():
                assignment = self._assignments[partition]
                agent.assign(assignment)
                self.watch.placed(partition, assignment.world)  # It may never say so itself.

    def _gather(self) -> None:
        """Lets the agents find one another without us: some may not reach us."""
        if not self._assignments and not self._stop_requested:
            self._is_gathering = True
            for agent in self._agents.values():
                agent.send(messages.Gather())

    async def _listen(
        self, partition: int, agent: _Agent, reader: asyncio.StreamReader, codec: FrameCodec
    ) -> None:
        world: World | None = None
        buffer = bytearray()
        while data := await reader.read(CHUNK_BYTES):
            buffer += data
            self.watch.heard(partition)
            confirmed = 0
            sent: messages.ValueSent | None = None
            slow: list[Message] = []
            try:
                for values, payload in codec.split(buffer):
                    message = decode(values, payload, messages.AGENT_TO_DRIVER)
                    if isinstance(message, messages.Acknowledged):
                        confirmed = message.number
                        # A message is sent again if the connection broke before it was confirmed.
                        if message.number <= self._confirmed.get(partition, 0):
                            continue
                        self._confirmed[partition] = message.number
                    if isinstance(message, messages.Placed):
                        world = message.world
                        agent.rank = world.rank
                        self.watch.placed(partition, world)
                    elif world is None:
                        continue
                    elif isinstance(message, messages.ValueSent):
                        sent = message
                    elif isinstance(message, PROMPT) and not slow:
                        self._take(world, message)
                    else:
                        slow.append(message)
            finally:  # Also what came before a frame that is not ours.
                if world is not None and slow:
                    await self._deliver(partition, world, slow)
            if confirmed:
                agent.send(messages.Confirmed(confirmed))
            if world is not None and sent is not None:
                problem = self._receiver.value_problem(world, sent)
                if problem is not None:
                    agent.send(messages.ValueTaken(problem))

    async def _deliver(self, partition: int, world: World, taken: list[Message]) -> None:
        """Hands on messages. The receiver may block, and the loop must go on hearing the others."""
        self._delivering.add(partition)
        await asyncio.to_thread(self._take_all, world, taken)
        self._delivering.discard(partition)

    def _take_all(self, world: World, taken: list[Message]) -> None:
        for message in taken:
            self._take(world, message)

    def _take(self, world: World, message: Message) -> None:
        match message:
            case Stacks():
                self._stacks[world.rank] = message
            case messages.Ended():
                self.watch.ended(world)
            case _:
                self._receiver.take(world, message)

    async def _ping(self) -> None:
        """Lets agents know that the driver is there, and the watch that they are."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            for number, (partition, agent) in enumerate(list(self._agents.items()), start=1):
                agent.send(messages.Ping())
                if partition in self._delivering:  # Not silent: it is we who do not listen now.
                    self.watch.busy(partition)
                if number % PINGS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _send_stop(self, will_restart: bool) -> None:
        self._stop_requested = True
        for agent in self._agents.values():
            agent.send(messages.Stop(will_restart))

    async def _send_request(self, request: Message) -> None:
        for agent in self._agents.values():
            agent.request(request)

    async def _send_preempt(self, partitions: Collection[int], reason: str) -> None:
        for partition in self._agents.keys() & set(partitions):
            self._agents[partition].request(messages.Preempt(reason))

    async def _gather_stacks(self) -> None:
        for agent in self._agents.values():
            agent.send(messages.AskStacks())
        deadline = time.monotonic() + STACKS_SECONDS
        while not self._stop_requested:
            # A rank that has ended does not answer: its agent is no longer in the list.
            awaited = {agent.rank for agent in self._agents.values()} - self._stacks.keys()
            if not awaited or (time.monotonic() > deadline and 0 not in awaited):
                break
            await asyncio.sleep(0.02)

    async def _drain(self) -> None:
        while self._agents:
            await asyncio.sleep(0.005)
