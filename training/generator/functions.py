"""Generates small Python functions: to write, to complete, and as plain source."""

from __future__ import annotations

from random import Random

from training.generator import tables_code as t
from training.generator.base import Document, chat


def _indent(body: str) -> str:
    return "\n".join("    " + line for line in body.split("\n"))


def _render(name: str, args: str, returns: str, doc: str, body: str, typed: bool) -> tuple[str, str]:
    """Returns the head (signature and docstring) and the whole function."""
    arrow = f" -> {returns}" if typed else ""
    head = f'def {name}({args}){arrow}:\n    """{doc}."""'
    return head, f"{head}\n{_indent(body)}"


def _recipe(rng: Random) -> tuple[str, str, str, str, str, str]:
    """Draws a recipe and fills in names. Returns name, arguments, return type, description, body and an empty
    string."""
    r = rng.choice(t.RECIPES)
    x = rng.choice(r.x.split())
    y = rng.choice([c for c in r.y.split() if c != x]) if r.y else ""
    args = ", ".join(a for a in (x, y) if a)
    if "low" in r.does:
        args += ", low, high"
    return rng.choice(r.names.split()), args, r.returns, r.does.format(x=x, y=y), r.body.format(x=x, y=y), ""


def _composed(rng: Random) -> tuple[str, str, str, str, str, str]:
    """Builds a function from a test and an action, of which there are a few thousand combinations."""
    x = (
        rng.choice(("numbers", "values", "nums", "data"))
        if rng.random() < 0.6
        else rng.choice(("words", "names", "lines"))
    )
    if x in ("numbers", "values", "nums", "data"):
        kind, v = "numbers", "n"
        label, test = rng.choice(list(t.NUMBER_TESTS.items()))
        if rng.random() < 0.4:
            k = rng.randrange(2, 20)
            word, sign = rng.choice(
                (("greater than", ">"), ("less than", "<"), ("divisible by", "% {k} =="), ("equal to", "=="))
            )
            label = f"{word} {k}"
            test = f"{{v}} % {k} == 0" if "divisible" in word else f"{{v}} {sign} {k}"
        action = rng.choice(("list", "count", "sum", "squares", "any", "first"))
    else:
        kind, v = x, x[:-1]
        label, test = rng.choice(list(t.TEXT_TESTS.items()))
        k = rng.randrange(2, 9)
        if "{n}" in test:
            label = f"longer than {k}" if label == "long" else f"shorter than {k}"
            test = test.replace("{n}", str(k))
        if rng.random() < 0.35:
            letter = rng.choice("abcdefghklmnoprstw")
            how = rng.choice(("start", "end"))
            label, test = f"{how} with {letter}", f'{{v}}.{how}swith("{letter}")'
        action = rng.choice(("list", "count", "any", "upper", "lengths", "first"))
    cond = test.format(v=v)
    short = label.replace(" ", "_").replace("-", "_")
    if " " not in label or label in ("upper case", "lower case"):
        what = f"{label} {kind}"
    else:
        what = f"{kind} that {label}" if "with" in label else f"{kind} {label}"
    gen = f"for {v} in {x} if {cond}"
    does, name, returns, body = {
        "list": (f"Return the {what} in {x}", f"keep_{short}", "list", f"return [{v} {gen}]"),
        "count": (f"Count the {what} in {x}", f"count_{short}", "int", f"return sum(1 {gen})"),
        "sum": (f"Return the sum of the {what} in {x}", f"sum_{short}", "int", f"return sum({v} {gen})"),
        "squares": (f"Return the squares of the {what} in {x}", f"square_{short}", "list", f"return [{v} * {v} {gen}]"),
        "any": (f"Return True if {x} has any {what}", f"has_{short}", "bool", f"return any({cond} for {v} in {x})"),
        "first": (
            f"Return the first of the {what} in {x}, or None",
            f"first_{short}",
            "object",
            f"for {v} in {x}:\n    if {cond}:\n        return {v}\nreturn None",
        ),
        "upper": (f"Return the {what} in {x} in upper case", f"upper_{short}", "list", f"return [{v}.upper() {gen}]"),
        "lengths": (f"Return the lengths of the {what} in {x}", f"lengths_{short}", "list", f"return [len({v}) {gen}]"),
    }[action]
    if rng.random() < 0.3:
        name = rng.choice(("process", "select", "run", "compute", "check", "helper", "transform")) + "_" + x
    return name, x, returns, does, body, ""


def _fields(rng: Random) -> tuple[str, str, str, str, str, str]:
    """Builds a function over records whose field names are in the request."""
    things = rng.choice(t.CLASS_NAMES).lower()
    a, b = rng.sample(t.FIELDS, 2)
    kind = rng.randrange(5)
    if kind == 0:
        return (f"get_{a}", things, "object", f"Return the {a} of {things}, or None", f'return {things}.get("{a}")', "")
    if kind == 1:
        return (
            f"sort_by_{a}",
            f"{things}s",
            "list",
            f"Return {things}s sorted by {a}",
            f'return sorted({things}s, key=lambda {things}: {things}["{a}"])',
            "",
        )
    if kind == 2:
        return (
            f"total_{a}",
            f"{things}s",
            "float",
            f"Return the total {a} of all {things}s",
            f'return sum({things}["{a}"] for {things} in {things}s)',
            "",
        )
    if kind == 3:
        return (
            f"find_by_{a}",
            f"{things}s, {a}",
            "dict",
            f"Return the first {things} with the given {a}, or None",
            f'for {things} in {things}s:\n    if {things}["{a}"] == {a}:\n        return {things}\nreturn None',
            "",
        )
    return (
        f"format_{things}",
        things,
        "str",
        f"Return the {a} and {b} of {things} as text",
        f"return f\"{{{things}['{a}']}} ({{{things}['{b}']}})\"",
        "",
    )


