"""What a report's `detail` says is for people: whoever decides, judges or counts reads fields."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["root_packages"]

PATTERNS: Final = frozenset({"findall", "finditer", "fullmatch", "match", "search", "sub", "subn"})
PARTS: Final = frozenset({"split", "rsplit", "partition", "rpartition", "splitlines", "removeprefix", "removesuffix"})
LOOKS: Final = frozenset({"startswith", "endswith", "find", "rfind", "index", "rindex", "count"})
PARSING: Final = PATTERNS | PARTS | LOOKS


def parsed_details(tree: ast.AST) -> Iterator[int]:
    """The lines at which a `detail` is taken apart, or looked into."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=attr, value=text), args=args) if attr in PARSING:
                if any(_is_detail(inner) for part in (text, *args) for inner in ast.walk(part)):
                    yield node.lineno
            case ast.Compare(ops=ops, comparators=comparators):
                looked_into = (side for op, side in zip(ops, comparators, strict=True) if isinstance(op, ast.In | ast.NotIn))
                if any(_is_detail(side) for side in looked_into):
                    yield node.lineno


def _is_detail(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "detail"


@pytest.mark.parametrize("room", ROOMS)
def test_nobody_takes_a_detail_apart(room: str) -> None:
    found = {
        f"{file.relative_to(ROOT)}:{line}"
        for file in (ROOT / room).rglob("*.py")
        for line in parsed_details(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert found == set()


@pytest.mark.parametrize(
    "code",
    [
        "LISTED.findall(report.detail)",
        "re.search(r'[A-Z]+', report.detail)",
        "LISTED.findall(report.detail.partition('; ')[0])",
        "report.detail.split(': ')",
        "'GUARD_HELD' in report.detail",
    ],
)
def test_it_would_be_seen(code: str) -> None:
    assert list(parsed_details(ast.parse(code))) != []
