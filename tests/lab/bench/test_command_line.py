"""The benchmark's command line: what cannot be measured is refused before anything starts."""

import pytest

from lab.bench import __main__ as command


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def starts(*_: object) -> None:
        raise AssertionError("it starts")

    for name in ("bench_rounds", "bench_idle", "bench_heartbeats"):
        monkeypatch.setattr(command, name, starts)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rounds --poll 0", "argument --poll: '0' is no time in seconds"),
        ("rounds --poll 0.001", "argument --poll: '0.001' is not within 0.02..60 s"),
        ("idle --poll nan", "argument --poll: 'nan' is no time in seconds"),
        ("rounds --rounds 0", "argument --rounds: '0' is not a whole number above 0"),
        ("rounds --ranks -8", "argument --ranks: '-8' is not a whole number above 0"),
        ("rounds --node-managers 0", "argument --node-managers: '0' is not a whole number above 0"),
        ("idle --instances 0", "argument --instances: '0' is not a whole number above 0"),
        ("idle --seconds -1", "argument --seconds: '-1' is no time in seconds"),
        ("idle --seconds inf", "argument --seconds: 'inf' is no time in seconds"),
        ("heartbeats --ranks-per-pod many", "argument --ranks-per-pod: 'many' is not a whole number above 0"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(line.split())
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rounds --ranks 1 --node-managers 1", "--ranks 1: one rank has no survivors"),
        ("rounds --ranks 8 --node-managers 3", "8 ranks cannot be spread evenly over 3 NodeManagers"),
        ("rounds --instances 2", "more than one instance needs --light"),
        ("heartbeats --seconds 0.5", "--seconds 0.5: a heartbeat comes once a second"),
    ],
)
def test_shapes_that_cannot_be_are_refused_in_one_line(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(line.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"autotomy bench: {words}")
    assert said.count("\n") == 1
