"""One per Pod: owns the Pod's engine processes, reports their faults, and carries a round's commands to them.

======================  ====================================================================================
``config``              its file: who it is, where the Controller is, how an engine is started
``fence``               which command may do what: pure rules over what the journal knows
``journal``             that knowledge, on disk before every effect
``transactions``        guard, apply, finalize: the rules carried out, each engine called at most once
``managed_engine``      one rank: its process tree, its client, what was last seen of it
``looks``           looks at engines: what is new gets a number and goes to the reporter
``poller``              a look at every engine, as often as it was told
``reporter``            news to the Controller until it has them
``heartbeat``           signs of life, and the committed ranks that come back with them
``registration``        tells the Controller who this Pod is
``capability``          what the engines can do, by their flags
``arbiter``             a Pod that stays broken ends itself
``daemon``              engines' lives: started, adopted after a restart, stopped
``node``                the parts put together
``app``, ``ft_app``     the HTTP routes
======================  ====================================================================================
"""
