"""How Ray's nodes are told apart as hosts of TPU slices."""

from pipeline.launchers.ray_jobs import slices_of


def test_hosts_are_of_the_slice_whose_name_they_have() -> None:
    first, second = {"TPU": 4.0, "a": 1.0, "CPU": 8.0}, {"TPU": 4.0, "b": 1.0, "CPU": 8.0}
    heads = [{**host, "TPU-v5p-16-head": 1.0} for host in (first, second)]
    other = {"TPU": 4.0, "TPU-v6e-4-head": 1.0, "memory": 1e9, "node:10.0.0.1": 1.0}
    found = slices_of("v5p-16", [heads[0], first, {"CPU": 2.0}, heads[1], other])
    assert {name: len(hosts) for name, hosts in found.items()} == {"a": 2, "b": 1}
    assert slices_of("v6e-4", [*heads, other, other]) == {"": [other, other]}
    assert slices_of("v4-8", heads) == {}
