"""What of a worker's stacks a person is shown."""

from __future__ import annotations

import faulthandler
import os

from sparkdl_runner.launch.worker import stacks
from sparkdl_runner.launch.worker.stacks import _of_the_function

TEXT = """\
Thread 0x1 (most recent call first):
  File "/lib/threading.py", line 324 in wait
  File "/x/sparkdl_runner/launch/worker/pulse.py", line 40 in beat
  File "/lib/threading.py", line 982 in run
  File "/lib/threading.py", line 1002 in _bootstrap

Thread 0x2 (most recent call first):
  File "/lib/queue.py", line 180 in get
  File "/x/sparkdl_runner/tracking/rank/recorder.py", line 90 in _run
  File "/lib/threading.py", line 1002 in _bootstrap

Thread 0x3 (most recent call first):
  File "/home/me/train.py", line 3 in prefetch
  File "/lib/threading.py", line 1002 in _bootstrap

Thread 0x4 (most recent call first):
  File "/x/sparkdl_runner/data/batches/batch_queue.py", line 80 in _run
  File "/lib/threading.py", line 1002 in _bootstrap

Thread 0x5 (most recent call first):
  File "/x/sparkdl_runner/tracking/models/log_model.py", line 9 in log_model
  File "/home/me/train.py", line 7 in train
  File "/x/sparkdl_runner/launch/wire/function.py", line 80 in call
  File "/x/sparkdl_runner/launch/worker/__main__.py", line 90 in main
"""


def test_threads_that_watch_are_left_out_and_those_that_work_are_not():
    shown = _of_the_function(TEXT)
    assert "pulse.py" not in shown
    assert "recorder.py" not in shown
    for place in ("prefetch", "batch_queue.py", "log_model", "in train"):
        assert place in shown
    assert "worker.py" not in shown, "what is below the function tells nobody anything"


def test_a_process_that_is_asked_shows_where_it_is(monkeypatch):
    monkeypatch.setattr(stacks, "ANSWER_SECONDS", 120.0)
    reading, writing = os.pipe()
    try:
        stacks.offer(writing)
        shown = stacks.ask(os.getpid(), reading, "R")
    finally:
        faulthandler.unregister(stacks.STACKS_SIGNAL)
        os.close(reading)
        os.close(writing)
    assert "in test_a_process_that_is_asked_shows_where_it_is" in shown
