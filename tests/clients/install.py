"""Installs the clients in build/clients, each once until its version changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.clients.catalog import SCRIPTS, Client, Place, requirements_of

FOLDER = Path("build/clients").resolve()
_SECONDS = 900.0
_STAMP = "installed.txt"


class NotInstalled(Exception):
    """Installation failed. The text is the installer's last output."""


def command_of(client: Client) -> list[str]:
    """Installs what the client needs. Returns the command that runs its script. Raises NotInstalled."""
    folder = FOLDER / client.place
    if client.place == Place.NODE:
        install(client.place)
        for file in SCRIPTS.glob("*.mjs"):  # a module finds packages only below its own folder
            shutil.copy(file, folder)
        return ["node", str(folder / client.script)]
    if client.place == Place.JDK:
        if shutil.which("java") is None:
            raise NotInstalled("there is no java")
        return ["java", str(SCRIPTS / client.script)]
    if client.place in (Place.GO_OLDEST, Place.GO_NEWEST):
        install(client.place)
        shutil.copy(SCRIPTS / client.script, folder)
        _run(["go", "build", "-mod=mod", "-o", "client", "."], folder)
        return [str(folder / "client")]
    install(client.place)
    return [str(folder / "bin" / "python"), str(SCRIPTS / client.script)]


def install(place: Place) -> None:
    """Installs all clients of a place, unless these very versions are there. Raises NotInstalled."""
    folder, requirements = FOLDER / place, requirements_of(place)
    assert requirements is not None
    stamp, wanted = folder / _STAMP, requirements.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {place}", file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    if requirements.suffix == ".txt":
        _run([sys.executable, "-m", "venv", "--clear", str(folder)], folder)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", "--requirement", str(requirements)], folder)
    else:
        shutil.copy(requirements, folder)
        if place == Place.NODE:
            quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
            _run(["npm", "install", *quiet], folder)
    stamp.write_text(wanted)


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(
            command, cwd=folder, env=os.environ, capture_output=True, text=True, check=True, timeout=_SECONDS
        )
    except FileNotFoundError:
        raise NotInstalled(f"there is no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{command[0]} took more than {_SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines()
        raise NotInstalled(f"{' '.join(command[:4])}: {' '.join(lines[-5:])}") from None
