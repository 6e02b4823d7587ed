"""Ends with a line of explanation if MLX has no wheel for this machine; pip would only say that it found nothing."""

import os
import platform
import sys


def libc() -> tuple[str, tuple[int, ...]]:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):  # musl knows no such name
        return "", ()
    return name, tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


if sys.platform == "darwin" and platform.machine() != "arm64":
    sys.exit("draftd: needs Apple silicon and an arm64 Python")
if sys.platform == "linux" and libc() < ("glibc", (2, 35)):
    sys.exit("draftd: needs glibc 2.35 or later, as in Debian 12 and Ubuntu 22.04")
