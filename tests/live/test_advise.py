"""What `toki advise` predicts of servers with other flags is what they do; scripts/check_advice.py tries more."""

from __future__ import annotations

from check_advice import compare
from servers import Flags

SERVERS = (Flags(n_parallel=2), Flags(n_parallel=4, cache_ram_mib=0))


def test_predictions_are_those_of_real_servers() -> None:
    found = list(compare(["five-in-rotation"], SERVERS, seed=1, scale=0.2))
    assert len(found) == len(SERVERS)
    for one in found:
        assert one.holds, one
    assert found[1].measured[0] > 2 * found[0].measured[0], "the flags make a difference"
