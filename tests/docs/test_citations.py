"""What is cited exists: sections, rules, steps, scenarios, invariants, pages and links; and ▲ is explained."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.citations import ROOT, Law, the_law, wrong_citations
from tests.docs.pages import anchors, links, named_paths, pages, reachable, sources

S = "\N{SECTION SIGN}"  # written so that the planted ones below are not read as this file's own citations
DEPARTS = "\N{BLACK UP-POINTING TRIANGLE}"
OF_THE_PAST = {"CHANGELOG.md", "track-record.md"}
"""They may name what is not there any more."""

HOMES = {"design.md": "design", "contracts.md": "contracts", "rfc.md": "RFC"}

SMALL_LAW = Law(
    sections={"design": frozenset({"3", "4"}), "contracts": frozenset({"1", "2"}), "RFC": frozenset({"4.2", "5"})},
    items={("design", "3"): frozenset({1, 2}), ("contracts", "1"): frozenset({5}), ("RFC", "5"): frozenset({4})},
    parts=frozenset("AD"),
    drills=frozenset({"soft-idle", "soft-rank"}),
    cases=frozenset({19}),
    invariants=frozenset({1, 17}),
)


@pytest.fixture(scope="module")
def law() -> Law:
    return the_law()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_everything_that_is_cited_is_there(law: Law) -> None:
    judged = {path: wrong_citations(path.read_text(encoding="utf-8"), law, HOMES.get(path.name)) for path in sources()}
    assert {name_of(path): wrong for path, wrong in judged.items() if wrong} == {}


@pytest.mark.parametrize(
    "text",
    [
        f"as design {S}3, rule 2 says",
        f"(design {S}3; RFC {S}5, step 4)",
        f"(contracts {S}1, {S}2; RFC {S}4.2)",
        f"# in one comment: contracts\n    # {S}2, and so on",
        f"contracts {S}1, 5",
        f"design {S}3's and {S}4's",
        f"within (design {S}3) 10 s",
        "(acceptance A, soft-*)",
        "(acceptance A, soft-idle and soft-rank)",
        "acceptance D, 19; acceptance D 19; acceptance D19",
        "the only acceptance of a command",
        f"I{1} and I{17}, as far as PCI3 goes",
    ],
)
def test_what_is_there_may_be_cited(text: str) -> None:
    assert wrong_citations(text, SMALL_LAW) == []


@pytest.mark.parametrize(
    "text",
    [
        f"design {S}9",
        f"Design {S}9, step 7",
        f"design {S}3, rule 6",
        f"design {S}3, rules 1 and 6",
        f"design {S}3, {S}8",
        f"contracts\n{S}7",
        f"contracts {S}1, 6",
        f"RFC {S}4.1",
        f"RFC {S}5, step 5",
        f"see {S}3",
        f"acceptance {'Z'}, 1",
        f"acceptance D, {20}",
        "(acceptance A, soft-" + "nothing)",
        f"broken: I{18}",
    ],
)
def test_what_is_not_there_is_noticed(text: str) -> None:
    assert len(wrong_citations(text, SMALL_LAW)) == 1


def test_on_its_own_page_a_section_needs_no_name() -> None:
    assert wrong_citations(f"as {S}4 says", SMALL_LAW, "design") == []
    assert len(wrong_citations(f"as {S}7 says", SMALL_LAW, "design")) == 1


def test_the_pages_have_what_code_cites_most(law: Law) -> None:
    """Were a heading written in another way, everything could be cited and nothing would be found wrong."""
    assert law.sections["design"] == {str(number) for number in range(1, 8)}
    assert law.sections["contracts"] == {str(number) for number in range(1, 9)}
    assert law.items["design", "3"] == set(range(1, 12))
    assert law.items["design", "4"] == set(range(1, 12))
    assert law.items["contracts", "1"] == set(range(1, 11))
    assert law.items["RFC", "5"] == set(range(1, 9))
    assert law.parts == set("ABCD")
    assert law.invariants == set(range(1, 18))


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)}: {target.name} has no heading for #{anchor}"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_page_is_found_from_the_readme(page: Path) -> None:
    assert page.resolve() in reachable(ROOT / "README.md")


@pytest.mark.parametrize("page", [page for page in pages() if page.name not in OF_THE_PAST], ids=name_of)
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    assert [path for path in named_paths(page.read_text(encoding="utf-8")) if not (ROOT / path).exists()] == []


def test_a_path_that_is_not_there_is_noticed() -> None:
    assert named_paths("`domain/` `tests/no_such.py::test_x` `a/b` `report/report.md` domain/x.py") == [
        "domain/",
        "tests/no_such.py",
    ]


def test_a_link_to_nowhere_and_a_page_that_nobody_links_are_noticed(tmp_path: Path) -> None:
    start, other, lonely = (tmp_path / name for name in ("start.md", "other.md", "lonely.md"))
    start.write_text("[a](other.md#its-heading) [b](gone.md) `[c](code.md)` [d](https://example.org)", encoding="utf-8")
    other.write_text("# Its heading\n[back](start.md)", encoding="utf-8")
    lonely.write_text("nothing", encoding="utf-8")
    assert [target.name for target, _ in links(start) if not target.exists()] == ["gone.md"]
    assert anchors(other) == {"its-heading"}
    assert reachable(start) == {start.resolve(), other.resolve()}


def test_the_mark_of_a_departure_is_explained_where_it_is_used() -> None:
    assert any(DEPARTS in path.read_text(encoding="utf-8") for path in sources() if path.suffix == ".py")
    assert f"**{DEPARTS}** marks" in (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def test_every_setting_that_departs_from_the_rfc_is_in_the_list_of_departures() -> None:
    page = (ROOT / "docs" / "rfc.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(\w+)`", page.split(f"## Where we depart {DEPARTS}")[1]))
    marked = set(marked_settings((ROOT / "domain" / "config.py").read_text(encoding="utf-8")))
    assert marked
    assert marked <= listed


def marked_settings(source: str) -> list[str]:
    """The fields whose docstring carries the mark."""
    classes = [node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    pairs = [pair for body in classes for pair in pairwise(body)]
    return [
        before.target.id
        for before, after in pairs
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and DEPARTS in str(after.value.value)
    ]


def test_every_make_target_that_a_page_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in pages():
        named = set(re.findall(r"`make ([a-z-]+)`", page.read_text(encoding="utf-8")))
        assert named <= targets, f"{name_of(page)}: {sorted(named - targets)}"