def function(rng: Random) -> tuple[str, str, str, str]:
    """Returns a function's head, its whole source, its name and its description."""
    name, args, returns, does, body, _ = rng.choices((_recipe, _composed, _fields), (52, 30, 18))[0](rng)
    typed = rng.random() < 0.25
    head, source = _render(name, args, returns, does, body, typed)
    return head, source, name, does


def functions(rng: Random) -> Document:
    head, source, _, does = function(rng)
    kind = rng.random()
    if kind < 0.12:
        more = [function(rng)[1] for _ in range(rng.randrange(0, 3))]
        return Document("functions", "code", raw="\n\n\n".join([source, *more]) + "\n", key="source")
    if kind < 0.52:
        asked = rng.choice(("Complete this function:", "Complete this Python function:", "Finish this function:"))
        return chat("functions", "code", f"{asked}\n{head}", source)
    signature = head.split("\n")[0].removeprefix("def ").rstrip(":").split(" -> ")[0]
    wanted = does[0].lower() + does[1:]
    third = _third_person(wanted)
    asked = rng.choice(
        (
            f"Write a Python function {signature} that {third}.",
            f"Write a function {signature} that {third}.",
            f"Write a Python function called {signature} which {third}.",
            f"Implement {signature} in Python: {wanted}.",
        )
    )
    if " -> " in source.split("\n")[0]:
        asked = asked[:-1] + ", with type hints."
    return chat("functions", "code", asked, source)


def _third_person(wanted: str) -> str:
    verb, _, rest = wanted.partition(" ")
    return f"{verb}es {rest}" if verb.endswith("ch") else f"{verb}s {rest}"


def _field_type(name: str) -> str:
    return t.FIELD_TYPES.get(name, "str")


def classes(rng: Random) -> Document:
    """Builds a small class; the request contains all its names."""
    kind = rng.random()
    if kind < 0.16:
        return _container(rng)
    name = rng.choice(t.CLASS_NAMES)
    fields = rng.sample(t.FIELDS, rng.randrange(1, 5))
    listed = ", ".join(fields[:-1]) + " and " + fields[-1] if len(fields) > 1 else fields[0]
    plural = "s" if len(fields) > 1 else ""
    if kind < 0.45:
        typed = "\n".join(f"    {f}: {_field_type(f)}" for f in fields)
        source = f"@dataclass\nclass {name}:\n{typed}"
        return chat("classes", "code", f"Write a dataclass {name} with the field{plural} {listed}.", source)
    lines = "\n".join(f"        self.{f} = {f}" for f in fields)
    source = f"class {name}:\n    def __init__(self, {', '.join(fields)}):\n{lines}"
    shown = ", ".join(f"{{self.{f}}}" for f in fields)
    wants = rng.random()
    asked = f"Write a Python class {name} with the attribute{plural} {listed}"
    if wants < 0.35:
        source += f'\n\n    def __repr__(self):\n        return f"{name}({shown})"'
        asked += rng.choice((" and a __repr__ method", ", and a __repr__"))
    elif wants < 0.6:
        compare = " and ".join(f"self.{f} == other.{f}" for f in fields)
        source += f"\n\n    def __eq__(self, other):\n        return {compare}"
        asked += " and an __eq__ method"
    elif wants < 0.75:
        source += "\n\n    def to_dict(self):\n        return {" + ", ".join(f'"{f}": self.{f}' for f in fields) + "}"
        asked += " and a to_dict method"
    if rng.random() < 0.25:
        head = source.split("\n")[1]
        return chat("classes", "code", f"Complete this class:\nclass {name}:\n{head}", source)
    return chat("classes", "code", asked + ".", source)


def _container(rng: Random) -> Document:
    name, methods = rng.choice(list(t.CONTAINERS.items()))
    put, get = methods.split()
    item = rng.choice(("item", "value", "element", "entry", "name", "thing"))
    store = rng.choice(("items", "values", "entries", "data"))
    if get in ("pop", "dequeue"):
        take = f"        return self.{store}.pop({'' if get == 'pop' else '0'})"
        signature = "self"
    else:
        take, signature = f"        self.{store}.remove({item})", f"self, {item}"
    source = (
        f"class {name}:\n    def __init__(self):\n        self.{store} = []\n\n"
        f"    def {put}(self, {item}):\n        self.{store}.append({item})\n\n"
        f"    def {get}({signature}):\n{take}\n\n"
        f"    def __len__(self):\n        return len(self.{store})"
    )
    asked = (
        f"Write a Python class {name} that keeps its {store} in a list, "
        f"with the methods {put} and {get} for one {item} and __len__."
    )
    return chat("classes", "code", asked, source)
