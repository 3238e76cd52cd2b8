"""What this Pod's engines can do for fault tolerance, read off their command line and dialect (contracts §1, §5).

The gate believes what is registered here, so only what is really there counts: a flag that the command does not have is a
capability that the engine does not have. Whether `scale_down` exists is a matter of the dialect of the engine's FT API:
`legacy`, which released vLLM speaks, has `retry` only. A file that does not say `ft_dialect` means `legacy`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from domain.engine import Dialect, FtCapability

_EXTERNAL_LB: Final = (
    "--data-parallel-rank",
    "-dpn",
    "--data-parallel-external-lb",
    "-dpe",
    "--data-parallel-multi-port-external-lb",
)
"""Any of these: every rank has an API server of its own, and somebody outside chooses among them."""

_INTERNAL_LB: Final = ("--data-parallel-hybrid-lb", "-dph")


def derived_capability(
    command: Sequence[str], *, dialect: Dialect, auto_recovery: bool, engine_recovery_timeout_sec: float
) -> FtCapability:
    """By an engine's command line. `auto_recovery`: whether engines recover by themselves, which no flag tells."""
    flags = CommandFlags(command)
    enabled = flags.on("--enable-fault-tolerance")
    return FtCapability(
        enabled=enabled,
        scale_down_supported=enabled and dialect is Dialect.V1,
        retry_supported=enabled,
        external_lb=any(flags.given(name) for name in _EXTERNAL_LB) and not any(flags.given(name) for name in _INTERNAL_LB),
        auto_recovery=auto_recovery,
        eplb_enabled=flags.on("--enable-eplb"),
        num_redundant_experts=flags.redundant_experts(),
        engine_recovery_timeout_sec=engine_recovery_timeout_sec,
        dialect=dialect,
    )


class CommandFlags:
    """A vLLM command line as its argparse reads it: `--name value`, `--name=value`, `--name`, `--no-name`; the last counts."""

    def __init__(self, command: Sequence[str]) -> None:
        self._values: dict[str, str | None] = {}
        for index, word in enumerate(command):
            if not word.startswith("-"):
                continue
            name, equals, value = word.partition("=")
            following = command[index + 1] if index + 1 < len(command) else None
            self._values.pop(name, None)
            self._values[name.replace("_", "-")] = value if equals else following

    def given(self, name: str) -> bool:
        return name in self._values

    def on(self, name: str) -> bool:
        """Whether a switch is on: given, and not taken back by its `--no-` form afterwards."""
        names = list(self._values)
        negative = name.replace("--", "--no-", 1)
        return name in names and (negative not in names or names.index(negative) < names.index(name))

    def redundant_experts(self) -> int:
        """From `--eplb-config '{"num_redundant_experts": 24}'`, its dotted form, or the flag that older releases have."""
        for name in ("--eplb-config.num-redundant-experts", "--num-redundant-experts"):
            if (count := _whole(self._values.get(name))) is not None:
                return count
        try:
            config = json.loads(self._values.get("--eplb-config") or "{}")
        except ValueError:
            return 0
        count = config.get("num_redundant_experts") if isinstance(config, Mapping) else None
        return count if isinstance(count, int) and not isinstance(count, bool) else 0


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
