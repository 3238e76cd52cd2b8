"""Pods that are refused again and again are named, for a while."""

from api.explain import explained
from api.strangers import FRESH_SEC, Strangers
from domain.config import FallbackStrategy
from domain.runtime import FtPhase, RuntimeRecord
from domain.topology import NodeManagerAddress


def address(index: int) -> NodeManagerAddress:
    return NodeManagerAddress(ip=f"10.0.{index // 256}.{index % 256}", port=1026)


def test_a_refused_pod_is_named_once_as_long_as_it_asks() -> None:
    now = [0.0]
    strangers = Strangers(lambda: now[0])
    strangers.note(7, address(1), "first")
    strangers.note(7, address(2), "second")
    strangers.note(8, address(3), "another instance's")
    assert strangers.of(7) == ("first", "second")
    now[0] = FRESH_SEC
    strangers.note(7, address(1), "still there")
    now[0] = FRESH_SEC + 1.0
    assert strangers.of(7) == ("still there",)


def test_made_up_addresses_fill_no_memory() -> None:
    strangers = Strangers()
    for index in range(1000):
        strangers.note(7, address(index), str(index))
    assert len(strangers.of(7)) == 64
    assert strangers.of(7)[-1] == "999"


def test_explain_names_it() -> None:
    fallback = FallbackStrategy.INSTANCE_RECONFIGURATION
    record = RuntimeRecord(
        instance_id=7, phase=FtPhase.NORMAL, original_dp_ranks=(0, 1), alive_dp_ranks=(0, 1), fallback_strategy=fallback
    )
    assert explained(record, 0.0, ["it has moved"]).text[-1] == "A Pod asks to join and is refused: it has moved."
