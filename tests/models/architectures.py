"""The text architectures of the installed mlx-lm, and a tiny configuration for each. Imports no MLX."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from tests.models.configurations import COMMON, DENSE, EXPERTS, LATENT, VOCABULARY, WINDOWS, Config
from tests.models.hybrids import HYBRIDS

TABLES: Mapping[str, Mapping[str, Config]] = {
    "full attention": DENSE,
    "experts": EXPERTS,
    "latent attention": LATENT,
    "windows, chunks, shared layers": WINDOWS,
    "a recurrent state": HYBRIDS,
}
OWN: Mapping[str, Config] = {name: own for table in TABLES.values() for name, own in table.items()}


def version() -> str:
    """Returns the versions of mlx-lm, and of MLX, whose kernels it uses."""
    return f"mlx-lm {metadata.version('mlx-lm')}, MLX {metadata.version('mlx')}"


def architectures() -> list[str]:
    """Returns the modules that define or import both a Model and its ModelArgs: the names that mlx-lm can load."""
    folder = _folder() / "models"
    names = [module.name for module in pkgutil.iter_modules([str(folder)])]
    return sorted((name for name in names if _loadable(folder / f"{name}.py")), key=str.lower)


def other_names() -> dict[str, str]:
    """Model types that mlx-lm loads as another architecture: type to architecture."""
    for statement in ast.parse((_folder() / "utils.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "MODEL_REMAPPING":
            found: dict[str, str] = ast.literal_eval(statement.value)
            return found
    return {}


def configuration(name: str) -> Config:
    """Returns the config.json of a tiny model of this architecture."""
    own = OWN.get(name, {})
    if "text_config" in own:
        text = {"model_type": name, **COMMON, **own["text_config"]}
        return {"model_type": name, "vocab_size": VOCABULARY, **own, "text_config": text}
    return {"model_type": name, **COMMON, **own}


def kind(name: str) -> str:
    """Returns the name of the table that has the architecture, or an empty text."""
    return next((kind for kind, table in TABLES.items() if name in table), "")


def source(name: str) -> str:
    """Returns the source of the architecture's module."""
    return (_folder() / "models" / f"{name}.py").read_text(encoding="utf-8")


def _folder() -> Path:
    spec = importlib.util.find_spec("mlx_lm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _loadable(module: Path) -> bool:
    bound = set()
    for statement in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ClassDef):
            bound.add(statement.name)
        elif isinstance(statement, ast.ImportFrom):
            bound.update(alias.asname or alias.name for alias in statement.names)
    return {"Model", "ModelArgs"} <= bound
