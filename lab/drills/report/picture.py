"""`timeline.svg`: the recovery as a picture, drawn by hand so that it needs nothing to be looked at.

A lane a process, from the client at the top to the engines below. An engine's lane is coloured by its status; the
Controller's by the phase of the round; the Coordinator's shows when it had somebody to route to. Marks are single
events; the mouse over anything tells what it is and when. The strip at the bottom splits the time of the round.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from domain.model import Strict
from lab.drills.outcome import STAGE_MEANINGS, STAGES

_LEFT: Final = 150
_WIDTH: Final = 1000
_RIGHT: Final = 30
_TOP: Final = 78
_LANE: Final = 34
_BAR: Final = 16

COLOURS: Final = {
    "healthy": "#7cb98b",
    "unhealthy": "#e6b450",
    "recovering": "#6aa6d8",
    "dead": "#c8553d",
    "failed": "#8d2f23",
    "unknown": "#b9b9b9",
    "retired": "#8a8a8a",
    "published": "#7cb98b",
    "withdrawn": "#e9e4da",
    "ready": "#7cb98b",
    "NotReady": "#e9e4da",
    "stopped": "#c8553d",
    "NORMAL": "#7cb98b",
    "SCALED_DOWN_RUNNING": "#4f9a6b",
    "DECIDING": "#f0d58a",
    "WAITING_ENGINE_FAULT": "#e6b450",
    "SCALING_DOWN": "#6aa6d8",
    "POST_SCALE_CLEANUP": "#9a8fcf",
    "RECONFIGURING": "#c8553d",
    "ok": "#7cb98b",
    "failed requests": "#c8553d",
}
_OTHER: Final = "#9aa5b1"
_STAGE_COLOURS: Final = (
    "#c9c2b4",
    "#f0d58a",
    "#e6b450",
    "#d99a5b",
    "#b9765a",
    "#8fb7dd",
    "#4f86b8",
    "#a7b6c2",
    "#7cb98b",
    "#9a8fcf",
    "#4f9a6b",
)


class Span(Strict):
    """A stretch of a lane, `begin` to `end` in seconds since the injection. `label` is its colour's name and its tooltip."""

    begin: float
    end: float
    label: str
    detail: str = ""


class Tick(Strict):
    """One event in a lane."""

    at: float
    label: str
    tall: bool = False


class Lane(Strict):
    """One process."""

    name: str
    spans: tuple[Span, ...] = ()
    ticks: tuple[Tick, ...] = ()


class Picture(Strict):
    """What `draw` needs. `begin`, `end`: the visible time; `injections`: what was done when; seconds since the first."""

    title: str
    subtitle: str
    begin: float
    end: float
    lanes: tuple[Lane, ...]
    injections: tuple[Tick, ...] = ()
    stages: dict[str, float] = {}


def draw(picture: Picture) -> str:
    """The SVG text."""
    height = _TOP + _LANE * len(picture.lanes) + 120
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {height}" '
        'font-family="ui-sans-serif, system-ui, sans-serif" font-size="12" fill="#2b2b2b">',
        f'<rect width="100%" height="{height}" fill="#fdfcf9"/>',
        f'<text x="16" y="28" font-size="17" font-weight="600">{escape(picture.title)}</text>',
        f'<text x="16" y="48" fill="#6b6b6b">{escape(picture.subtitle)}</text>',
    ]
    bottom = _TOP + _LANE * len(picture.lanes)
    parts += _axis(picture, bottom)
    for index, lane in enumerate(picture.lanes):
        parts += _lane(picture, lane, _TOP + _LANE * index)
    parts += _injections(picture, bottom)
    parts += _stage_strip(picture, bottom + 44)
    return "\n".join([*parts, "</svg>", ""])


def write_picture(path: Path, picture: Picture) -> None:
    path.write_text(draw(picture), encoding="utf-8")


def _x(picture: Picture, at: float) -> float:
    share = (at - picture.begin) / max(1e-9, picture.end - picture.begin)
    return round(_LEFT + _WIDTH * min(1.0, max(0.0, share)), 2)


def tick_step(duration_sec: float) -> float:
    """The distance of the axis's ticks: 1, 2 or 5 times a power of ten, at most twelve of them."""
    step = 0.1
    for factor in (2, 2.5, 2) * 6:
        if duration_sec / step <= 12:
            break
        step *= factor
    return step


