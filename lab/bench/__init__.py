"""How fast a round is, and what an idle installation costs: `autotomy bench rounds`, `autotomy bench idle`.

The Controller that is measured is the real one: Temporal server, API, worker, Coordinator, started by `stack`. What is
faked are the engines (`light`): one process serves the FT API of all of them, so that large shapes fit on a small machine.
With `--light` that process serves the NodeManagers' API, too. Both speak the contract; neither knows how to flatter.
"""
