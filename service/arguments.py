"""Values on the command lines of our processes, as types for `argparse`: what is wrong is said before anything starts."""

import argparse


def port(text: str) -> int:
    """A TCP port, 0 to 65535; 0 takes a free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0..65535)")
    return int(text)


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def seconds(text: str) -> float:
    """A time of at most a day, above 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds (0 < SEC <= 86400)")
    return value
