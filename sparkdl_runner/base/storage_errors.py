"""The reasons of storage failures: one table of errors, for reading and writing.

Filesystems raise an ``OSError`` with a number; object stores raise one with a text in it, or an
error class of their own with an HTTP status. All of them become one of a few kinds.
"""

from __future__ import annotations

import errno
import re
from enum import Enum


class StorageFailure(Enum):
    """The kind of a storage failure; the value ends a sentence."""

    NO_SPACE = "no space is left there"
    EXPIRED = "the credentials for it have expired, or are not valid"
    NO_PERMISSION = "its credentials or permissions do not allow it"
    GONE = "it is not there"
    THROTTLED = "it was asked too often and slows down"
    TIMED_OUT = "it did not answer in time"
    UNAVAILABLE = "it cannot be reached, or fails by itself"
    UNKNOWN = "it failed"

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed soon without any change."""
        return self in _TRANSIENT


_TRANSIENT = (StorageFailure.THROTTLED, StorageFailure.TIMED_OUT, StorageFailure.UNAVAILABLE)

# The first row that fits says what it is: error numbers, HTTP statuses, and words of the message
# or the error's class, in lower case and without anything but letters. More certain ones come
# first: an error that tells of a timeout is also one of a connection.
_TABLE: tuple[tuple[StorageFailure, tuple[int, ...], tuple[int, ...], tuple[str, ...]], ...] = (
    (
        StorageFailure.NO_SPACE,
        (errno.ENOSPC, errno.EDQUOT),
        (507,),
        ("nospaceleft", "storagefull", "quotaexceeded", "spacequota"),
    ),
    (
        StorageFailure.THROTTLED,
        (errno.EBUSY,),
        (429,),
        (
            "slowdown",
            "throttl",
            "toomanyrequests",
            "serverbusy",
            "resourceexhausted",
            "requestlimitexceeded",
        ),
    ),
    (
        StorageFailure.TIMED_OUT,
        (errno.ETIMEDOUT,),
        (408, 504),
        ("timeout", "timedout", "deadlineexceeded"),
    ),
    (
        StorageFailure.EXPIRED,
        (),
        # S3 answers a HEAD by an expired token with 400 and no body.
        (400, 401),
        (
            "expired",
            "unauthenticated",
            "unauthorized",
            "authenticationfailed",
            "invalidaccesskeyid",
            "invalidclienttokenid",
            "invalidtoken",
            "unrecognizedclient",
            "signaturedoesnotmatch",
            "timetooskewed",
            "unabletolocatecredentials",
        ),
    ),
    (
        StorageFailure.NO_PERMISSION,
        (errno.EACCES, errno.EPERM, errno.EROFS),
        (403,),
        (
            "accessdenied",
            "permissiondenied",
            "permissionmismatch",
            "accesscontrolexception",
            "forbidden",
            "authorizationfailure",
        ),
    ),
    (
        StorageFailure.GONE,
        (errno.ENOENT, errno.ENOTDIR),
        (404, 410),
        ("nosuchbucket", "nosuchkey", "nosuchfile", "notfound", "doesnotexist"),
    ),
    (
        StorageFailure.UNAVAILABLE,
        (
            errno.EIO,
            errno.EAGAIN,
            errno.EPIPE,
            errno.ESTALE,
            errno.ENOTCONN,
            errno.ECONNRESET,
            errno.ECONNREFUSED,
            errno.ECONNABORTED,
            errno.EHOSTDOWN,
            errno.EHOSTUNREACH,
            errno.ENETDOWN,
            errno.ENETUNREACH,
            errno.EREMOTEIO,
        ),
        (500, 502, 503),
        (
            "unavailable",
            "internalfailure",
            "internalerror",
            "connection",
            "disconnected",
            "incompleteread",
            "couldnotresolve",
            "curlcode",
            "failedtoflush",
        ),
    ),
)
_STATUS = re.compile(r"(?:HTTP status(?: code)?|status code|HTTP error)[ :=]*([1-5][0-9]{2})", re.I)
_NOT_LETTERS = re.compile(r"[^a-z]+")
# Paths and keys, whose words mean nothing here.
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
# The attributes in which classes of HTTP errors keep their status.
_STATUS_ATTRIBUTES = ("status_code", "status", "code")


def failure_of(error: BaseException) -> StorageFailure:
    """Which kind of failure an error is.

    Args:
        error: What a filesystem raised: Python's, pyarrow's, or one that fsspec knows.
    """
    number = getattr(error, "errno", None)
    status = _status_of(error)
    text = f"{type(error).__name__} {_QUOTED.sub('', str(error))}"
    text = _NOT_LETTERS.sub("", text.lower())
    for kind, numbers, _, _ in _TABLE:
        if number in numbers:
            return kind
    for kind, _, _, words in _TABLE:
        if any(word in text for word in words):
            return kind
    for kind, _, statuses, _ in _TABLE:
        if status in statuses:
            return kind
    return StorageFailure.UNKNOWN


def _status_of(error: BaseException) -> int | None:
    for name in _STATUS_ATTRIBUTES:
        value = getattr(error, name, None)
        if isinstance(value, int):
            return value
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None
