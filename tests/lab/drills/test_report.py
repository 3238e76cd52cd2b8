"""The bundle tells one story to programs and to people."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from domain.errors import ConfigError
from lab.drills.judge.every_drill import judge
from lab.drills.outcome import DrillReport, Figures, Finding
from lab.drills.record import bundle
from lab.drills.record.figures import count_requests, round_figures, stage_seconds
from lab.drills.record.timeline import Timeline
from lab.drills.report.lanes import Change, picture_of, spans
from lab.drills.report.page import write_report
from lab.drills.report.picture import Span, tick_step, write_picture
from lab.stack.run_dir import RunDir
from tests.lab.drills.recorded import SURVIVORS, drill, evidence


def report(**changes: object) -> DrillReport:
    found = evidence()
    (episode,) = found.episodes
    whole = DrillReport(
        drill="soft-rank",
        summary="Rank 1 dies.",
        passed=True,
        checks=judge(drill(), found),
        figures=Figures(
            applies_per_engine={"0": 1, "2": 1, "3": 1},
            dead_committed=(1,),
            published_ranks=SURVIVORS,
            control_plane_sec=episode.control_plane_sec,
            stage_sec=stage_seconds(episode),
            requests=count_requests(found.requests, found.windows),
            non_default_timers={"engine.detection_sec": 2.0},
        ),
        rounds=(round_figures(episode, 100.0),),
        bundle="here",
    )
    return whole.model_copy(update=changes)


def test_last_line_has_the_contract_s_shape() -> None:
    line = report().last_line()
    assert "\n" not in line
    told = json.loads(line)
    assert set(told) == {"drill", "passed", "checks", "figures", "bundle"}
    assert set(told["checks"][0]) == {"name", "ok", "observations", "detail"}
    assert told["figures"]["applies_per_engine"] == {"0": 1, "2": 1, "3": 1}
    assert told["figures"]["requests"]["after"] == {"ok": 3, "failed": 0}
    assert told["figures"]["orphans"] == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, 0), ({"passed": False}, 1), ({"passed": False, "could_run": False, "failure": "the port is taken"}, 2)],
)
def test_exit_code(changes: dict[str, object], code: int) -> None:
    assert report(**changes).exit_code == code


def test_report_for_people_begins_with_the_answer_and_names_what_is_wrong(tmp_path: Path) -> None:
    failed = Finding(name="one apply per engine", ok=False, observations=4, detail="engine 2 was called twice")
    write_report(tmp_path, report(passed=False, checks=(failed,)))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# Drill soft-rank: FAILED")
    assert "engine 2 was called twice" in text
    assert "| engine_recovery | 890 ms |" in text
    assert "`engine.detection_sec`" in text
    assert DrillReport.model_validate_json((tmp_path / "report.json").read_bytes()).checks == (failed,)


def test_how_late_a_round_was_stands_in_both_reports(tmp_path: Path) -> None:
    late = {"--kill one-of-two-workers --at after-guard": 3.8912}
    write_report(tmp_path, report(figures=report().figures.model_copy(update={"late_sec": late})))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "- `--kill one-of-two-workers --at after-guard`: the round's next step began 3.89 s later" in text
    assert DrillReport.model_validate_json((tmp_path / "report.json").read_bytes()).figures.late_sec == late


def test_picture_is_well_formed_and_shows_every_process(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(99.0, "controller", "phase", "NORMAL")
    timeline.add(102.5, "controller", "phase", "SCALING_DOWN")
    write_picture(tmp_path / "timeline.svg", picture_of("soft-rank", "PASSED", evidence(), timeline, 100.0))
    root = ElementTree.parse(tmp_path / "timeline.svg").getroot()
    words = {element.text for element in root.iter() if element.text}
    assert {"client", "controller", "coordinator-0", "node-manager-0", "engine 1"} <= words
    assert any("apply scale_down remove [1]" in word for word in words)
    assert any(word.startswith("verify 60 ms") for word in words)


def test_states_follow_each_other_without_gap() -> None:
    changes = [Change(at=2.0, label="dead"), Change(at=0.0, label="healthy")]
    assert spans(changes, end=5.0) == (
        Span(begin=0.0, end=2.0, label="healthy"),
        Span(begin=2.0, end=5.0, label="dead"),
    )


@pytest.mark.parametrize(("duration", "step"), [(0.9, 0.1), (10.0, 1.0), (23.0, 2.0), (55.0, 5.0), (110.0, 10.0)])
def test_axis_has_round_steps(duration: float, step: float) -> None:
    assert tick_step(duration) == pytest.approx(step)


def test_evidence_files_have_a_line_an_event_in_seconds_since_the_injection(tmp_path: Path) -> None:
    bundle.write_evidence(tmp_path, evidence(), zero=100.0)
    applies = [json.loads(line) for line in (tmp_path / "applies.jsonl").read_text().splitlines()]
    assert [(line["t"], line["engine"], line["removed_dp_ranks"], line["http"]) for line in applies] == [
        (3.0, rank, [1], 202) for rank in SURVIVORS
    ]
    views = [json.loads(line) for line in (tmp_path / "views.jsonl").read_text().splitlines()]
    assert [(line["event"], line["ranks"]) for line in views][-2:] == [("del", []), ("add", [0, 2, 3])]
    requests = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert requests[0]["t"] == -5.0
    assert sum(not line["ok"] for line in requests) == 2


def test_bundle_directory_with_other_files_is_refused_and_an_earlier_bundle_replaced(tmp_path: Path) -> None:
    first = bundle.prepare(tmp_path / "out")
    (first / "report.json").write_text("{}", encoding="utf-8")
    assert sorted(path.name for path in bundle.prepare(first).iterdir()) == ["histories", "logs"]
    (first / "thesis.doc").write_text("years of work", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds other files"):
        bundle.prepare(first)


def test_bundle_keeps_every_log_and_the_supervisor_s_account_of_the_processes(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    run.log_file("api").write_text("listening\n", encoding="utf-8")
    run.events_file.write_text('{"event":"exited"}\n', encoding="utf-8")
    out = bundle.prepare(tmp_path / "out")
    bundle.copy_logs(run, out)
    assert {"api.log", "events.jsonl"} <= {path.name for path in (out / "logs").iterdir()}
