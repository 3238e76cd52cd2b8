"""`python -m tests.simulation --seed N [--verbose]`: replays one world; `--count K` plays K of them from N on."""

import argparse
import sys
from collections import Counter

from tests.simulation.judge import judge
from tests.simulation.world import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print the whole timeline")
    options = parser.parse_args()
    reasons: Counter[str] = Counter()
    failed = 0
    for seed in range(options.seed, options.seed + options.count):
        played = play(seed)
        reasons.update(f"{r.report.outcome} {r.report.reason}" for r in played.rounds)
        if options.verbose:
            print(played.scenario)
            print(*played.timeline(), sep="\n")
        faults = judge(played)
        failed += bool(faults)
        for fault in faults:
            print(f"seed {seed}: {fault}")
    for reason, count in sorted(reasons.items()):
        print(f"{count:6d} {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
