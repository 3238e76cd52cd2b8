"""File, environment and command line become one configuration, or one clear error."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from domain.errors import ConfigError, Refused
from service.settings import Settings, load_settings
from service.variables import SETTINGS, refuse_unknown_variables

WriteConfig = Callable[[str], Path]


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    def write(text: str) -> Path:
        path = tmp_path / "autotomy.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def _no_ambient_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTOMY_CONFIG", raising=False)


def refusal(path: Path | None = None, overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(path, overrides)
    assert isinstance(caught.value, Refused)
    return str(caught.value)


def test_defaults_stand_alone() -> None:
    settings = load_settings()
    assert settings.controller_url == "http://127.0.0.1:1026"
    assert settings.fault_tolerance_config.enable_dp_scale_down is False


def test_environment_overrules_file_and_command_line_overrules_both(
    write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(
        "controller_url: http://from-file:1\n"
        "fault_tolerance_config:\n"
        "  software_collection_timeout_sec: 11\n"
        "  dp_scale_down_config: {poll_interval_sec: 3, dead_confirm_sec: 4}\n"
    )
    monkeypatch.setenv("AUTOTOMY_FAULT_TOLERANCE_CONFIG__SOFTWARE_COLLECTION_TIMEOUT_SEC", "12")
    monkeypatch.setenv("AUTOTOMY_FAULT_TOLERANCE_CONFIG__DP_SCALE_DOWN_CONFIG__POLL_INTERVAL_SEC", "0.5")
    monkeypatch.setenv("AUTOTOMY_FAULT_TOLERANCE_CONFIG__ENABLE_DP_SCALE_DOWN", "true")
    monkeypatch.setenv("AUTOTOMY_FAULT_TOLERANCE_CONFIG__RECONFIGURATION_BUDGET", "5")
    monkeypatch.setenv("AUTOTOMY_CONTROLLER_URL", "http://from-environment:2")
    settings = load_settings(path, {"controller_url": "http://from-command-line:3"})
    config = settings.fault_tolerance_config
    assert settings.controller_url == "http://from-command-line:3"
    assert config.software_collection_timeout_sec == 12
    assert config.enable_dp_scale_down is True
    assert config.reconfiguration_budget == 5
    assert config.dp_scale_down_config.poll_interval_sec == 0.5
    assert config.dp_scale_down_config.dead_confirm_sec == 4


def test_the_file_may_be_named_by_the_environment(write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTOMY_CONFIG", str(write_config("task_queue: elsewhere\n")))
    assert load_settings().task_queue == "elsewhere"


def test_a_contradiction_names_both_keys_both_values_and_why(write_config: WriteConfig) -> None:
    path = write_config(
        "fault_tolerance_config: {dp_scale_down_config: {request_timeout_sec: 3, engine_request_timeout_sec: 4}}\n"
    )
    message = refusal(path)
    assert "fault_tolerance_config.dp_scale_down_config" in message
    assert "engine_request_timeout_sec=4" in message
    assert "request_timeout_sec=3" in message
    assert "before its caller gives up" in message
    assert str(path) in message


def test_a_value_out_of_range_names_key_value_bound_and_file(write_config: WriteConfig) -> None:
    path = write_config("fault_tolerance_config: {dp_scale_down_config: {request_timeout_sec: 61}}\n")
    message = refusal(path)
    assert "fault_tolerance_config.dp_scale_down_config.request_timeout_sec = 61" in message
    assert "less than or equal to 60" in message
    assert str(path) in message


def test_a_wrong_value_from_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTOMY_FAULT_TOLERANCE_CONFIG__HEARTBEAT_TIMEOUT_SEC", "soon")
    message = refusal()
    assert "heartbeat_timeout_sec = 'soon'" in message
    assert "from AUTOTOMY_FAULT_TOLERANCE_CONFIG__HEARTBEAT_TIMEOUT_SEC" in message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("fault_tolerance_config: {enable_dp_scaledown: true}\n", "fault_tolerance_config.enable_dp_scaledown"),
        ("controler_url: http://x:1\n", "controler_url"),
    ],
)
def test_an_unknown_key_in_the_file_is_an_error(write_config: WriteConfig, text: str, key: str) -> None:
    message = refusal(write_config(text))
    assert key in message
    assert "no such setting" in message


@pytest.mark.parametrize(
    "variable",
    ["AUTOTOMY_FAULT_TOLERANCE_CONFIG__ENABLE_DP_SCALEDOWN", "AUTOTOMY_FAULT_TOLERANCE__ENABLE_DP_SCALE_DOWN"],
)
def test_an_unknown_key_in_the_environment_is_an_error(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "true")
    assert "no such setting" in refusal() or "there is no setting" in refusal()
    assert variable in refusal()


def test_variables_that_are_no_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTOMY_LOG_LEVEL", "DEBUG")
    assert load_settings() == load_settings()


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("AUTOTOMY_LOG_LEVLE", "(did you mean AUTOTOMY_LOG_LEVEL?)"),
        ("AUTOTOMY_CONTROLER_URL", "(did you mean AUTOTOMY_CONTROLLER_URL?)"),
        ("AUTOTOMY_NOPE", "(known: AUTOTOMY_CONFIG, AUTOTOMY_CONTROLLER_URL, AUTOTOMY_FAILPOINTS"),
        (
            "AUTOTOMY_FAULT_TOLERANCE_CONF__ENABLE_DP_SCALE_DOWN",
            "(did you mean AUTOTOMY_FAULT_TOLERANCE_CONFIG__ENABLE_DP_SCALE_DOWN?)",
        ),
    ],
)
def test_a_variable_that_no_process_knows_is_refused_with_the_one_that_was_meant(
    variable: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    message = refusal()
    assert message.startswith(f"environment variable {variable}: there is no such setting ")
    assert words in message


@pytest.mark.parametrize(
    "variable",
    [
        "AUTOTOMY_PORT",
        "AUTOTOMY_SERVICE_HOST",
        "AUTOTOMY_CONTROLLER_SERVICE_PORT_HTTP",
        "AUTOTOMY_CONTROLLER_PORT_1026_TCP",
        "AUTOTOMY_CONTROLLER_PORT_1026_TCP_ADDR",
    ],
)
def test_what_kubernetes_tells_of_a_service_with_our_name_is_no_setting(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "tcp://10.0.0.1:1026")
    assert load_settings().controller_url == "http://127.0.0.1:1026"


def test_every_setting_has_its_variable() -> None:
    assert set(SETTINGS) == {f"AUTOTOMY_{name.upper()}" for name in Settings.model_fields}


def test_no_variable_of_ours_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is spoken of anywhere: each may be in the environment of a process that it was not meant for."""
    root = Path(__file__).parents[2]
    files = [root / "Makefile", root / "docker-compose.yml", *root.glob("docs/*.md"), *root.glob("deploy/**/*.y*ml")]
    files += [path for path in root.glob("[!.]*/**/*.py") if path.relative_to(root).parts[0] not in ("tests", "build")]
    found = {name for file in files for name in re.findall(r"\bAUTOTOMY_[A-Z_]*[A-Z]\b", file.read_text(encoding="utf-8"))}
    assert {"AUTOTOMY_RUN_ID", "AUTOTOMY_RECORD_HISTORIES", "AUTOTOMY_ENGINE_OF", "AUTOTOMY_FAILPOINTS"} <= found
    for name in sorted(found):
        monkeypatch.setenv(name, "1")
    refuse_unknown_variables()


