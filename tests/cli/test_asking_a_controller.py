"""What commands make of the answers of a Controller API, of something else, and of nobody."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.main import carry_out
from tests.domain.instance_factories import T0, serving_state

STATUS = "/controller/fault_tolerance/status"
RECORD = serving_state().record(None, T0).model_dump(mode="json")


@dataclass
class Answerer:
    """A server with one answer for everything. `asked`: method, path and body of each request."""

    url: str = ""
    status: int = 200
    body: bytes = b""
    asked: list[tuple[str, str, object]] = field(default_factory=list)

    def says(self, data: object, status: int = 200) -> None:
        """In the envelope of our processes."""
        self.status, self.body = status, json.dumps({"code": status, "message": "Success", "data": data}).encode()


@pytest.fixture
def server() -> Iterator[Answerer]:
    answerer = Answerer()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            answerer.asked.append((self.command, self.path, json.loads(content) if content else None))
            self.send_response(answerer.status)
            self.send_header("content-length", str(len(answerer.body)))
            self.end_headers()
            self.wfile.write(answerer.body)

        do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        answerer.url = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield answerer
        http.shutdown()
        thread.join()


@dataclass(frozen=True)
class Shown:
    code: int
    out: str
    err: str


Autotomy = Callable[..., Shown]


@pytest.fixture
def autotomy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Autotomy:
    for name in ("AUTOTOMY_CONTROLLER_URL", "AUTOTOMY_RUN_DIR", "AUTOTOMY_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Shown:
        monkeypatch.setattr(sys, "argv", ["autotomy", *arguments])
        code = carry_out()
        out, err = capsys.readouterr()
        return Shown(code, out, err)

    return run


QUESTIONS = (
    ("instance", "remove", "7"),
    ("instance", "terminate", "7"),
    ("instance", "list"),
    ("instance", "show", "7"),
    ("explain", "7"),
    ("plan", "7", "--dead", "1"),
    ("status",),
)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("body", [b"<html>It works!</html>", b"[1]", b'"fine"', b'{"data": {}}', b'{"code": 200, "data": [1]}'])
def test_what_is_no_controller_api_is_not_believed(
    question: tuple[str, ...], body: bytes, server: Answerer, autotomy: Autotomy
) -> None:
    server.body = body
    shown = autotomy(*question, "--controller-url", server.url)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == (f"autotomy: {server.url} answers, but not as a Controller API (status 200); check --controller-url\n")


def test_a_proxys_error_page_is_no_refusal_of_the_controller(server: Answerer, autotomy: Autotomy) -> None:
    server.status, server.body = 502, b"<html>Bad Gateway</html>"
    shown = autotomy("instance", "release", "7", "--controller-url", server.url)
    assert (shown.code, "(status 502); check --controller-url" in shown.err) == (2, True), shown.err


@pytest.mark.parametrize("question", QUESTIONS[2:])
def test_an_answer_of_another_version_is_said_to_be_one(question: tuple[str, ...], server: Answerer, autotomy: Autotomy) -> None:
    server.says({"strange": True})
    shown = autotomy(*question, "--controller-url", server.url)
    assert (shown.code, shown.out) == (2, "")
    assert "of another version" in shown.err
    assert shown.err.count("\n") == 1


def test_what_the_api_refuses_is_printed_as_it_says_it(server: Answerer, autotomy: Autotomy) -> None:
    server.status, server.body = 409, b'{"code": 409, "message": "ranks [0] and [red] are not held", "data": {}}'
    shown = autotomy("instance", "release", "7", "--controller-url", server.url)
    assert (shown.code, shown.err) == (1, "refused (409): ranks [0] and [red] are not held\n")


@pytest.mark.parametrize(
    "given", ["garbage", "127.0.0.1:1026", "http://", "ftp://host:1", "http://host:99999", "http://host:0", "http://x/?a=1"]
)
@pytest.mark.parametrize("question", [("instance", "list"), ("status",)])
def test_an_address_that_cannot_be_one_is_refused_before_it_is_asked(
    given: str, question: tuple[str, ...], autotomy: Autotomy
) -> None:
    shown = autotomy(*question, "--controller-url", given)
    assert (shown.code, shown.err) == (2, f"autotomy: --controller-url '{given}': write http://host:port\n")


def test_one_instance_is_shown_to_people_and_to_programs(server: Answerer, autotomy: Autotomy) -> None:
    server.says(RECORD)
    asked = ("instance", "show", "7", "--controller-url", server.url)
    lines = autotomy(*asked).out.splitlines()
    assert lines[0] == "instance 7: NORMAL, serves"
    assert lines[1].strip().startswith("alive [0, 1, 2, 3], committed dead []")
    assert json.loads(autotomy(*asked, "--json").out) == RECORD
    assert server.asked[0][1] == f"{STATUS}?instance_id=7"


def test_an_instance_where_the_feature_is_off_says_so(server: Answerer, autotomy: Autotomy) -> None:
    server.says({"phase": "DISABLED", "instances": []})
    assert autotomy("instance", "show", "7", "--controller-url", server.url).out.startswith("DP scale-down is off")


def test_the_status_of_an_installation_that_is_no_local_stack(server: Answerer, autotomy: Autotomy) -> None:
    server.says({"instances": [RECORD]})
    asked = ("status", "--controller-url", server.url)
    assert autotomy(*asked).out.startswith("instance 7: NORMAL, serves\n")
    assert json.loads(autotomy(*asked, "--json").out) == {"instances": [RECORD]}


def test_a_run_directory_that_is_typed_comes_before_an_address_from_the_environment(
    server: Answerer, autotomy: Autotomy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.says({"instances": [RECORD]})
    monkeypatch.setenv("AUTOTOMY_CONTROLLER_URL", server.url)
    assert autotomy("status").out.startswith("instance 7: NORMAL, serves\n")
    shown = autotomy("status", "--run-dir", str(tmp_path))
    assert (shown.code, f"no stack runs in {tmp_path}" in shown.err) == (2, True)
    both = autotomy("status", "--run-dir", str(tmp_path), "--controller-url", server.url)
    assert (both.code, "give one of them" in both.err) == (2, True)


def test_a_declaration_is_taken_in_words_or_as_json(server: Answerer, autotomy: Autotomy, tmp_path: Path) -> None:
    file = tmp_path / "instance.yaml"
    file.write_text("model_name: m\n")
    server.says({"outcome": "declared"})
    asked = ("instance", "declare", "7", str(file), "--controller-url", server.url)
    assert autotomy(*asked).out == "instance 7 is declared; `autotomy instance show 7` follows it\n"
    assert json.loads(autotomy(*asked, "--json").out) == {"outcome": "declared"}
    assert server.asked[-1] == ("PUT", "/controller/instances/7", {"model_name": "m"})


@pytest.mark.parametrize(("text", "words"), [("", "is empty"), ("- 1\n", "must hold a mapping"), ("a: [", "is not YAML")])
def test_a_file_that_declares_nothing_is_not_sent(
    text: str, words: str, server: Answerer, autotomy: Autotomy, tmp_path: Path
) -> None:
    file = tmp_path / "instance.yaml"
    file.write_text(text)
    shown = autotomy("instance", "declare", "7", str(file), "--controller-url", server.url)
    assert (shown.code, server.asked) == (2, [])
    assert shown.err.startswith(f"autotomy: declaration {file} {words}")


def test_a_removal_is_told_in_words_or_as_json(server: Answerer, autotomy: Autotomy) -> None:
    server.says({"outcome": "removed"})
    asked = ("instance", "remove", "7", "--controller-url", server.url)
    assert autotomy(*asked).out == "instance 7 is removed\n"
    assert json.loads(autotomy(*asked, "--json").out) == {"outcome": "removed"}
    assert server.asked[-1] == ("DELETE", "/controller/instances/7", None)


def test_terminating_stops_the_engines_too_and_says_why(server: Answerer, autotomy: Autotomy) -> None:
    server.says({"outcome": "removed"})
    shown = autotomy("instance", "terminate", "7", "--reason", "a Pod moved", "--controller-url", server.url)
    assert (shown.code, shown.out) == (0, "instance 7 is withdrawn and forgotten, its engines are stopped\n")
    assert server.asked == [("POST", "/controller/terminate_instance", {"instance_id": 7, "reason": "a Pod moved"})]


def test_a_declaration_comes_as_yaml_or_as_json(server: Answerer, autotomy: Autotomy) -> None:
    server.says({"model_name": "m"})
    asked = ("instance", "declaration", "7", "--controller-url", server.url)
    assert autotomy(*asked).out == "model_name: m\n"
    assert json.loads(autotomy(*asked, "--json").out) == {"model_name": "m"}
