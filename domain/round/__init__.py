"""A transaction at an instance's NodeManagers: the scale-down round and the fast recovery, over ports. `scale_down.py` first."""
