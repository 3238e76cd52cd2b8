"""Hardware faults: what they are called, which ranks they mean, and which of two words about one is the newer."""

import pytest

from domain.hardware import FaultLevel, HardwareEvidence, HardwareFault, fault_level, isolating, map_fault, mapped_fault
from domain.topology import Topology
from tests.domain.instance_factories import T0, on_nodes


def reported(
    level: str = "L5", npu: str = "Ascend910-0", at: float = T0, node: str = "node-0", code: str = "80E24E00"
) -> HardwareFault:
    return mapped_fault(on_nodes(), node, code, npu, level, at)


@pytest.mark.parametrize(
    ("word", "level"),
    [
        ("NotHandleFault", "L1"),
        ("SubHealthFault", "L1"),
        ("RestartRequest", "L2"),
        ("RestartBusiness", "L3"),
        ("FreeRestartNPU", "L4"),
        ("RestartNPU", "L5"),
        ("SeparateNPU", "L6"),
        ("PreSeparateNPU", "L6"),
        ("ManuallySeparateNPU", "L6"),
        ("L4", "L4"),
    ],
)
def test_levels_are_known_by_our_words_and_mindclusters(word: str, level: str) -> None:
    assert fault_level(word) is FaultLevel(level)


@pytest.mark.parametrize("word", ["", "l5", "L7", "RestartNpu", "Harmless"])
def test_a_level_that_nobody_knows_is_an_l6_that_cannot_be_mapped(word: str) -> None:
    fault = reported(level=word)
    assert (fault.level, fault.mappable) == (FaultLevel.L6, False)
    assert "not known" in fault.unmapped


@pytest.mark.parametrize(
    ("node", "npu", "ranks", "complete"),
    [
        ("node-0", "Ascend910-0", (0,), True),
        ("node-1", "npu-1", (3,), True),
        ("node-0", "", (0, 1), True),
        ("node-0", "  ", (0, 1), True),
        ("node-0", "Ascend910-0, Ascend910-1", (0, 1), True),
        ("node-0", "Ascend910-7", (), True),
        ("node-9", "Ascend910-0", (), True),
        ("node-0", "switch0", (), False),
        ("node-0", "Ascend910-2c-100-1", (), False),
        ("node-0", "Ascend910-1,", (1,), False),
        ("node-0", "Ascend910-0 Ascend910-1", (), False),
        ("node-0", "ascend910-0", (), False),
        ("node-0", "Ascend910-0,card9", (0,), False),
    ],
)
def test_a_name_means_the_ranks_whose_devices_hold_the_chip(node: str, npu: str, ranks: tuple[int, ...], complete: bool) -> None:
    mapping = map_fault(on_nodes(), node, npu)
    assert (mapping.ranks, not mapping.unmapped) == (ranks, complete)


def changed(topology: Topology, **endpoint_0: object) -> Topology:
    first = topology.endpoints[0].model_copy(update=endpoint_0)
    return topology.model_copy(update={"endpoints": (first, *topology.endpoints[1:])})


def test_where_the_topology_says_too_little_nothing_is_guessed() -> None:
    blind = changed(on_nodes(), device_ids=())
    assert map_fault(blind, "node-0", "Ascend910-1").unmapped
    assert not map_fault(blind, "node-0", "").unmapped, "the whole node needs no devices"
    assert map_fault(changed(on_nodes(), device_ids=("chip zero",)), "node-0", "Ascend910-1").unmapped
    nameless = on_nodes().model_copy(
        update={"node_managers": tuple(p.model_copy(update={"node_name": ""}) for p in on_nodes().node_managers)}
    )
    assert map_fault(nameless, "node-0", "Ascend910-0").unmapped


def test_a_rank_with_several_devices_is_meant_by_each_of_them() -> None:
    pairs = changed(on_nodes(), device_ids=("0", "4"))
    assert map_fault(pairs, "node-0", "Ascend910-4").ranks == (0,)
    assert map_fault(pairs, "node-0", "Ascend910-0").ranks == (0,)


def test_one_code_on_two_cards_is_two_faults() -> None:
    hardware = HardwareEvidence().report(reported(npu="Ascend910-0")).report(reported(npu="Ascend910-1"))
    assert [fault.ranks for fault in hardware.open(FaultLevel.L5)] == [(0,), (1,)]


def test_the_same_fault_again_is_no_news_and_does_not_fire_again_until_it_was_cleared() -> None:
    hardware = HardwareEvidence().report(reported())
    key = reported().key
    hardware = hardware.handle([key]).report(reported(at=T0 + 5))
    assert hardware.open(FaultLevel.L5) == ()
    assert hardware.faults[key].received_at == T0
    hardware = hardware.clear(key, T0 + 6).report(reported(at=T0 + 7))
    assert [fault.received_at for fault in hardware.open(FaultLevel.L5)] == [T0 + 7]


def test_a_fault_that_gets_worse_is_a_new_one() -> None:
    key = reported().key
    hardware = HardwareEvidence().report(reported(level="L2")).handle([key]).report(reported(level="L5", at=T0 + 9))
    assert [fault.received_at for fault in hardware.open(FaultLevel.L5)] == [T0 + 9]
    better = hardware.handle([key]).report(reported(level="L4", at=T0 + 10))
    assert better.open(FaultLevel.L4) == ()


def test_late_words_change_nothing() -> None:
    key = reported().key
    cleared = HardwareEvidence().report(reported(at=T0)).clear(key, T0 + 5)
    assert cleared.report(reported(at=T0 + 4)).faults == {}, "a report from before the clear"
    standing = HardwareEvidence().report(reported(at=T0 + 5))
    assert standing.clear(key, T0 + 4) == standing, "a clear from before the report"
    assert standing.report(reported(level="L2", at=T0 + 1)) == standing


def test_what_is_kept_is_bounded() -> None:
    hardware = HardwareEvidence()
    for number in range(1000):
        hardware = hardware.report(reported(code=f"code {number}", at=T0 + number))
        hardware = hardware.clear(reported(code=f"gone {number}").key, T0 + number)
    assert len(hardware.faults) <= 256
    assert len(hardware.cleared_at) <= 64
    assert reported(code="code 999").key in hardware.faults


def test_an_l3_isolates_as_long_as_it_stands_and_touches_an_active_rank() -> None:
    hardware = HardwareEvidence().report(reported(level="L3"))
    key = reported(level="L3").key
    assert isolating(hardware.handle([key]), (0, 1, 2, 3))
    assert not isolating(hardware, (1, 2, 3))
    assert not isolating(hardware.clear(key, T0 + 1), (0, 1, 2, 3))
    assert isolating(HardwareEvidence().report(reported(level="L3", npu="switch0")), (1,)), "it may touch anything"
