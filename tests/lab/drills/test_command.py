"""The command line: what there is, and what is refused with which words."""

import importlib
import json
from functools import partial
from pathlib import Path
from pkgutil import iter_modules

import pytest

from lab.drills import scenarios
from lab.drills.__main__ import main
from lab.drills.drill import Drill
from lab.drills.judge.every_drill import checks_of
from lab.drills.judge.processes import killed, stopped
from lab.drills.outcome import DrillReport
from lab.drills.registry import SCENARIOS, all_drills
from lab.drills.restart import whole_table
from lab.drills.restart.cell_drills import STOPPED_FOR_SEC, chains, restart_drill
from lab.drills.restart.cells import PAIRS, PLACES, PROCESSES, How, Point, Unknown, Victim, cells, find_cell
from lab.drills.restart.pod_cells import pod_cells
from lab.drills.restart.whole_table import RESULTS
from lab.drills.run import DrillOptions

EVERY_DRILL = f"there are: {', '.join(all_drills())}"


def test_list_names_every_drill_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    for name in ("soft-rank", "soft-rank0", "consecutive", "multi-rank", "pod-partial", "pod-empty", "soft-idle", "restart"):
        assert f"\n{name} " in "\n" + out


def test_every_module_of_scenarios_is_registered_and_no_two_drills_have_one_name() -> None:
    modules = {importlib.import_module(f"{scenarios.__name__}.{found.name}") for found in iter_modules(scenarios.__path__)}
    assert modules == set(SCENARIOS)
    assert len(all_drills()) == sum(len(module.DRILLS) for module in SCENARIOS) + 1, "and controller-restart"


def test_list_of_one_drill_says_everything_that_must_hold_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["feature-off", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    drill = all_drills()["feature-off"]
    assert lines[0] == drill.summary
    assert lines[2:-1] == [f"  {check}: {check.meaning}" for check in checks_of(drill)]
    assert "  no apply: No engine got any command." in lines
    assert lines[-1] == "  and the invariants I1–I17 but I4, I6, I8, I10, I11, which only the feature shows"
    assert main(["consecutive", "--list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["summary"]) == ("consecutive", all_drills()["consecutive"].summary)
    assert "removed set (losses [[1], [2]])" in {check["check"] for check in told["checks"]}
    assert main(["soft-tank", "--list"]) == 2
    assert "did you mean 'soft-rank'?" in capsys.readouterr().err


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
        hit = killed if group[0].how is How.KILL else partial(stopped, for_sec=STOPPED_FOR_SEC)
        assert hit(sum(len(PROCESSES[cell.victim]) for cell in group)) in drill.checks


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["soft-tank"], f"autotomy drill: no drill is called 'soft-tank' (did you mean 'soft-rank'?); {EVERY_DRILL}"),
        (["nosuch"], f"no drill is called 'nosuch'; {EVERY_DRILL}"),
        (["nosuch"], "supervisor-table"),
        (["restart", "--kill", "everything", "--at", "recovering"], "--kill 'everything': choose one of worker, "),
        (["restart", "--kill", "everything", "--at", "recovering"], "pod-of-survivor, pod-of-dead, new-pod-of-survivor"),
        (["restart", "--stop", "pod-of-dead", "--at", "recovering"], "--stop 'pod-of-dead': choose one of worker"),
        (["restart", "--kill", "worker", "--at", "dawn"], "--at 'dawn': choose one of before-guard"),
        (["restart", "--cell", "nosuch"], "--cell 'nosuch': choose one of outcome-unknown"),
    ],
)
def test_unknown_word_is_refused_with_those_that_there_are(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_table_of_no_cells_is_refused_before_it_touches_what_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / RESULTS
    results.write_text("")
    assert main(["restart", "--all", "--only", "nothing at all", "--out", str(tmp_path)]) == 2
    assert "--only 'nothing at all': no cell has that in its words" in capsys.readouterr().err
    assert results.exists()


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_the_whole_table_has_its_result_as_one_line_of_json(
    passed: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run_drill(drill: Drill, options: DrillOptions) -> DrillReport:
        return DrillReport(drill=drill.name, summary="", passed=passed, bundle=str(options.out))

    monkeypatch.setattr(whole_table, "run_drill", run_drill)
    assert main(["restart", "--all", "--only", "kill api --at", "--out", str(tmp_path), "--json"]) == code
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["drill"], found["passed"], found["passed_before"], found["bundle"]) == ("restart", passed, [], str(tmp_path))
    assert [cell["cell"] for cell in found["cells"]] == [f"--kill api --at {point}" for point in Point]
    assert {cell["passed"] for cell in found["cells"]} == {passed}
    assert "installations passed" in shown.err


def test_a_table_that_has_passed_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = str(find_cell("api", "recovering"))
    line = whole_table.CellResult(cell=cell, passed=True, chain="a").model_dump_json()
    (tmp_path / RESULTS).write_text(line + "\n")
    assert main(["restart", "--all", "--resume", "--only", cell, "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed_before"] == [cell]


def test_lists_are_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--json"]) == 0
    drills = json.loads(capsys.readouterr().out)["drills"]
    assert [drill["name"] for drill in drills] == [*all_drills(), "supervisor-table", "restart", "all"]
    assert all(drill["summary"] for drill in drills)
    assert main(["restart", "--list", "--json"]) == 0
    found = {cell["cell"]: cell["expected"] for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert found["--kill worker --at commit-point"] == "in place, one apply per engine"
    assert "--cell lease-taken" in found
    assert len(found) == len(list(cells())) + len(list(pod_cells())) + len(Unknown)


def test_nothing_asked_for_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


def test_every_drill_shortens_timers_openly_and_has_scale_down_on_unless_it_is_about_that() -> None:
    for drill in all_drills().values():
        assert drill.spec.non_default_timers()
        assert drill.can_scale_down is (drill.name != "feature-off")


def test_restart_drill_stops_the_worker_where_its_cell_says() -> None:
    drill = restart_drill(find_cell("worker", "commit-point"))
    assert "worker.finalize.before" in drill.failpoints["worker"]
    assert drill.end.losses == ((1,),)
    assert restart_drill(find_cell("one-of-two-workers", "after-202")).spec.workers == 2


def test_every_point_of_the_table_is_a_failpoint_that_some_process_has() -> None:
    root = Path(__file__).parents[3]
    sources = "\n".join(
        path.read_text(encoding="utf-8") for part in ("activities", "node_manager") for path in (root / part).glob("*.py")
    )
    for place in PLACES.values():
        owner, name = place.failpoint.split(".", 1)
        wanted = f'"{name.rpartition(".")[0]}"' if owner == "worker" else f'"{place.failpoint}"'
        assert wanted in sources, place.failpoint
