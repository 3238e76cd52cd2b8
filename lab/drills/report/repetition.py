"""The same drill many times in a row: what every run must show, and where the time goes in the middle of them."""

from collections.abc import Sequence

from lab.drills.outcome import STAGES, DrillReport
from lab.drills.record.figures import median
from lab.drills.report.page import table


def shares(reports: Sequence[DrillReport]) -> list[float]:
    """control_plane_sec of the runs that have one."""
    return [report.figures.control_plane_sec for report in reports if report.figures.control_plane_sec is not None]


def where_the_time_goes(reports: Sequence[DrillReport]) -> str:
    """A Markdown table over all runs: median, least and most per stage, in milliseconds; last our share of it."""
    rows = [_row(stage, values) for stage in STAGES if (values := _of_stage(reports, stage))]
    if ours := shares(reports):
        rows.append(_row("**our share (control_plane_sec)**", ours))
    return table(("stage", "median ms", "least", "most"), rows)


def _of_stage(reports: Sequence[DrillReport], stage: str) -> list[float]:
    return [report.figures.stage_sec[stage] for report in reports if stage in report.figures.stage_sec]


def _row(name: str, values: Sequence[float]) -> tuple[str, str, str, str]:
    middle, least, most = (f"{1000 * value:.0f}" for value in (median(values), min(values), max(values)))
    return name, middle, least, most
