"""A verdict as JUnit XML, which CI systems list, count and keep: one test case a criterion.

What was disproven and what could not be proven are failures of different types; what is excused was skipped; a run
that was not judged is one case with an error.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from xml.etree import ElementTree as Xml

from draftd.acceptance.gate import shown
from draftd.acceptance.gate.verdict import Decision, Judgement, Outcome, Verdict

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(verdict: Verdict, at: datetime | None = None) -> str:
    """`at` is when it was judged; now, where it is None."""
    cases = [_case(verdict, one) for one in verdict.judgements]
    if verdict.decision is Decision.NOT_JUDGED:
        cases = [_not_judged(verdict)]
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": "0",
    }
    when = (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    root = Xml.Element("testsuites", {"name": "draftd gate", **counts})
    name = _clean(f"draftd gate: {verdict.spec}" if verdict.spec else "draftd gate")
    suite = Xml.SubElement(root, "testsuite", {"name": name, **counts, "timestamp": when, "hostname": "localhost"})
    properties = Xml.SubElement(suite, "properties")
    told = {"run": verdict.run, "baseline": verdict.baseline, "candidate": verdict.candidate}
    for key, value in {**told, "verdict": verdict.sentence}.items():
        if value:
            Xml.SubElement(properties, "property", {"name": key, "value": _clean(value)})
    suite.extend(cases)
    if verdict.notes:
        Xml.SubElement(suite, "system-out").text = _clean("\n".join(verdict.notes))
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'


def _case(verdict: Verdict, judgement: Judgement) -> Xml.Element:
    case = _named(verdict, judgement.criterion.name)
    line = _clean(shown.explanation(judgement))
    if judgement.outcome is Outcome.PASSED:
        Xml.SubElement(case, "system-out").text = line
    elif judgement.outcome is Outcome.EXCUSED:
        Xml.SubElement(case, "skipped", {"message": _clean(judgement.reason)})
    else:
        failure = Xml.SubElement(case, "failure", {"type": str(judgement.outcome), "message": line})
        failure.text = line
    return case


def _not_judged(verdict: Verdict) -> Xml.Element:
    case = _named(verdict, "the run can be judged")
    message = _clean(verdict.sentence)
    error = Xml.SubElement(case, "error", {"type": str(verdict.decision), "message": message})
    error.text = _clean("\n".join(verdict.reasons))
    return case


def _named(verdict: Verdict, name: str) -> Xml.Element:
    # A dot parts packages from classes in CI systems' lists.
    of = verdict.spec.replace(".", " ").strip() or "gate"
    return Xml.Element("testcase", {"classname": _clean(f"draftd.gate.{of}"), "name": _clean(name), "time": "0"})


def _clean(text: str) -> str:
    """Without what XML cannot hold, escaped or not."""
    return _NOT_IN_XML.sub("�", text)
