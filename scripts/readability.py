"""Finds places that break the rules of readable code (RULES).

`python -m scripts.readability` prints each as FILE:LINE: RULE: name, and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "daemon" / "draftd"
HARNESS = ROOT / "acceptance" / "draftd_acceptance"
HARNESS_ROOM = "acceptance/"
TESTS = ROOT / "tests"

FUNCTION_LINES, CLASS_ATTRIBUTES, FILE_LINES, DOCSTRING_LINES = 45, 15, 400, 6
SAME_STEM, SAME_TEST_OF_NONE, TEST_WORDS = 2, 5, 5
EMPTY_NAMES = {"one", "found", "made", "told", "known", "asked", "given", "held"}
PARTICIPLES = {"told", "taken", "made", "held", "known", "began", "begun", "given", "kept", "left", "sent", "gone"}
NO_PARTICIPLES = {"feed", "need", "seed", "speed", "embed", "exceed", "proceed", "shed"}
NO_FIRST_WORDS = {"of", "what", "who", "that", "those", "its", "as", "by", "where", "with"}
NO_FIRST_WORDS_OF_TESTS = {"it", "they", "what", "one", "such", "that", "who", "nothing"}
OWN_STEMS = {"base", "__init__", "__main__"}  # each package may have one
NAMED_BY_FOLDER = ("settings/", "cli/commands/")  # files named after a section, or a command
# Places that may break a rule, as "RULE FILE NAME", and the reason. The rules of STRICT have no exceptions.
STRICT = {"class-name", "empty-name", "participle", "docstring-word", "docstring-length", "test-name"}
MOST_EXCEPTIONS = 20
_RECORD = "a record of values, which nothing divides"
_STATE = "the state of one sequence, whose fields are read together in each step"
_WHOLE = "owns all parts of an engine and its thread"
EXCEPTIONS: dict[str, str] = {
    "class-size acceptance/manifest.py Manifest": _RECORD,
    "class-size acceptance/soak.py SoakResult": _RECORD,
    "class-size acceptance/ticks.py MachineSample": _RECORD,
    "class-size client/client.py Ask": _RECORD,
    "class-size core.py DecodeRequest": _RECORD,
    "class-size counts.py DraftCounts": _RECORD,
    "class-size engine/limits.py Limits": _RECORD,
    "class-size engine/observer.py EngineStatus": _RECORD,
    "class-size engine/observer.py PrefixStatus": _RECORD,
    "class-size engine/sampling/transforms.py Sampling": "parameters of a batch, each as an array",
    "class-size fallback/state.py FallbackState": _RECORD,
    "class-size hardware/state.py HardwareSample": _RECORD,
    "class-size model_info.py ModelInfo": _RECORD,
    "class-size service/request.py Request": _RECORD,
    "class-size engine/sequence.py DecodeSequence": _STATE,
    "class-size engine/remote/remote_sequence.py RemoteSequence": _STATE,
    "class-size engine/local_decoder.py LocalDecoder": _WHOLE,
    "class-size engine/loop.py EngineWorker": _WHOLE,
    "class-size process/handle.py EngineProcess": _WHOLE,
    "class-size fallback/controller.py Controller": "owns all inputs of the fallback, and what follows from them",
}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """A parsed file. `name` is its path below the package or below the tests, with slashes; names of the acceptance
    harness begin with `acceptance/`. `nodes` are those of its syntax tree."""

    name: str
    text: str
    nodes: list[ast.AST]  # of its syntax tree

    @property
    def room(self) -> str:
        """First folder of its path, or "values" for a file directly in the package."""
        return self.name.partition("/")[0] if "/" in self.name else "values"


@dataclass(frozen=True)
class Place:
    """A place that breaks a rule. `what` is the name that breaks it, or a count."""

    module: Module
    line: int
    what: str


Rule: TypeAlias = Callable[[list[Module]], Iterator[Place]]


def parse(name: str, text: str) -> Module:
    return Module(name, text, list(ast.walk(ast.parse(text))))


def repeated_class_names(modules: list[Module]) -> Iterator[Place]:
    """A class's name is unique in the package."""
    classes = defaultdict[str, list[Place]](list)
    for module, node in _nodes(modules, (ast.ClassDef,)):
        classes[node.name].append(Place(module, node.lineno, node.name))
    for places in classes.values():
        yield from places if len(places) > 1 else ()


