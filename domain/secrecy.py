"""What must not be read in a log, an error or a page: keys and tokens, by the name that they stand under."""

import re
import shlex
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "***"

_SECRET: Final = re.compile(r"(?:^|[-_.])(?:api[-_]?keys?|key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
"""`--api-key`, `HF_TOKEN`, `client_secret`; not `--max-num-batched-tokens`, `--tokenizer`, `--ssl-keyfile`."""


def is_secret(name: str) -> bool:
    """Whether what stands under this name (of a flag, a variable, a setting) is nobody's business."""
    return _SECRET.search(name.lstrip("-")) is not None


def shown_command(words: Iterable[str]) -> str:
    """A command line for a log, with `***` for the values of secret flags (`--api-key a b`, `--api-key=a`)."""
    shown: list[str] = []
    hiding = False
    for word in words:
        if word.startswith("-"):
            flag, equals, _ = word.partition("=")
            hiding = is_secret(flag) and not equals
            shown.append(f"{flag}={HIDDEN}" if equals and is_secret(flag) else shlex.quote(word))
        else:
            shown.append(HIDDEN if hiding else shlex.quote(word))
    return " ".join(shown)
