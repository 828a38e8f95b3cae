"""A backend's variables beside those that a person has set for a rank."""

from __future__ import annotations

from collections.abc import Mapping

# Of what a backend sets, the defaults: what a person has set for a rank stands.
_DEFAULTS = ("NCCL_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
# A person may ask for more patience than ours. With less, a library would give up first, and blame
# the rank that waited.
_AT_LEAST = ("HOROVOD_GLOO_TIMEOUT_SECONDS",)


def beside_own(environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """What to set of a backend's variables in a process that has some of its own.

    Args:
        environment: What the backend needs.
        own: The variables that the process has, its user's among them.
    """
    settled = dict(environment)
    for name in settled.keys() & own.keys():
        if name in _DEFAULTS or (name in _AT_LEAST and _number(own[name]) > float(settled[name])):
            settled[name] = own[name]
    return settled


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
