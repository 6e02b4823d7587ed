"""The clients to run, how each is started, and what is checked of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
SCRIPTS = Path(__file__).parent / "scripts"

PLAIN, STREAM, SCHEMA, TOOLS, ABORT, RESUME = CHECKS = ("plain", "stream", "schema", "tools", "abort", "resume")
"""An answer; one in pieces; one under a JSON schema; a call of a tool, and the answer to its result; a stream that is
left in the middle, after which the daemon has no request; a conversation that the daemon or the client goes on with."""


class Place(StrEnum):
    """A folder in build/clients in which a client is installed."""

    PYTHON = "python"
    PYTHON_OLDER = "python-older"  # those that want older versions of openai and jiter than the others
    NODE = "node"
    GO_OLDEST = "go-oldest"
    GO_NEWEST = "go-newest"
    JDK = "jdk"


@dataclass(frozen=True)
class Client:
    """A client. `package` is the package whose version is shown. `script` is a file of `scripts/`, empty for terminal
    programs, which `terminal.py` runs. `missing` names the checks that the client has no feature for."""

    name: str
    place: Place
    package: str
    script: str = ""
    missing: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Returns its pinned version."""
        return pinned_versions(self.place).get(self.package, "")

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(check for check in CHECKS if check not in self.missing)


CLIENTS = (
    Client("openai-python", Place.PYTHON, "openai", "openai_python.py"),
    Client("anthropic-python", Place.PYTHON, "anthropic", "anthropic_python.py", (RESUME,)),
    Client("langchain-openai", Place.PYTHON, "langchain-openai", "langchain_openai_chat.py"),
    Client("langchain-anthropic", Place.PYTHON, "langchain-anthropic", "langchain_anthropic_chat.py", (RESUME,)),
    Client("litellm", Place.PYTHON, "litellm", "litellm_completion.py"),
    Client("pydantic-ai", Place.PYTHON, "pydantic-ai-slim", "pydantic_ai_agent.py"),
    Client("openai-agents", Place.PYTHON, "openai-agents", "openai_agents.py"),
    Client("llama-index", Place.PYTHON_OLDER, "llama-index-llms-openai-like", "llama_index_openai_like.py", (RESUME,)),
    Client("instructor", Place.PYTHON_OLDER, "instructor", "instructor_openai.py", (RESUME,)),
    Client("openai-node", Place.NODE, "openai", "openai_node.mjs"),
    Client("ai-sdk-openai", Place.NODE, "@ai-sdk/openai", "ai_sdk_openai.mjs"),
    Client(
        "ai-sdk-openai-compatible", Place.NODE, "@ai-sdk/openai-compatible", "ai_sdk_openai_compatible.mjs", (RESUME,)
    ),
    Client("ai-sdk-anthropic", Place.NODE, "@ai-sdk/anthropic", "ai_sdk_anthropic.mjs", (RESUME,)),
    Client("anthropic-node", Place.NODE, "@anthropic-ai/sdk", "anthropic_node.mjs", (RESUME,)),
    Client("claude-code", Place.NODE, "@anthropic-ai/claude-code"),
    Client("codex", Place.NODE, "@openai/codex", missing=(STREAM,)),
    Client("openai-go-oldest", Place.GO_OLDEST, "github.com/openai/openai-go/v3", "openai_go.go"),
    Client("openai-go-newest", Place.GO_NEWEST, "github.com/openai/openai-go/v3", "openai_go.go"),
    Client("jdk", Place.JDK, "", "Jdk.java"),
)

NOT_INSTALLED: dict[str, str] = {}
"""Why a client cannot be installed, by its name: it then counts as no failure."""


def requirements_of(place: Place) -> Path | None:
    """Returns the file that pins what is installed there."""
    files = {Place.NODE: "package.json", Place.GO_OLDEST: "go-oldest/go.mod", Place.GO_NEWEST: "go-newest/go.mod"}
    return None if place == Place.JDK else REQUIREMENTS / files.get(place, f"{place}.txt")


def pinned_versions(place: Place) -> dict[str, str]:
    """Returns versions by package."""
    file = requirements_of(place)
    if file is None:
        return {}
    text = file.read_text()
    if file.suffix == ".json":
        return dict(json.loads(text)["dependencies"])
    if file.suffix == ".mod":
        return dict(re.findall(r"^require (\S+) v(\S+)$", text, re.MULTILINE))
    return dict(re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)$", text, re.MULTILINE))