def _axis(picture: Picture, bottom: float) -> Iterable[str]:
    step = tick_step(picture.end - picture.begin)
    number = int(picture.begin // step)
    while (at := number * step) <= picture.end:
        if at >= picture.begin:
            x = _x(picture, at)
            yield f'<line x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{bottom}" stroke="#ece7dc"/>'
            yield f'<text x="{x}" y="{bottom + 16}" text-anchor="middle" fill="#8a8a8a" font-size="11">{at:g} s</text>'
        number += 1


def _lane(picture: Picture, lane: Lane, top: float) -> Iterable[str]:
    middle = top + _LANE / 2
    yield f'<text x="{_LEFT - 12}" y="{middle + 4}" text-anchor="end">{escape(lane.name)}</text>'
    yield f'<line x1="{_LEFT}" y1="{middle}" x2="{_LEFT + _WIDTH}" y2="{middle}" stroke="#e2ddd2"/>'
    for span in lane.spans:
        if span.end < picture.begin or span.begin > picture.end:
            continue
        left, right = _x(picture, span.begin), _x(picture, span.end)
        told = f"{span.label}{': ' + span.detail if span.detail else ''}, {span.begin:.2f}–{span.end:.2f} s"
        colour = COLOURS.get(span.label, _OTHER)
        yield (
            f'<rect x="{left}" y="{middle - _BAR / 2}" width="{max(1.5, right - left):.2f}" height="{_BAR}" rx="2" '
            f'fill="{colour}"><title>{escape(told)}</title></rect>'
        )
        if right - left > 7 * len(span.label) + 8:
            yield (
                f'<text x="{left + 5}" y="{middle + 4}" font-size="10.5" fill="#2b2b2b" pointer-events="none">'
                f"{escape(span.label)}</text>"
            )
    for tick in lane.ticks:
        if picture.begin <= tick.at <= picture.end:
            x, reach = _x(picture, tick.at), (_LANE / 2 if tick.tall else _BAR / 2 + 2)
            title = f"<title>{escape(tick.label)}, {tick.at:.3f} s</title>"
            yield (
                f'<g>{title}<line x1="{x}" y1="{middle - reach}" x2="{x}" y2="{middle + reach}" stroke="#2b2b2b" '
                f'stroke-width="1.4"/><circle cx="{x}" cy="{middle - reach}" r="2.6" fill="#2b2b2b"/></g>'
            )


def _injections(picture: Picture, bottom: float) -> Iterable[str]:
    for number, injection in enumerate(picture.injections):
        x = _x(picture, injection.at)
        dash = 'stroke="#c8553d" stroke-width="1.5" stroke-dasharray="4 3"'
        title = f"<title>{escape(injection.label)}, {injection.at:.3f} s</title>"
        yield f'<line x1="{x}" y1="{_TOP - 14}" x2="{x}" y2="{bottom}" {dash}>{title}</line>'
        word = "injection" if number == 0 else f"{number + 1}"
        yield f'<text x="{x + 4}" y="{_TOP - 8}" fill="#c8553d" font-size="11">{word}{title}</text>'


def _stage_strip(picture: Picture, top: float) -> Iterable[str]:
    """Where the round's time went, on a scale of its own: the engines' waiting would hide all the rest."""
    shown = [(name, picture.stages[name]) for name in STAGES if picture.stages.get(name, 0.0) > 0 and name != "detect"]
    total = sum(seconds for _, seconds in shown)
    if not total:
        return
    yield f'<text x="{_LEFT - 12}" y="{top + 15}" text-anchor="end">the round</text>'
    left = float(_LEFT)
    for name, seconds in shown:
        width = _WIDTH * seconds / total
        colour = _STAGE_COLOURS[STAGES.index(name)]
        told = f"{name} {seconds * 1000:.0f} ms: {STAGE_MEANINGS[name]}"
        yield (
            f'<rect x="{left:.2f}" y="{top}" width="{max(1.0, width):.2f}" height="22" fill={quoteattr(colour)} '
            f'stroke="#fdfcf9"><title>{escape(told)}</title></rect>'
        )
        left += width
    yield from _legend(shown, top + 40)


def _legend(shown: Sequence[tuple[str, float]], top: float) -> Iterable[str]:
    left = float(_LEFT)
    for name, seconds in shown:
        text = f"{name} {seconds * 1000:.0f} ms"
        yield f'<rect x="{left}" y="{top - 9}" width="10" height="10" fill="{_STAGE_COLOURS[STAGES.index(name)]}"/>'
        yield f'<text x="{left + 14}" y="{top}" font-size="11">{escape(text)}</text>'
        left += 26 + 6.2 * len(text)
        if left > _LEFT + _WIDTH - 120:
            left, top = float(_LEFT), top + 18
