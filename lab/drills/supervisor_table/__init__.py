"""The published experiment on the multi-port DP supervisor, repeated: `autotomy drill supervisor-table`.

Two pools of four ranks stand behind one Coordinator; sixteen clients send sixteen requests a second; one worker process
of pool A is killed. Then either somebody tells the survivors to shrink (32 s later), or nobody does. Each of the two is
run with the stock supervisor's rules and with the fault-tolerant ones, and the outcome is put beside the figures that
the authors of the change measured on real hardware (vLLM pull request "Keep the multi-port DP supervisor serving
through fault-tolerant recovery").

No Controller takes part: as in the experiment, a script plays the hand that sends `scale_down`, Kubernetes, which asks
for readiness, and whoever tells the router which endpoints there are.
"""
