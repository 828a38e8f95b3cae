from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.base.sent_file import SentFile, key_of


def test_a_worker_takes_the_very_file_that_the_session_has_sent(tmp_path, monkeypatch) -> None:
    files = SimpleNamespace(get=lambda name: str(tmp_path / name))
    monkeypatch.setattr("pyspark.SparkFiles", files)
    sent = SentFile(key_of(b"content"))
    (tmp_path / sent.name).write_bytes(b"content")
    assert sent.value == b"content"
    (tmp_path / sent.name).write_bytes(b"another")
    with pytest.raises(RuntimeError, match="is not what was sent"):
        sent.value  # noqa: B018 - reading it is the test