def repeated_file_names(modules: list[Module]) -> Iterator[Place]:
    """A file's stem occurs at most twice."""
    stems = defaultdict[str, list[Place]](list)
    for module in modules:
        stem = Path(module.name).stem
        if stem not in OWN_STEMS and not module.name.startswith(NAMED_BY_FOLDER):
            stems[stem].append(Place(module, 1, stem))
    for places in stems.values():
        yield from places if len(places) > SAME_STEM else ()


def empty_names(modules: list[Module]) -> Iterator[Place]:
    """A variable has one of EMPTY_NAMES only in a comprehension or lambda on one line."""
    for module in modules:
        short = _names_in_short_scopes(module.nodes)
        for node in module.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.attr.lstrip("_")
            else:
                continue
            if name in EMPTY_NAMES and id(node) not in short:
                yield Place(module, node.lineno, name)


def participles(modules: list[Module]) -> Iterator[Place]:
    """A function's name is not a participle alone, unless it is a property, which is read like an attribute."""
    for module, node in _nodes(modules, FUNCTIONS):
        name = node.name.lstrip("_")
        participle = name in PARTICIPLES or (name.endswith("ed") and name not in NO_PARTICIPLES)
        if participle and "_" not in name and not _is_property(node):
            yield Place(module, node.lineno, node.name)


def first_words(modules: list[Module]) -> Iterator[Place]:
    """A docstring begins with a verb or a noun, not with one of NO_FIRST_WORDS."""
    for module, node in _nodes(modules, (ast.Module, ast.ClassDef, *FUNCTIONS)):
        words = re.findall(r"\w+", ast.get_docstring(node) or "")
        if words and words[0].lower() in NO_FIRST_WORDS:
            yield Place(module, getattr(node, "lineno", 1), words[0])


def long_docstrings(modules: list[Module]) -> Iterator[Place]:
    """A docstring has at most DOCSTRING_LINES lines, except a module's."""
    for module, node in _nodes(modules, (ast.ClassDef, *FUNCTIONS)):
        lines = len((ast.get_docstring(node) or "").splitlines())
        if lines > DOCSTRING_LINES:
            yield Place(module, node.lineno, f"{node.name}: {lines} lines")


def long_functions(modules: list[Module]) -> Iterator[Place]:
    """A function has at most FUNCTION_LINES lines."""
    for module, node in _nodes(modules, FUNCTIONS):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES:
            yield Place(module, node.lineno, f"{node.name}: {lines} lines")


def large_classes(modules: list[Module]) -> Iterator[Place]:
    """A class has at most CLASS_ATTRIBUTES attributes; a dataclass's fields count."""
    for module, node in _nodes(modules, (ast.ClassDef,)):
        count = len(_attributes(node))
        if count > CLASS_ATTRIBUTES:
            yield Place(module, node.lineno, f"{node.name}: {count} attributes")


def long_files(modules: list[Module]) -> Iterator[Place]:
    """A file has at most FILE_LINES lines."""
    for module in modules:
        lines = len(module.text.splitlines())
        if lines > FILE_LINES:
            yield Place(module, 1, f"{lines} lines")


def tests_of_none(modules: list[Module]) -> Iterator[Place]:
    """A package compares one attribute with None at most SAME_TEST_OF_NONE times: a null object serves beyond that."""
    tests = defaultdict[tuple[str, str], list[Place]](list)
    for module, node in _nodes(modules, (ast.Compare,)):
        left, right = node.left, node.comparators[0]
        is_test = isinstance(node.ops[0], (ast.Is, ast.IsNot)) and isinstance(right, ast.Constant)
        if is_test and right.value is None and isinstance(left, ast.Attribute):
            package = module.name.rpartition("/")[0]
            tests[package, left.attr].append(Place(module, node.lineno, f"{left.attr} is None"))
    for places in tests.values():
        yield from places[SAME_TEST_OF_NONE:]


