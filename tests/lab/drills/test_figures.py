"""Times and counts come from what was seen outside; the Controller only splits its own share."""

import pytest

from lab.drills.outcome import STAGES, RequestCount
from lab.drills.record.figures import Episode, count_requests, median, round_figures, stage_seconds
from tests.lab.drills.recorded import ROUND, SURVIVORS, evidence, request


def test_our_share_is_last_evidence_to_published_less_the_engines_own_work() -> None:
    (episode,) = evidence().episodes
    assert episode.evidence_at == 102.1
    assert episode.published_at == 104.2
    assert episode.engine_recovery_sec == pytest.approx(0.89)
    assert episode.control_plane_sec == pytest.approx(104.2 - 102.1 - 0.89)


def test_every_stage_has_its_time_and_together_they_are_the_whole_way() -> None:
    (episode,) = evidence().episodes
    stages = stage_seconds(episode)
    assert set(stages) == set(STAGES)
    told_apply = stages["apply"]  # the engines begin to recover while the last of them still answers
    assert sum(stages.values()) - told_apply == pytest.approx(104.2 - 100.0, abs=0.05)
    assert stages["detect"] == pytest.approx(2.1)
    assert stages["decide"] == pytest.approx(103.0 - 102.1 - 0.35)


def test_episode_that_came_to_nothing_has_no_share_and_only_the_stages_it_reached() -> None:
    episode = Episode(injected_at=100.0, evidence_at=100.5)
    assert episode.control_plane_sec is None
    assert stage_seconds(episode) == {"detect": 0.5}


def test_round_in_the_report_counts_from_the_injection() -> None:
    (episode,) = evidence().episodes
    told = round_figures(episode, zero=100.0)
    assert (told.request_id, told.engines, told.injected_at, told.published_at) == (ROUND, SURVIVORS, 0.0, 4.2)


@pytest.mark.parametrize(
    ("started_at", "window"),
    [
        (99.0, "before"),
        (99.95, "during"),
        (100.5, "during"),
        (104.3, "after"),
        (109.5, "after"),
        (119.95, "during"),
        (125.0, "after"),
    ],
)
def test_request_belongs_to_the_window_that_it_touches(started_at: float, window: str) -> None:
    windows = [(100.0, 104.0), (120.0, 124.0)]
    counted = count_requests([request(1, started_at, 0)], windows)
    assert getattr(counted, window) == RequestCount(ok=1)


def test_without_recovery_everything_after_the_injection_is_during() -> None:
    counted = count_requests([request(1, 500.0, 0, ok=False)], [(100.0, None)])
    assert counted.during == RequestCount(failed=1)


def test_median() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    with pytest.raises(ValueError, match="no values"):
        median([])
