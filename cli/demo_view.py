"""The demo as it goes on: one picture that changes on a terminal, one line an event elsewhere.

It shows what the drill's events say (`lab.drills.record.events`) and nothing else: ranks as their engines report them,
the view as the Coordinator has it, requests as the client counted them.
"""

import time
from collections import deque
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lab.drills.record.events import DrillEvent, DrillEventKind, in_words

_HISTORY_SEC: Final = 40
_SAID_LINES: Final = 7
_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLOURS: Final = {
    "healthy": "green",
    "unhealthy": "yellow",
    "recovering": "cyan",
    "dead": "red",
    "retired": "red",
    "unknown": "magenta",
}


class DemoView(Protocol):
    """Shows events while its context lasts."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def __call__(self, event: DrillEvent) -> None: ...


def view_for(console: Console, ranks: tuple[int, ...]) -> DemoView:
    """The view that fits where it is shown."""
    return LiveView(console, ranks) if console.is_terminal else PlainView(console)


class PlainView:
    """A line an event; requests once a second while something goes wrong, else every five."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_at = time.monotonic()
        self._seconds_unsaid = [0, 0, 0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._flush_requests()

    def __call__(self, event: DrillEvent) -> None:
        if event.kind is DrillEventKind.REQUESTS:
            self._count(event)
        elif _worth_a_line(event):
            self._flush_requests()
            self._say(in_words(event))

    def _count(self, event: DrillEvent) -> None:
        seconds, ok, failed = self._seconds_unsaid
        self._seconds_unsaid = [seconds + 1, ok + event.ok, failed + event.failed]
        if event.failed or seconds + 1 >= 5:
            self._flush_requests()

    def _flush_requests(self) -> None:
        seconds, ok, failed = self._seconds_unsaid
        self._seconds_unsaid = [0, 0, 0]
        if ok or failed:
            self._say(f"requests: {ok} ok, {failed} failed in {seconds} s")

    def _say(self, words: str) -> None:
        self._console.print(f"{time.monotonic() - self._began_at:5.1f} s  {words}", markup=False)


class LiveView:
    """One picture: phase, ranks, requests a second, and the last things that were said."""

    def __init__(self, console: Console, ranks: tuple[int, ...]) -> None:
        self._began_at = time.monotonic()
        self._status = dict.fromkeys(ranks, "starting")
        self._served: frozenset[int] = frozenset()
        self._phase = "-"
        self._web_ui = ""
        self._requests: deque[tuple[int, int]] = deque(maxlen=_HISTORY_SEC)
        self._totals = [0, 0]
        self._said: deque[str] = deque(maxlen=_SAID_LINES)
        self._live = Live(console=console, get_renderable=self._picture, refresh_per_second=8, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, event: DrillEvent) -> None:
        match event.kind:
            case DrillEventKind.REQUESTS:
                self._requests.append((event.ok, event.failed))
                self._totals = [self._totals[0] + event.ok, self._totals[1] + event.failed]
            case DrillEventKind.PHASE:
                self._phase = event.text
            case DrillEventKind.RANK:
                self._status |= dict.fromkeys(event.ranks, event.text)
            case DrillEventKind.VIEW:
                self._served = frozenset(event.ranks)
            case DrillEventKind.READY:
                self._web_ui = event.text
        if event.kind is not DrillEventKind.REQUESTS and _worth_a_line(event):
            self._said.append(f"{time.monotonic() - self._began_at:5.1f} s  {in_words(event)}")

    def _picture(self) -> RenderableType:
        head = Text.assemble(("phase ", "dim"), (self._phase, "bold"), ("   Web UI ", "dim"), self._web_ui or "not yet")
        return Panel(
            Group(head, self._ranks(), self._request_lines(), Text("\n".join(self._said), style="dim", no_wrap=True)),
            title="Autotomy: a rank dies, the others keep serving (simulated engines)",
            border_style="blue",
        )

    def _ranks(self) -> Table:
        table = Table(box=None, padding=(0, 3, 0, 0))
        for rank in self._status:
            table.add_column(f"rank {rank}")
        table.add_row(*(Text(status, style=_COLOURS.get(status, "dim")) for status in self._status.values()))
        served = (Text("serves", "green") if rank in self._served else Text("no requests", "dim") for rank in self._status)
        table.add_row(*served)
        return table

    def _request_lines(self) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        for index, (name, colour) in enumerate((("ok", "green"), ("failed", "red"))):
            values = [second[index] for second in self._requests]
            bars = "".join(_bar(value, max(10, *values)) for value in values)
            table.add_row(
                f"{name}/s", Text(f"{values[-1] if values else 0:>3}"), Text(bars, style=colour), f"{self._totals[index]} in all"
            )
        return table


def _worth_a_line(event: DrillEvent) -> bool:
    """Checks only where they fail (the table at the end counts them), processes only once they answer."""
    match event.kind:
        case DrillEventKind.CHECK:
            return event.failed > 0
        case DrillEventKind.STACK:
            return not event.text.endswith((" started", "planned", "ready"))
        case _:
            return True


def _bar(value: int, highest: int) -> str:
    return _BARS[-(-value * (len(_BARS) - 1) // highest)]
