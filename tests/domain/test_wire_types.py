"""On the wire a boolean is never an integer, one is never true, and "7" is no number (contracts, first paragraph)."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

import domain.messages.controller
import domain.messages.coordinator
import domain.messages.node_manager
import domain.messages.registration
import domain.messages.resource_monitor
from domain.engine import EngineEntry, FtCapability, StatusBody
from domain.topology import Endpoint, NodeManagerPlace, ParallelConfig

ONLY_LOGGED = {(EngineEntry, "mask")}
"""What an engine says beside its state must not make the state unreadable."""

PROTOCOLS = (
    domain.messages.controller,
    domain.messages.coordinator,
    domain.messages.node_manager,
    domain.messages.registration,
    domain.messages.resource_monitor,
)


def models() -> Iterator[type[BaseModel]]:
    for protocol in PROTOCOLS:
        for one in vars(protocol).values():
            if isinstance(one, type) and issubclass(one, BaseModel) and one.__module__ == protocol.__name__:
                yield one
    yield from (EngineEntry, FtCapability, StatusBody, Endpoint, NodeManagerPlace, ParallelConfig)


FIELDS = [
    pytest.param(field, id=f"{model.__name__}.{name}")
    for model in models()
    for name, field in model.model_fields.items()
    if (model, name) not in ONLY_LOGGED
]


def read(field: FieldInfo, sent: object) -> object:
    """What the field makes of it; the same again where it is refused."""
    kind: TypeAdapter[object] = TypeAdapter(Annotated[(field.annotation, field, *field.metadata)])  # type: ignore[arg-type]
    try:
        return kind.validate_json(json.dumps(sent))
    except ValidationError:
        return sent


def is_another(read_as: object, sent: object) -> bool:
    numbers = {int, float}
    kinds = {type(read_as), type(sent)}
    return isinstance(read_as, bool | int | float) and len(kinds) == 2 and not kinds <= numbers


@pytest.mark.parametrize("field", FIELDS)
def test_nothing_is_taken_for_what_it_is_not(field: FieldInfo) -> None:
    for sent in (True, False, 1, 0, "7", "true"):
        assert not is_another(read(field, sent), sent), f"{sent!r} is taken for {read(field, sent)!r}"
        listed = read(field, [sent])
        if isinstance(listed, tuple | list):
            assert not any(is_another(one, sent) for one in listed), f"{[sent]!r} is taken for {listed!r}"


def test_a_capability_with_a_boolean_for_a_number_is_refused() -> None:
    """One redundant expert would let an instance through the gate."""
    said = {"enabled": True, "scale_down_supported": True, "external_lb": True, "eplb_enabled": True}
    with pytest.raises(ValidationError, match="num_redundant_experts"):
        FtCapability.model_validate({**said, "num_redundant_experts": True})


def unbounded(schema: Any, where: str = "") -> Iterator[str]:
    """Where in a pydantic-core schema a number has no bound, or a text no greatest length."""
    if isinstance(schema, list | tuple):
        for one in schema:
            yield from unbounded(one, where)
    if not isinstance(schema, dict):
        return
    match schema.get("type"):
        case "str" if "max_length" not in schema and "pattern" not in schema:
            yield f"{where}: a text without a greatest length"
        case "int" | "float" if not ({"le", "lt"} & schema.keys() and {"ge", "gt"} & schema.keys()):
            yield f"{where}: a number without bounds"
        case "model-field":
            yield from unbounded(schema["schema"], where)
            return
        case "model-fields":
            for name, field in schema["fields"].items():
                yield from unbounded(field, f"{where}.{name}")
            return
    for key, inner in schema.items():
        if key not in ("metadata", "ref", "serialization"):
            yield from unbounded(inner, where)


@pytest.mark.parametrize("model", [pytest.param(model, id=model.__name__) for model in models()])
def test_every_number_has_bounds_and_every_text_a_length(model: type[BaseModel]) -> None:
    assert not list(unbounded(model.__pydantic_core_schema__, model.__name__))


def test_a_field_without_bounds_is_found() -> None:
    class Careless(BaseModel):
        count: int
        told: dict[str, float]

    assert len(list(unbounded(Careless.__pydantic_core_schema__, "Careless"))) == 3
