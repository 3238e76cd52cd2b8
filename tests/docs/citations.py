"""Reads citations: which section, rule, step, scenario or invariant a text names, and which of them its page does not have.

A citation is a page's name and a section, perhaps with what is meant in it. The forms that are used:

    design §3, rule 6        design §4, steps 6 and 11        contracts §1, 5 (a numbered line)
    RFC §4.2                 contracts §3, §6                 acceptance A, soft-idle    acceptance D, 19
    I17

A section sign without a page's name belongs to the page that it stands on; in code it says nothing and is wrong.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"

_SECTION: Final = r"§(\d+(?:\.\d+)?)(?:'s)?"
_CITED: Final = re.compile(
    rf"\b(?P<page>[Dd]esign|[Cc]ontracts?|RFC)(?:\.md)?\s(?P<sections>{_SECTION}(?:(?:,|;|\sand|\sto)?\s{_SECTION})*)"
    r"(?:,?\s(?:rules?|steps?)\s(?P<items>\d+(?:(?:,|\sand)\s\d+)*)|,\s(?P<line>\d+)(?![\d.]|\ss\b))?"
)
_ACCEPTANCE: Final = re.compile(
    r"\bacceptance (?P<section>[A-Z])(?:,? ?(?P<case>\d+))?(?![a-zA-Z\d])(?:, (?P<names>[\w*, -]+)\))?"
)
_INVARIANT: Final = re.compile(r"(?<![\w-])I(\d{1,2})(?![\w-])")
_LINE_BREAK: Final = re.compile(r"\n[ \t]*(?:#:?[ \t]+|>[ \t]+)?")


@dataclass(frozen=True)
class Law:
    """What the pages have. `items`: the numbers of rules, steps or lines, by page and section; where there is no such
    section, that alone is what is wrong."""

    sections: Mapping[str, frozenset[str]]
    items: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()
    """The lettered parts of acceptance."""

    drills: frozenset[str] = frozenset()
    cases: frozenset[int] = frozenset()
    invariants: frozenset[int] = frozenset()


def the_law() -> Law:
    """As the pages in docs/ have it now."""
    design, contracts, rfc = (_read(f"{name}.md") for name in ("design", "contracts", "rfc"))
    acceptance = _read("acceptance.md")
    sections = {
        "design": frozenset(_by_section(design, r"## (\d+)\. ")),
        "contracts": frozenset(_by_section(contracts, r"## (\d+)\. ")),
        "RFC": frozenset(_by_section(rfc, r"### (\d+(?:\.\d+)?) ")),
    }
    items: dict[tuple[str, str], frozenset[int]] = {}
    for page, text, heading in (("design", design, r"## (\d+)\. "), ("contracts", contracts, r"## (\d+)\. ")):
        for number, body in _by_section(text, heading).items():
            items[page, number] = frozenset(map(int, re.findall(r"^(\d+)\. ", body, re.MULTILINE)))
    for number, body in _by_section(rfc, r"### (\d+(?:\.\d+)?) ").items():
        items["RFC", number] = frozenset(map(int, re.findall(r"\bStep (\d+)\b", body)))
    matrix = _by_section(acceptance, r"## ([A-Z])\. ")
    first_cells = re.findall(r"^\|([^|]*)\|", matrix["A"], re.MULTILINE)
    return Law(
        sections=sections,
        items=items,
        parts=frozenset(matrix),
        drills=frozenset(name for cell in first_cells for name in re.findall(r"`([\w-]+)`", cell)),
        cases=frozenset(map(int, re.findall(r"^\| (\d+) \|", _read("cases.md"), re.MULTILINE))),
        invariants=frozenset(map(int, re.findall(r"^\| I(\d+) \|", _read("invariants.md"), re.MULTILINE))),
    )


def wrong_citations(text: str, law: Law, home: str | None = None) -> list[str]:
    """Each citation in `text` of what is not there, in words. `home`: the page that a bare § belongs to; None: code."""
    text = _LINE_BREAK.sub(" ", text)
    return [*_wrong_sections(text, law, home), *_wrong_acceptance(text, law), *_wrong_invariants(text, law)]


def _wrong_sections(text: str, law: Law, home: str | None) -> Iterator[str]:
    read: set[int] = set()
    for cited in _CITED.finditer(text):
        read |= {cited.start() + at.start() for at in re.finditer("§", cited[0])}
        page = _page(cited["page"])
        sections = re.findall(_SECTION, cited["sections"])
        yield from (f"{page} §{number}: no such section" for number in sections if number not in law.sections[page])
        wanted = [int(number) for number in re.findall(r"\d+", cited["items"] or cited["line"] or "")]
        there = law.items.get((page, sections[-1]), frozenset(wanted))
        yield from (f"{page} §{sections[-1]} has no number {number}: {cited[0]!r}" for number in wanted if number not in there)
    for bare in re.finditer(_SECTION, text):
        if bare.start() in read:
            continue
        if home is None or home not in law.sections:
            yield f"{bare[0]} names no page: …{text[max(0, bare.start() - 40) : bare.end() + 20]}…"
        elif bare[1] not in law.sections[home]:
            yield f"{home} {bare[0]}: no such section"


def _wrong_acceptance(text: str, law: Law) -> Iterator[str]:
    for cited in _ACCEPTANCE.finditer(text):
        if cited["section"] not in law.parts:
            yield f"acceptance {cited['section']}: no such part"
        elif cited["case"] and int(cited["case"]) not in law.cases:
            yield f"acceptance D has no case {cited['case']}"
        for name in re.split(r", | and ", cited["names"] or ""):
            if name and not any(fnmatch(drill, name) for drill in law.drills):
                yield f"acceptance {cited['section']} has no scenario {name!r}"


def _wrong_invariants(text: str, law: Law) -> Iterator[str]:
    return (f"I{number}: no such invariant" for number in _INVARIANT.findall(text) if int(number) not in law.invariants)


def _page(name: str) -> str:
    return "RFC" if name == "RFC" else {"d": "design", "c": "contracts"}[name[0].lower()]


def _by_section(text: str, heading: str) -> dict[str, str]:
    """The text under each heading, by its number."""
    parts = re.split(rf"^{heading}", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")
