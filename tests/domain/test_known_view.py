"""What EventPusher keeps of a view is all that a SET says of it."""

import pytest

from domain.messages.event_pusher import KnownView, ViewRecord
from domain.serving import known_view, project
from domain.topology import Endpoint, NodeManagerPlace, ParallelConfig, Role, Topology

TOPOLOGY = Topology(
    instance_id=7,
    job_name="job",
    model_name="model",
    role=Role.DECODE,
    parallel_config=ParallelConfig(dp_size=4),
    dp_master_port=29500,
    node_managers=(NodeManagerPlace(pod_ip="10.0.0.1", port=1026), NodeManagerPlace(pod_ip="10.0.0.2", port=1026)),
    endpoints=(
        Endpoint(id=2, pod_ip="10.0.0.1", ip="10.0.0.1", business_port=8002),
        Endpoint(id=0, pod_ip="10.0.0.1", ip="192.168.0.1", business_port=8000),
        Endpoint(id=1, pod_ip="10.0.0.2", ip="10.0.0.2", business_port=8001),
        Endpoint(id=3, pod_ip="10.0.0.2", ip="10.0.0.2", business_port=8003),
        Endpoint(id=3, pod_ip="10.0.0.2", ip="10.0.0.2", business_port=8004, headless=True),
    ),
)


@pytest.mark.parametrize("ranks", [(), (0,), (1, 3), (0, 1, 2, 3)])
def test_nothing_of_an_entry_is_lost(ranks: tuple[int, ...]) -> None:
    view = known_view(ViewRecord(topology=TOPOLOGY, revision=5, ranks=ranks))
    kept = KnownView.model_validate_json(view.model_dump_json())
    assert kept.entry == project(TOPOLOGY, ranks, 5)
    assert (kept.ranks, kept.revision) == (ranks, 5)


def test_a_rank_that_the_instance_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        known_view(ViewRecord(topology=TOPOLOGY, revision=5, ranks=(4,)))
