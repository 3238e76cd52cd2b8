"""The files of this repository that people read, and the links between its pages."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

_SKIPPED: Final = frozenset({"build", "histories", "__pycache__"})
_READ: Final = frozenset({".py", ".md", ".yml", ".yaml", ".toml"})
_LINK: Final = re.compile(r"\]\((?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
_CODE: Final = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def sources() -> Iterator[Path]:
    """Every file in which something may be cited."""
    for directory, directories, files in os.walk(ROOT):
        directories[:] = [d for d in directories if not d.startswith(".") and d not in _SKIPPED and not d.endswith(".egg-info")]
        yield from (Path(directory, name) for name in files if Path(name).suffix in _READ or name == "Makefile")


def pages() -> list[Path]:
    """All pages: those in docs/, and those that stand beside the README."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def links(page: Path) -> list[tuple[Path, str]]:
    """(file, anchor or "") of each relative link."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    return [
        ((page.parent / (found["path"] or page.name)).resolve(), found["anchor"] or "")
        for found in _LINK.finditer(text)
        if "://" not in found["path"] and not found["path"].startswith("mailto:")
    ]


@cache
def rooms() -> frozenset[str]:
    """The directories at the top."""
    return frozenset(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))


def named_paths(text: str) -> list[str]:
    """What a text names as a file or directory of this repository: in backquotes, and beginning with a room."""
    found = re.findall(r"`([a-z_]+/[\w./-]*)(?:::[^`]*)?`", text)
    return [path for path in found if path.split("/")[0] in rooms()]


def anchors(page: Path) -> set[str]:
    """What can stand after # in a link to this page, as GitHub makes it of the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def reachable(start: Path) -> set[Path]:
    """The pages that one gets to from `start` by links."""
    found, todo = set[Path](), [start.resolve()]
    while todo:
        page = todo.pop()
        if page in found or page.suffix != ".md" or not page.is_file():
            continue
        found.add(page)
        todo += [target for target, _ in links(page)]
    return found
