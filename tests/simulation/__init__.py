"""A seeded world in which `run_round` lives through thousands of bad days in seconds (design §2).

The world has no real time and no real I/O: an event loop whose clock jumps to the next timer (`clock`), engines that behave as
contracts §1 says (`engines`), NodeManagers with a journal that survives their crashes (`node_managers`), Coordinators with
revisions (`coordinators`), a network that loses, repeats, delays and reorders (`network`), and ports that retry as the
activities must (`ports`). `world` puts them together and plays one seed; `judge` says what must hold afterwards.

One seed is one world: the same seed gives the same timeline, to the last event. Replay one with
`python -m tests.simulation --seed N --verbose`.
"""
