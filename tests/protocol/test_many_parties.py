"""What a run does for each of its parties does not grow with how many there are."""

import threading

from fedpca_flwr.protocol.admission import PartyInfo, unfit
from simulations.loopback import LoopbackProxy
from tests.families import cut, rows
from tests.harness import fit

LOOKS = 5
"""At one property of a party."""


def test_parties_are_not_compared_pair_by_pair(monkeypatch):
    looks = {"simulated": 0, "covariates": 0, "columns": 0, "features": 0}
    read = PartyInfo.__getattribute__

    def counted(info, name):
        if name in looks:
            looks[name] += 1
        return read(info, name)

    said = [PartyInfo(partition_id=i, num_partitions=50, simulated=True, features=3) for i in range(50)]
    monkeypatch.setattr(PartyInfo, "__getattribute__", counted)
    assert unfit(said, partitions=50, same_features=True) == []
    assert max(looks.values()) <= LOOKS * len(said), looks


def test_parties_with_little_work_are_asked_one_after_the_other(monkeypatch):
    asked, honest = [], LoopbackProxy.get_properties

    def noted(self, ins, timeout, group_id):
        asked.append(threading.current_thread())
        return honest(self, ins, timeout, group_id)

    monkeypatch.setattr(LoopbackProxy, "get_properties", noted)
    fit("p-cov", cut(rows(60), *[6] * 10), n_components=2)
    assert len(asked) == 10
    assert len(set(asked)) == 1
