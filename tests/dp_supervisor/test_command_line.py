"""From a command line to the servers' own: what is set, what is refused and with which words."""

import re
import shlex
from pathlib import Path

import pytest

from domain.errors import ConfigError
from dp_supervisor import command_line
from dp_supervisor.command_line import parse
from dp_supervisor.rules import Rules
from dp_supervisor.server_command import ServerPlan, plan_servers

VLLM = "vllm serve MODEL --enable-expert-parallel --enable-eplb"


def plans(line: str, **environment: str) -> tuple[ServerPlan, ...]:
    return plan_servers(parse(line.split()), environment)


def test_a_vllm_command_line_works_as_it_is() -> None:
    line = (
        f"-- {VLLM} --data-parallel-size 8 --data_parallel_size_local=4 -dpm -r 1 -tp 2 "
        "--data-parallel-supervisor-port 9000 --port 8100 --enable-fault-tolerance -dpa 10.0.0.1 "
        "--dp-supervisor-probe-interval-s 2 --dp-supervisor-probe-timeout-s 1 --dp-supervisor-probe-failure-threshold 4"
    )
    options = parse(line.split())
    assert (options.rules, options.start_rank, options.data_parallel_supervisor_port) == (Rules.FAULT_TOLERANT, 4, 9000)
    assert (options.dp_supervisor_probe_interval_s, options.dp_supervisor_probe_timeout_s) == (2, 1)
    assert options.dp_supervisor_probe_failure_threshold == 4
    third = plans(line)[2]
    assert (third.rank, third.port, third.url) == (6, 8102, "http://127.0.0.1:8102")
    assert " ".join(third.command) == (
        f"{VLLM} -r 1 -tp 2 -dpa 10.0.0.1 --port 8102 --data-parallel-size 8 --data-parallel-rank 6 --enable-fault-tolerance"
    )
    assert third.environment == {"CUDA_VISIBLE_DEVICES": "4,5"}


def examples() -> list[str]:
    """The command lines of the page and of `--help`."""
    page = (Path(__file__).parents[2] / "docs" / "dp-supervisor.md").read_text(encoding="utf-8")
    text = "\n".join([*re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE), command_line._EPILOG])
    return re.findall(r"^ *autotomy dp-supervisor (.*)$", text.replace("\\\n", " "), re.MULTILINE)


def test_the_examples_that_people_copy_are_read() -> None:
    found = [parse(shlex.split(example)) for example in examples()]
    assert [options.data_parallel_size_local for options in found] == [4, 4, 4]
    assert all(options.rules is Rules.FAULT_TOLERANT and options.command[:2] == ("vllm", "serve") for options in found)


def test_flags_before_the_command_mean_the_same() -> None:
    before = plans(f"-dp 4 -dpl 2 --data-parallel-start-rank 2 --host 10.0.0.3 --enable-fault-tolerance -- {VLLM}")
    behind = plans(f"-- {VLLM} -dp 4 -dpl 2 -dpr 2 --host 10.0.0.3 --enable-fault-tolerance")
    assert before == behind
    assert [plan.rank for plan in before] == [2, 3]
    assert before[0].url == "http://10.0.0.3:8000"
    assert before[0].command[-3:] == ("--host", "10.0.0.3", "--enable-fault-tolerance")


def test_defaults_are_vllms() -> None:
    options = parse(f"-dp 4 -dpl 4 -- {VLLM}".split())
    assert (options.port, options.data_parallel_supervisor_port, options.start_rank) == (8000, 9256, 0)
    assert (options.dp_supervisor_probe_interval_s, options.dp_supervisor_probe_timeout_s) == (5, 5)
    assert (options.dp_supervisor_probe_failure_threshold, options.rules) == (3, Rules.STOCK)
    assert "--enable-fault-tolerance" not in plan_servers(options, {})[0].command


def test_stock_rules_can_judge_fault_tolerant_servers() -> None:
    options = parse(f"-dp 2 -dpl 2 --stock-rules -- {VLLM} --enable-fault-tolerance".split())
    assert options.rules is Rules.STOCK
    assert "--enable-fault-tolerance" in plan_servers(options, {})[0].command


def test_placeholders_replace_the_flags_of_their_name() -> None:
    line = '-dp 2 -dpl 2 -- run --at {port} --me={rank} --of {dp_size} --log rank-{local_index} --json {"a":1}'
    second = plans(line)[1]
    assert " ".join(second.command) == 'run --at 8001 --me=1 --of 2 --log rank-1 --json {"a":1}'


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ({"CUDA_VISIBLE_DEVICES": "7,6,5,4"}, {"CUDA_VISIBLE_DEVICES": "5,4"}),
        ({"ASCEND_RT_VISIBLE_DEVICES": "8,9,10,11,12"}, {"ASCEND_RT_VISIBLE_DEVICES": "10,11"}),
    ],
)
def test_devices_of_the_second_server(environment: dict[str, str], wanted: dict[str, str]) -> None:
    assert plans(f"-dp 2 -dpl 2 -- {VLLM} --tensor-parallel-size 2", **environment)[1].environment == wanted


