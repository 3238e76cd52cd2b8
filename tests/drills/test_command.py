"""The command line: what there is, and what is refused with which words."""

from pathlib import Path

import pytest

from drills.__main__ import main
from drills.registry import all_drills
from drills.restart import PAIRS, PLACES, Point, Unknown, Victim, cells, find_cell
from drills.restart_run import chains, restart_drill


def test_list_names_every_drill_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    for name in ("soft-rank", "soft-rank0", "consecutive", "multi-rank", "pod-partial", "pod-empty", "soft-idle", "restart"):
        assert f"\n{name} " in "\n" + out


def test_restart_list_has_a_line_a_cell_with_its_expected_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restart", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    in_place = [line for line in lines if line.endswith("in place, one apply per engine")]
    told_unknown = [line.split()[:4] for line in lines if line.lstrip().startswith("--") and "reason APPLY_UNKNOWN" in line]
    unknown = [words for words in told_unknown if words[1] in set(Victim)]
    assert unknown == [
        ["--kill", "survivors-node-manager", "--at", "mid-apply"],
        ["--kill", "worker+node-manager", "--at", "mid-apply"],
    ]
    assert len(in_place) + len(unknown) == len(list(cells())) == (len(Victim) + len(Victim) - len(PAIRS)) * len(Point)
    assert any(line.split()[:4] == ["--stop", "worker", "--at", "commit-point"] for line in in_place)
    assert {line.split()[0] for line in lines if "rebuilt, reason" in line and not line.lstrip().startswith("--")} == set(Unknown)


def test_every_cell_of_the_table_is_run_once_in_chains_of_its_own_kind() -> None:
    groups = list(chains(list(cells())))
    assert sorted(str(cell) for group in groups for cell in group) == sorted(map(str, cells()))
    assert all(len({(cell.how, cell.workers) for cell in group}) == 1 for group in groups)
    assert all(len(group) == 1 for group in groups if group[0].outcome_unknown)
    for group in groups:
        drill = restart_drill(*group)
        assert drill.expected.killed + drill.expected.stopped >= len(group)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["soft-tank"], "autotomy drill: no drill is called 'soft-tank' (did you mean 'soft-rank'?); there are: soft-rank"),
        (["nosuch"], "no drill is called 'nosuch'; there are: soft-rank"),
        (["nosuch"], "supervisor-table"),
        (["restart", "--kill", "everything"], "--kill 'everything': choose one of worker"),
        (["restart", "--at", "dawn"], "--at 'dawn': choose one of before-guard"),
    ],
)
def test_unknown_word_is_refused_with_those_that_there_are(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_nothing_asked_for_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


def test_every_drill_shortens_timers_openly_and_has_scale_down_on_unless_it_is_about_that() -> None:
    for drill in all_drills().values():
        assert drill.spec.non_default_timers()
        assert drill.spec.effective_config().enable_dp_scale_down is not drill.expected.feature_off


def test_restart_drill_stops_the_worker_where_its_cell_says() -> None:
    drill = restart_drill(find_cell("worker", "commit-point"))
    assert "worker.finalize.before" in drill.failpoints["worker"]
    assert drill.expected.losses == ((1,),)
    assert restart_drill(find_cell("one-of-two-workers", "after-202")).spec.workers == 2


def test_every_point_of_the_table_is_a_failpoint_that_some_process_has() -> None:
    root = Path(__file__).parents[2]
    sources = "\n".join(
        path.read_text(encoding="utf-8") for part in ("activities", "node_manager") for path in (root / part).glob("*.py")
    )
    for place in PLACES.values():
        owner, name = place.failpoint.split(".", 1)
        wanted = f'"{name.rpartition(".")[0]}"' if owner == "worker" else f'"{place.failpoint}"'
        assert wanted in sources, place.failpoint
