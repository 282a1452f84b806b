"""`heatsolve verify`: the lines, the table, and the exit code."""

import json

import pytest
from typer.testing import CliRunner

from heatsolve.cli import app
from heatsolve.errors import InputError
from heatsolve.tools import verify
from heatsolve.tools.verify import Line


@pytest.mark.few(1, among="numpy")
def test_lines_and_files(tmp_path, backend):
    rows, table = tmp_path / "rows.json", tmp_path / "table.md"
    names = ["cfdpython-05", "cfdpython-09", "--quick"]
    given = [*names, "--backend", backend, "--json", str(rows), "--markdown", str(table)]
    result = CliRunner().invoke(app, ["verify", *given])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "3 of 3 pass"
    found = json.loads(rows.read_text())
    assert [row["passed"] for row in found] == [True] * 3
    assert found[1]["reference"] == 231.8167538742652
    assert table.read_text().count("| pass |") == 3


def test_what_fails_has_an_exit_code(monkeypatch):
    def wrong(solve):
        yield Line("sum", "one and one", 2.0, 3.0, "none", 0.1)

    monkeypatch.setitem(verify.VERIFICATIONS, "wrong", wrong)
    result = CliRunner().invoke(app, ["verify", "wrong"])
    assert result.exit_code == 5
    assert "FAIL" in result.stdout and "0 of 1 pass" in result.stdout


def test_an_unknown_name():
    with pytest.raises(InputError, match=r"no verification 'cavity-re10'.*cavity-re100"):
        list(verify.verify(["cavity-re10"]))


def test_a_case_without_a_table(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("")
    for name in ("hotspot", str(own)):
        with pytest.raises(InputError, match="no table to verify: it would need quantities with"):
            list(verify.verify([name]))


def test_an_error_is_relative_where_a_scale_is_given():
    assert Line("a", "b", 9.0, 10.0, "", 0.1, 10.0).passed
    assert not Line("a", "b", 9.0, 10.0, "", 0.1).passed
    assert not Line("a", "b", float("nan"), 10.0, "", 0.1).passed
