"""Side effects, one module a peer. Workflows import these definitions, nothing else of them.

An activity takes one message and gives one; refusals come back in the result, because they are what a round decides on.
What is raised says whether Temporal may try again (`errors`). How an attempt knows its time, its past and its end is in
`attempt`; how a peer is asked over HTTP in `peer`.
"""
