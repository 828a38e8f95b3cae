"""EC2's notice of a spot instance, asked of a server that speaks IMDSv2."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from hostile_server import MOST_BYTES as HOSTILE_BYTES
from hostile_server import Hostile
from metadata_service import NO_HTTP, MetadataService, metadata_service, notice
from sparkdl_runner.launch.agent.host import ec2_notice
from sparkdl_runner.launch.agent.host.ec2_notice import SpotNotice, endpoint

PATIENCE_SECONDS = 120


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(ec2_notice, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(ec2_notice, "ANSWER_SECONDS", PATIENCE_SECONDS)
    with metadata_service() as service:
        yield service


def told_by(service: MetadataService | Hostile) -> list[str]:
    """Runs the poll until it ends; returns the notices that it reported."""
    told: list[str] = []
    asking = SpotNotice(service.uri, told.append)
    asking._thread.join(PATIENCE_SECONDS)
    assert not asking._thread.is_alive()
    asking.close()
    return told


def test_a_notice_is_told_once_with_what_will_happen_and_when(service):
    service.answers = [404, 404, notice(), notice()]
    assert told_by(service) == ["EC2's notice: terminate at 2026-11-23T21:00:00Z"]
    assert (service.asked, service.given) == (3, 1)


def test_a_token_that_is_over_is_renewed(service):
    service.answers = [404, 401, 404, notice()]
    assert len(told_by(service)) == 1
    assert service.given == 2


ERRORS = [500, b"<html>", b"[]", b"{}", NO_HTTP]


@pytest.mark.parametrize("answer", ERRORS)
def test_a_service_that_never_answers_is_soon_asked_no_more(service, answer):
    service.answers = [answer, answer, answer, notice()]
    assert told_by(service) == []
    assert service.answers == [notice()]


@pytest.mark.parametrize("answer", ERRORS)
def test_a_service_that_has_answered_is_asked_through_an_outage(service, answer):
    service.answers = [answer, answer, 404, *[answer] * 5, notice()]
    assert len(told_by(service)) == 1


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_service_that_drips_is_waited_for_in_all_and_not_byte_by_byte(
    monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(ec2_notice, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(ec2_notice, "ANSWER_SECONDS", 0.2)
    with closing(Hostile()) as hostile:
        hostile.beginning, hostile.piece, hostile.pause_seconds = beginning, b"[", 0.02
        assert told_by(hostile) == []  # Byte by byte, it would be waited for for ever.


@pytest.mark.filterwarnings("error")
def test_of_an_answer_that_never_ends_the_beginning_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ec2_notice, "POLL_SECONDS", 0.01)
    with closing(Hostile()) as hostile:
        hostile.beginning = b"HTTP/1.1 200 OK\r\n\r\n"
        hostile.piece = b"[" * (1 << 20)
        assert told_by(hostile) == []
    assert hostile.sent_bytes < HOSTILE_BYTES / 4  # What sockets hold, and no more.


def test_it_ends_with_its_rank(service):
    asking = SpotNotice(service.uri, pytest.fail)
    while service.asked < 2:
        threading.Event().wait(0.005)
    asking.close()
    asking._thread.join(PATIENCE_SECONDS)
    assert not asking._thread.is_alive()


def test_only_an_instance_of_ec2_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(ec2_notice, "_DMI", tmp_path)
    assert endpoint({}) is None
    (tmp_path / "sys_vendor").write_text("QEMU\n")
    assert endpoint({}) is None
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    assert endpoint({}) == "http://169.254.169.254"
    assert endpoint({"AWS_EC2_METADATA_DISABLED": "True"}) is None
    (tmp_path / "sys_vendor").write_text("Xen\n")
    monkeypatch.setattr(ec2_notice, "Path", lambda _: tmp_path / "uuid")
    assert endpoint({}) is None
    (tmp_path / "uuid").write_text("6c3f0e5a-ec2\n")
    assert endpoint({}) is None
    (tmp_path / "uuid").write_text("ec2f0e5a-6c3\n")
    assert endpoint({}) == "http://169.254.169.254"
    given = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[fd00:ec2::254]/"}
    assert endpoint(given) == "http://[fd00:ec2::254]"
