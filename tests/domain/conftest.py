"""Properties are searched for with the same examples in every run, without a limit on one example's time."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
