"""Writes YAML for people: keys in the given order, texts of several lines as blocks."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """A separate dumper, so that the library's own is not changed."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def written(header: str, document: dict[str, Any]) -> str:
    """Returns the document as YAML under its header."""
    return header + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
