"""The comparisons of many processes; what they measure is not tested, that they measure it is."""

from heatsolve.backends.choice import make
from heatsolve.ranks import Ranks
from heatsolve.study import processes


def test_comparisons(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "POINTS", 20)
    monkeypatch.setattr(processes, "FIELD", 40)
    monkeypatch.setattr(processes, "SECONDS_A_REPEAT", 1e-3)
    rows = list(processes.compare(make("numpy"), Ranks(), list(processes.COMPARISONS)))
    assert [row.name for row in rows] == ["halo", "output", "checkpoint"]
    for row in rows:
        assert row.seconds > 0.0 and row.plain > 0.0
        assert f"ratio {row.ratio:.3f}" in str(row)
    assert not list(tmp_path.iterdir())
