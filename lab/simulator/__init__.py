"""A stand-in for one data-parallel rank of an expert-parallel vLLM instance.

It is **not** vLLM: no model, no accelerator. What is real is everything that recovery depends on: one API-server
process and one worker process per rank that can be killed or stopped, a group that steps together over sockets, a
rendezvous store on the lowest alive rank, and the fault-tolerance (FT) API in both dialects. Settings are plain flags
(``python -m lab.simulator --help``).

It imports nothing of the rest of this repository: the engine contract is implemented here a second time, on purpose,
so that a misreading on one side shows up as a disagreement instead of passing unseen.

======================  ================================================================================
``options``             the command line
``api_server``          the process that is started: port, worker, signals, exit
``engine``              what the API server knows of its engine: status cache, FT commands, requests
``ft_rules``            which FT commands are refused, and with which words (pure)
``http_app``            the routes; ``ft_routes`` and ``openai_routes`` hold their halves
``misbehaviour``        the documented knobs that make it break the contract
``event_log``           its own log, from which others judge what really happened
``worker``              the second process: member of the group, host of the store, maker of tokens
``group``               ranks step together; a missing contribution is a fault after the communication timeout
``store``               the rendezvous: complete only when every member arrived with the same words
``pipe``                messages between the two processes
======================  ================================================================================
"""
