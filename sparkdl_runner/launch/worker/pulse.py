"""The worker's pulse: tells its agent every second that it lives, and where in its code it is."""

from __future__ import annotations

import sys
import threading
import time
import types
from contextlib import suppress
from itertools import pairwise

from sparkdl_runner.base.thread_frames import current_frames
from sparkdl_runner.launch.backends import Backend
from sparkdl_runner.launch.wire.control import WorkerPipe
from sparkdl_runner.launch.wire.messages import Pulse
from sparkdl_runner.launch.worker import collectives

PULSE_SECONDS = 1.0
# Frames that make up a place; a step of training moves at least one of them.
_DEPTH = 30
_MOST_THREADS = 64
# A main thread that is in one of these waits for other threads, which do the work.
_WAITING_FOR_THREADS = ("/threading.py", "/queue.py", "/concurrent/futures/_base.py")


def start(line: WorkerPipe, backend: Backend) -> None:
    """Begins to send pulses down ``line``, from a thread that ends with the process.

    The first comes at once, and says that the imports are done.

    A pulse holds a number that stands for a place in the code: it stays the same exactly as long
    as the function waits at one spot. That is the main thread's place, or that of all threads if
    the main one waits for them. It also says which threads those are, and whether the main one is
    in the backend's rendezvous, or in any of its calls, whether a GPU is in use, and what keeps a
    process from ending whose function has returned.

    Args:
        line: To the agent.
        backend: Knows its own places.
    """
    main = threading.main_thread()

    def look() -> Pulse:
        own = threading.current_thread()
        frames = current_frames()
        del frames[own.ident or 0]  # It would keep this function's frame, and so all frames, alive.
        stack = _stack(frames.get(main.ident or 0))
        threads, places = [main], [_place(stack)]
        if stack and stack[0].f_code.co_filename.endswith(_WAITING_FOR_THREADS):
            others = [thread for thread in threading.enumerate() if thread not in (main, own)]
            threads += others[:_MOST_THREADS]
            places += [_place(_stack(frames.get(thread.ident or 0))) for thread in threads[1:]]
        return Pulse(
            place=hash(tuple(places)),
            threads=[thread.native_id for thread in threads if thread.native_id is not None],
            on_gpu=_uses_a_gpu(),
            joining=any(_is_one_of(backend.join_functions, frame) for frame in stack),
            communicating=bool(stack) and _is_part_of(backend.waiting_in, stack[0]),
            lingering=_lingering(stack),
        )

    def beat() -> None:
        place = 0
        while True:
            # A frame keeps its function's tensors alive, so none may be held while this sleeps.
            pulse = look()
            if pulse.place == place:
                with suppress(Exception):  # Versions differ; and the main thread may go on.
                    calls = collectives.last_calls(main.ident or 0)
                    pulse.collectives = {} if calls is None else {"calls": calls}
            place = pulse.place
            try:
                line.send(pulse)
            except OSError:
                return  # The agent is gone, and this process will be.
            time.sleep(PULSE_SECONDS)

    threading.Thread(target=beat, name="sparkdl-pulse", daemon=True).start()


def _lingering(stack: list[types.FrameType]) -> str:
    """The cause that keeps a process alive after its main thread left the function; else empty."""
    for called, caller in pairwise(stack):
        if caller.f_code.co_name != "_exit" or caller.f_globals.get("__package__") != __package__:
            continue
        if not called.f_code.co_filename.endswith("/threading.py"):
            return f"{called.f_code.co_qualname}, which is registered with atexit,"
        waited_for = [repr(thread.name) for thread in threading.enumerate() if not thread.daemon]
        waited_for.remove(repr(threading.main_thread().name))
        return f"the thread {', '.join(waited_for)}" if waited_for else ""
    return ""


def _uses_a_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "cuda") and bool(torch.cuda.is_initialized())


def _stack(frame: types.FrameType | None) -> list[types.FrameType]:
    """A thread's frames, the innermost first."""
    frames: list[types.FrameType] = []
    while frame is not None and len(frames) < _DEPTH:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _place(stack: list[types.FrameType]) -> int:
    return hash(tuple((id(frame.f_code), frame.f_lasti) for frame in stack))


def _is_one_of(functions: tuple[tuple[str, str], ...], frame: types.FrameType) -> bool:
    code = frame.f_code
    return any(code.co_name == name and code.co_filename.endswith(path) for path, name in functions)


def _is_part_of(paths: tuple[str, ...], frame: types.FrameType) -> bool:
    return any(path in frame.f_code.co_filename for path in paths)
