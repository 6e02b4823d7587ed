"""What `draftd doctor` looks at of the fallback: where alerts are to arrive, and where its state is kept."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from draftd.cli.checks import Finding, Verdict
from draftd.settings import Settings, WebhookSettings, state_dir

_ASK_SECONDS = 2.0


def check_webhook(settings: Settings) -> Finding:
    """The port that alerts are to arrive on: free, or a draftd's already."""
    webhook = settings.webhook
    if not webhook.listens:
        return Finding("webhook", Verdict.NOTE, "neither webhook.token nor webhook.secret: no alerts are taken")
    if webhook.port == 0:
        return Finding("webhook", Verdict.OK, "any free port")
    place = f"{webhook.host}:{webhook.port}"
    from draftd.control.alerts.connections import listening_socket

    try:
        listening_socket(webhook.host, webhook.port).close()
    except socket.gaierror as error:
        mend = "set webhook.host to an address of this machine"
        return Finding("webhook", Verdict.BAD, f"{webhook.host}: {error.strerror}", mend)
    except OSError as error:
        if _is_ours(webhook):
            return Finding("webhook", Verdict.NOTE, f"{place}: a daemon takes alerts there now")
        return Finding("webhook", Verdict.BAD, f"{place}: {error.strerror}", "set webhook.port to one that is free")
    return Finding("webhook", Verdict.OK, f"{place} is free")


def _is_ours(webhook: WebhookSettings) -> bool:
    """Whether a draftd answers there. Nothing secret is said, so that its certificate need not be known."""
    host = webhook.host.strip("[]")
    if webhook.tls_cert is None:
        asked = http.client.HTTPConnection(host, webhook.port, timeout=_ASK_SECONDS)
    else:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        asked = http.client.HTTPSConnection(host, webhook.port, timeout=_ASK_SECONDS, context=context)
    with contextlib.closing(asked):
        try:
            asked.request("GET", "/")
            return asked.getresponse().getheader("Server") == "draftd"
        except (OSError, http.client.HTTPException):
            return False


def check_state(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Where the level and its history are kept. The user's own folder can be done without; one that is named cannot."""
    named, port = settings.fallback.state_dir, settings.server.port
    if named is None and not port:
        return Finding("state", Verdict.NOTE, "server.port is 0: the level is not kept over a restart")
    folder = named or state_dir(environ) / str(port)
    if why := _unusable(folder):
        if named is None:
            return Finding("state", Verdict.NOTE, f"{folder} {why}: the level is not kept over a restart")
        return Finding("state", Verdict.BAD, f"{folder} {why}", "set fallback.state_dir to one that can be written")
    if _in_use(folder):
        return Finding("state", Verdict.NOTE, f"{folder}: a daemon uses it now")
    return Finding("state", Verdict.OK, f"{folder}{'' if folder.exists() else ' (will be made)'}")


def _unusable(folder: Path) -> str:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return "is no folder" if there == folder else f"cannot be made: {there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return "cannot be written" if there == folder else f"cannot be made in {there}"
    return ""


def _in_use(folder: Path) -> bool:
    """Whether a daemon has locked it."""
    try:
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
