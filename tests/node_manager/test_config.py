"""The NodeManager's file: what it may say, what an engine's command becomes, and how mistakes are told."""

from pathlib import Path

import pytest

from domain.errors import ConfigError
from node_manager.config import EngineSpec, NodeManagerConfig, load_config

MINIMAL = "pod_ip: a\njournal: j\nlog_dir: l\n"


def read(folder: Path, content: str, **overrides: object) -> NodeManagerConfig:
    (folder / "c.yaml").write_text(content)
    return load_config(folder / "c.yaml", overrides)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("pod_ip: [", "not YAML"),
        ("{}", "pod_ip: Field required"),
        ("pod_ip: a\njournal: j\nlog_dir: l\nport: 70000", "port = 70000"),
        ("pod_ip: a\njournal: j\nlog_dir: l\nprot: 1", "prot = 1: no such setting"),
        ("pod_ip: a\njournal: j\nlog_dir: l\nengines: [{command: []}]", "engines.0.command"),
        ("pod_ip: a\njournal: j\nlog_dir: l\nengines: [{command: [x]}, {command: [y]}]", "more than once"),
        ("pod_ip: a\njournal: j\nlog_dir: l\nworker_title: '('", "not a regular expression"),
        ("pod_ip: a\njournal: j\nlog_dir: l\ncontroller_url: ftp://x", "controller_url"),
    ],
)
def test_a_mistake_is_told_with_key_value_and_why(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, content)
    assert words in error.value.message
    assert str(tmp_path / "c.yaml") in error.value.message


def test_command_line_overrules_the_file(tmp_path: Path) -> None:
    config = read(tmp_path, MINIMAL + "port: 1", port=2, pod_ip="b")
    assert (config.port, config.pod_ip) == (2, "b")


def test_entry_of_a_rank_overrules_the_one_without(tmp_path: Path) -> None:
    config = read(tmp_path, MINIMAL + "engines: [{command: [x]}, {rank: 3, command: [y]}]")
    found = [config.engine_for(rank) for rank in (0, 3)]
    assert [spec.command for spec in found if spec] == [("x",), ("y",)]
    assert read(tmp_path, MINIMAL).engine_for(0) is None


def test_only_known_words_in_braces_are_replaced() -> None:
    spec = EngineSpec(
        command=("serve", "--port={port}", '{"num_redundant_experts": 24}', "{rank}{rank}"), environment={"A": "{ip}"}
    )
    filled = spec.filled_in({"port": 8000, "rank": 3, "ip": "10.0.0.1"})
    assert filled.command == ("serve", "--port=8000", '{"num_redundant_experts": 24}', "33")
    assert filled.environment == {"A": "10.0.0.1"}