def names_of_tests(modules: list[Module]) -> Iterator[Place]:
    """A test's name says who does what, in at least TEST_WORDS words, and is clear without its file."""
    for module, node in _nodes(modules, FUNCTIONS):
        if node.name.startswith("test_"):
            words = node.name.split("_")[1:]
            if len(words) < TEST_WORDS or words[0] in NO_FIRST_WORDS_OF_TESTS:
                yield Place(module, node.lineno, node.name)


RULES: dict[str, Rule] = {
    "class-name": repeated_class_names,
    "file-name": repeated_file_names,
    "empty-name": empty_names,
    "participle": participles,
    "docstring-word": first_words,
    "docstring-length": long_docstrings,
    "function-length": long_functions,
    "class-size": large_classes,
    "file-length": long_files,
    "none": tests_of_none,
}
RULES_OF_TESTS: dict[str, Rule] = {"test-name": names_of_tests}


def find_places(
    package: list[Module], tests: list[Module], exceptions: Iterable[str] = EXCEPTIONS
) -> list[tuple[str, Place]]:
    """Returns (rule, place) for all places that break a rule, except those in `exceptions`."""
    places = [(name, place) for name, rule in RULES.items() for place in rule(package)]
    places += [(name, place) for name, rule in RULES_OF_TESTS.items() for place in rule(tests)]
    allowed = set(exceptions)
    return [(rule, place) for rule, place in places if key_of(rule, place) not in allowed]


def unused_exceptions(package: list[Module], exceptions: Iterable[str] = EXCEPTIONS) -> list[str]:
    """Returns the exceptions whose places no longer break a rule."""
    broken = {key_of(name, place) for name, rule in RULES.items() for place in rule(package)}
    return [key for key in exceptions if key not in broken]


def key_of(rule: str, place: Place) -> str:
    """Returns the place's key in EXCEPTIONS."""
    return f"{rule} {place.module.name} {place.what.partition(':')[0]}"


def _nodes(modules: Iterable[Module], kinds: tuple[type[ast.AST], ...]) -> Iterator[tuple[Module, Any]]:
    for module in modules:
        for node in module.nodes:
            if isinstance(node, kinds):
                yield module, node


def _names_in_short_scopes(nodes: list[ast.AST]) -> set[int]:
    scopes = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
    short = (node for node in nodes if isinstance(node, scopes) and node.lineno == node.end_lineno)
    return {id(name) for scope in short for name in ast.walk(scope)}


def _is_property(function: Function) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def _attributes(owner: ast.ClassDef) -> set[str]:
    annotated = (node.target for node in owner.body if isinstance(node, ast.AnnAssign))
    fields = {target.id for target in annotated if isinstance(target, ast.Name)}
    stored = {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return stored | (fields if any("dataclass" in ast.unparse(d) for d in owner.decorator_list) else set())


def _read_modules(folder: Path, room: str = "", leave_out: tuple[str, ...] = ()) -> list[Module]:
    paths = ((path, room + path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*.py")))
    return [parse(name, path.read_text()) for path, name in paths if not name.startswith(leave_out)]


def main() -> int:
    package = _read_modules(PACKAGE, leave_out=("v1/",)) + _read_modules(HARNESS, HARNESS_ROOM)
    places = find_places(package, _read_modules(TESTS))
    for rule, place in places:
        print(f"{_path(rule, place).relative_to(ROOT)}:{place.line}: {rule}: {place.what}")
    for rule in dict.fromkeys(rule for rule, _ in places):
        print(f"{rule}: {(RULES | RULES_OF_TESTS)[rule].__doc__}", file=sys.stderr)
    unused = unused_exceptions(package)
    for key in unused:
        print(f"scripts/readability.py: the exception {key!r} is not needed any more", file=sys.stderr)
    return 1 if places or unused else 0


def _path(rule: str, place: Place) -> Path:
    name = place.module.name
    if rule in RULES_OF_TESTS:
        return TESTS / name
    if name.startswith(HARNESS_ROOM):
        return HARNESS / name.removeprefix(HARNESS_ROOM)
    return PACKAGE / name


if __name__ == "__main__":
    sys.exit(main())
