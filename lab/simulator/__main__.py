"""``python -m lab.simulator``: one simulated rank."""

from __future__ import annotations

import asyncio
import sys

from lab.simulator.options import parse


def main() -> None:
    """Entry point."""
    options = parse()
    from lab.simulator.api_server import serve  # after --help and refusals, which need no server

    sys.exit(asyncio.run(serve(options)))


if __name__ == "__main__":
    main()
