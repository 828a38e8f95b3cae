"""Errors of storages are told apart, whichever library raises them."""

from __future__ import annotations

import errno
import os

import pytest

from sparkdl_runner.base.storage_errors import StorageFailure as Failure
from sparkdl_runner.base.storage_errors import failure_of

AWS = "When writing key 'timeout/no space left' in bucket 'b': AWS Error {} operation: Please."


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("the server answered")
        self.status = status


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), Failure.NO_SPACE),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), Failure.NO_SPACE),
        (PermissionError(errno.EACCES, "no"), Failure.NO_PERMISSION),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), Failure.NO_PERMISSION),
        (FileNotFoundError(errno.ENOENT, "Path does not exist"), Failure.GONE),
        (OSError(errno.EIO, os.strerror(errno.EIO)), Failure.UNAVAILABLE),
        (ConnectionResetError(errno.ECONNRESET, "peer"), Failure.UNAVAILABLE),
        (ConnectionError("Connection lost"), Failure.UNAVAILABLE),
        (TimeoutError("waited"), Failure.TIMED_OUT),
        (OSError(AWS.format("SLOW_DOWN during UploadPart")), Failure.THROTTLED),
        (OSError(AWS.format("UNKNOWN (HTTP status 503) during HeadObject")), Failure.UNAVAILABLE),
        (OSError(AWS.format("UNKNOWN (HTTP status 429) during HeadObject")), Failure.THROTTLED),
        (OSError(AWS.format("UNKNOWN (HTTP status 507) during PutObject")), Failure.NO_SPACE),
        (OSError(AWS.format("UNKNOWN (HTTP status 504) during HeadObject")), Failure.TIMED_OUT),
        (OSError(AWS.format("INTERNAL_FAILURE during PutObject")), Failure.UNAVAILABLE),
        (OSError(AWS.format("ACCESS_DENIED during PutObject")), Failure.NO_PERMISSION),
        (OSError(AWS.format("UNKNOWN (HTTP status 403) during x")), Failure.NO_PERMISSION),
        (OSError(AWS.format("UNKNOWN (HTTP status 400) during HeadObject")), Failure.EXPIRED),
        (OSError(AWS.format("INVALID_ACCESS_KEY_ID during GetObject")), Failure.EXPIRED),
        (PermissionError("The provided token has expired."), Failure.EXPIRED),
        (OSError(AWS.format("RESOURCE_NOT_FOUND during GetObject")), Failure.GONE),
        (OSError(AWS.format("NO_SUCH_BUCKET during PutObject")), Failure.GONE),
        (
            OSError("AWS Error NETWORK_CONNECTION: curlCode: 28, Timeout was reached"),
            Failure.TIMED_OUT,
        ),
        (
            OSError("AWS Error NETWORK_CONNECTION: curlCode: 7, Couldn't connect to server"),
            Failure.UNAVAILABLE,
        ),
        (OSError("google::cloud::Status(RESOURCE_EXHAUSTED: slower)"), Failure.THROTTLED),
        (OSError("Azure Error: [AuthorizationPermissionMismatch] 403"), Failure.NO_PERMISSION),
        (HttpError(502), Failure.UNAVAILABLE),
        (HttpError(404), Failure.GONE),
        (ValueError("odd"), Failure.UNKNOWN),
    ],
)
def test_kinds_of_failures(error, kind):
    assert failure_of(error) is kind


def test_what_may_pass_by_itself():
    transient = {kind for kind in Failure if kind.is_transient}
    assert transient == {Failure.THROTTLED, Failure.TIMED_OUT, Failure.UNAVAILABLE}