def test_device_variable_can_be_named() -> None:
    assert plans(f"-dp 2 -dpl 2 --device-env GPUS -- {VLLM}", GPUS="a,b")[1].environment == {"GPUS": "b"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-dp 4 -dpl 4", "nothing to start: put the servers' command behind --"),
        (f"-dpl 4 -- {VLLM}", "--data-parallel-size is missing"),
        (f"-dp 4 -- {VLLM}", "--data-parallel-size-local is missing"),
        (f"-dp 4 -dpl 1 -- {VLLM}", "--data-parallel-size-local 1: input should be greater than or equal to 2"),
        (f"-dp 6 -dpl 4 -- {VLLM}", "--data-parallel-size 6 is not divisible by --data-parallel-size-local 4"),
        (f"-dp 8 -dpl 4 -dpr 6 -- {VLLM}", "ranks 6..9 would be started here, --data-parallel-size 8 has ranks 0..7"),
        (f"-dp 8 -dpl 4 --node-rank 2 -- {VLLM}", "ranks 8..11 would be started here"),
        (f"-dp 4 -dpl 4 --port 9254 -- {VLLM}", "--data-parallel-supervisor-port 9256 is one of the servers' ports 9254..9257"),
        (f"-dp 4 -dpl 4 --port 65533 -- {VLLM}", "the last of 4 servers would need port 65536"),
        (f"-dp 4 -dpl 4 --port 8000 -- {VLLM} --port 8001", "--port is 8000 before -- and 8001 behind it: say it once"),
        (f"-dp 4 -dpl 4 -- {VLLM} --data-parallel-rank 0", "the supervisor gives each server its own"),
        (f"-dp 4 -dpl 4 -- {VLLM} -dph", "--data-parallel-hybrid-lb"),
        (f"-dp 4 -dpl 4 -- {VLLM} --api-server-count 2", "--api-server-count 2: one API server a rank"),
        (f"-dp 4 -dpl 4 -- {VLLM} --uds /tmp/s", "--uds: the servers are probed at their ports"),
        (f"-dp 4 -dpl 4 --dp-supervisor-probe-failure-threshold 0 -- {VLLM}", "--dp-supervisor-probe-failure-threshold 0"),
    ],
)
def test_what_cannot_be_is_refused_in_clear_words(line: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(line.split())
    assert words in refused.value.message


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES=0,1 lists 2 devices, 4 servers with 1 each need 4"):
        plans(f"-dp 4 -dpl 4 -- {VLLM}", CUDA_VISIBLE_DEVICES="0,1")


CONFIG = """
model: FROM-FILE
data-parallel-size: 4
data_parallel_size_local: 2
enable-fault-tolerance: true
enable-expert-parallel: true
enable-eplb: false
tensor-parallel-size: 2
eplb-config: {num_redundant_experts: 32}
allowed-origins: [a, b]
port: 8100
"""


def test_a_config_file_of_vllm_is_read_as_vllm_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text(CONFIG)
    options = parse(["--", "vllm", "serve", "MODEL", "--config", str(file), "--port", "8200", "-tp", "1"])
    assert (options.data_parallel_size, options.data_parallel_size_local, options.port) == (4, 2, 8200)
    assert (options.rules, options.tensor_parallel_size) == (Rules.FAULT_TOLERANT, 1)
    first = plan_servers(options, {})[0]
    assert first.command == (
        *("vllm", "serve", "MODEL", "--enable-expert-parallel", "--tensor-parallel-size", "2"),
        *("--eplb-config", '{"num_redundant_experts": 32}', "--allowed-origins", "a", "b", "-tp", "1"),
        *("--port", "8200", "--data-parallel-size", "4", "--data-parallel-rank", "0", "--enable-fault-tolerance"),
    )


def test_a_model_of_the_config_file_stands_where_none_is_given(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text(CONFIG)
    command = plan_servers(parse(["--", "vllm", "serve", f"--config={file}"]), {})[0].command
    assert command[:3] == ("vllm", "serve", "FROM-FILE")
    assert "--model" not in command
    assert f"--config={file}" not in command


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["--config"], "--config needs a file"),
        (["--config", "a.yaml", "--config=b.yaml"], "2 times"),
    ],
)
def test_a_config_file_that_cannot_be_read_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(["-dp", "2", "-dpl", "2", "--", "vllm", "serve", "MODEL", *words])
