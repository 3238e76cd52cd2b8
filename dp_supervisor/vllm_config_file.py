"""`--config FILE` of `vllm serve`: a YAML mapping of flags, read as vLLM reads it.

vLLM lays the file's flags into its command line, behind the subcommand and the model, before everything else; so what is
written on the command line comes later and wins. Here the same is done before anything is read from COMMAND, and the servers
get the flags instead of the file: what the file says of the group is the supervisor's business like any other flag.

| in the file | as flags |
|---|---|
| `name: true`, `name: false` | `--name`, nothing |
| `name: [a, b]` | `--name a b` |
| `name: {…}` | `--name '{…}'`, as JSON |
| `name: value` | `--name value` |
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from domain.errors import ConfigError
from service.settings import read_yaml_mapping

_FLAG: Final = "--config"
_SUBCOMMAND: Final = "serve"


def with_config_file(command: Sequence[str]) -> list[str]:
    """COMMAND without `--config`, and with what its file says. Raises `ConfigError` for a file that cannot be read."""
    words, path = _without_flag(command)
    if path is None:
        return words
    flags = list(_flags(read_yaml_mapping(Path(path), "vLLM's config file")))
    at = words.index(_SUBCOMMAND) + 1 if _SUBCOMMAND in words else len(_program(words))
    has_model = at < len(words) and not words[at].startswith("-")
    model = next((flags[i + 1] for i, flag in enumerate(flags[:-1]) if flag == "--model"), None)
    if has_model:
        at += 1
    elif model is not None:
        words.insert(at, model)
        at += 1
    if model is not None:  # the positional one wins, as on vLLM's own command line
        i = flags.index("--model")
        del flags[i : i + 2]
    return [*words[:at], *flags, *words[at:]]


def _without_flag(command: Sequence[str]) -> tuple[list[str], str | None]:
    words: list[str] = []
    found: list[str] = []
    rest = iter(command)
    for word in rest:
        if word.startswith(f"{_FLAG}="):
            found.append(word.partition("=")[2])
        elif word == _FLAG:
            found.append(next(rest, ""))
        else:
            words.append(word)
    if len(found) > 1:
        raise ConfigError(f"--config is given {len(found)} times: vLLM takes one file")
    if found and not found[0]:
        raise ConfigError("--config needs a file")
    return words, found[0] if found else None


def _program(words: Sequence[str]) -> Sequence[str]:
    """The words before the first flag: the program itself, however it is started."""
    end = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return words[:end]


def _flags(content: Mapping[str, object]) -> Iterator[str]:
    for name, value in content.items():
        flag = "--" + name.replace("_", "-")
        match value:
            case None | False:
                continue
            case True:
                yield flag
            case list():
                yield flag
                yield from map(str, value)
            case dict():
                yield flag
                yield json.dumps(value)
            case _:
                yield flag
                yield str(value)