def test_a_boolean_is_no_number(write_config: WriteConfig) -> None:
    assert "reconfiguration_budget = True" in refusal(write_config("fault_tolerance_config: {reconfiguration_budget: true}\n"))


def test_a_key_given_twice_is_an_error(write_config: WriteConfig) -> None:
    assert "'task_queue' is given twice" in refusal(write_config("task_queue: a\ntask_queue: b\n"))


@pytest.mark.parametrize(
    ("text", "why"), [("a: [", "is not YAML"), ("- a\n", "must hold a mapping"), ("1: 2\n", "must hold a mapping")]
)
def test_a_file_that_is_no_mapping_is_an_error(write_config: WriteConfig, text: str, why: str) -> None:
    assert why in refusal(write_config(text))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.yaml")


def test_an_empty_file_means_defaults(write_config: WriteConfig) -> None:
    assert load_settings(write_config("# nothing yet\n")) == load_settings()


def test_a_wrong_url_from_the_command_line_says_so() -> None:
    message = refusal(overrides={"controller_url": "127.0.0.1:1026"})
    assert "controller_url = '127.0.0.1:1026'" in message
    assert "command line" in message


@pytest.mark.parametrize("url", ["http://x:99999", "http://x:0", "http://:1026", "ftp://x:1", "http://x:1/?a=b"])
def test_a_url_names_a_host_and_a_port_that_there_can_be(url: str) -> None:
    assert f"controller_url = '{url}'" in refusal(overrides={"controller_url": url})


@pytest.mark.parametrize("url", ["http://x", "https://x:443/behind/a/path", "http://[::1]:1026"])
def test_urls_that_can_be_asked(url: str) -> None:
    assert load_settings(None, {"controller_url": url}).controller_url == url
