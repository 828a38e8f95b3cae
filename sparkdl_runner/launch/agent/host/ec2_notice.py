"""The notice that EC2 gives a spot instance, two minutes before it takes it away.

An instance asks its own metadata service, which only it can reach: IMDSv2, where each request needs
a token that was asked for before.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from __future__ import annotations

import http
import http.client
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from sparkdl_runner.base.foreign_file import parse_json
from sparkdl_runner.launch.wire.short_answer import Answer, ask

# AWS recommends this interval.
POLL_SECONDS = 5.0
ANSWER_SECONDS = 2.0
TOKEN_SECONDS = 6 * 3600
MOST_BYTES = 4096
# A service that has never answered is given up: a container may be one network hop too far away.
MOST_ERRORS = 3
_ENDPOINT = "http://169.254.169.254"
_DMI = Path("/sys/class/dmi/id")


def endpoint(environment: Mapping[str, str] = os.environ) -> str | None:
    """The URL of this host's metadata service; None if the host is no EC2 instance.

    AWS's own variables count: ``AWS_EC2_METADATA_SERVICE_ENDPOINT`` says where it is, and
    ``AWS_EC2_METADATA_DISABLED=true`` that it is not to be asked.
    """
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    if url := environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        return url.rstrip("/")
    for name in ("sys_vendor", "board_vendor"):
        with suppress(OSError):
            if (_DMI / name).read_text().strip() == "Amazon EC2":
                return _ENDPOINT
    with suppress(OSError):  # Instances of the Xen generations.
        if Path("/sys/hypervisor/uuid").read_text().startswith("ec2"):
            return _ENDPOINT
    return None


class SpotNotice:
    """Polls for a notice in a thread of its own, until there is one.

    Args:
        url: See ``endpoint``.
        tell: Called with a sentence, once at most.
    """

    def __init__(self, url: str, tell: Callable[[str], None]) -> None:
        self._url = url
        self._tell = tell
        self._token = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-spot-notice", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops asking; an answer that is waited for is no longer told."""
        self._closed.set()

    def _run(self) -> None:
        errors, has_answered = 0, False
        while has_answered or errors < MOST_ERRORS:
            try:
                notice = self._notice()
                has_answered = True
            except (OSError, ValueError, http.client.HTTPException):
                notice, errors = None, errors + 1
            if self._closed.is_set():
                return
            if notice is not None:
                self._tell(notice)
                return
            if self._closed.wait(POLL_SECONDS):
                return

    def _notice(self) -> str | None:
        """The notice, if there is one.

        Raises:
            OSError: The service is not reached, or refuses.
            ValueError: Its answer is no notice.
            HTTPException: Its answer is no HTTP.
        """
        answer = self._get("/latest/meta-data/spot/instance-action")
        if answer is None:
            return None
        notice = parse_json(answer)
        if not isinstance(notice, dict) or not notice.get("action"):
            raise ValueError(f"{answer[:100]!r} is no notice")
        return f"EC2's notice: {notice['action']} at {notice.get('time')}"[:150]

    def _get(self, path: str) -> bytes | None:
        """The service's answer for a path; None if it has none."""
        for _ in range(2):
            self._token = self._token or self._new_token()
            answer = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if answer.status == http.HTTPStatus.OK:
                return answer.body
            if answer.status == http.HTTPStatus.NOT_FOUND:
                return None
            if answer.status != http.HTTPStatus.UNAUTHORIZED:
                raise OSError(f"the metadata service answers HTTP {answer.status}")
            self._token = ""  # It has expired.
        raise OSError("the metadata service refuses its own token")

    def _new_token(self) -> str:
        header = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
        answer = self._ask("PUT", "/latest/api/token", header)
        if answer.status != http.HTTPStatus.OK:
            raise OSError(f"the metadata service gives no token: HTTP {answer.status}")
        return answer.body.decode("ascii").strip()

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        place = urlsplit(self._url)
        return ask(
            place.hostname or "",
            place.port or http.client.HTTP_PORT,
            place.path + path,
            method=method,
            headers=headers,
            most_seconds=ANSWER_SECONDS,
            most_bytes=MOST_BYTES,
        )
