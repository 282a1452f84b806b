"""Case files that are none, have no end, or are made to do harm."""

import os
import pickle
import time
from pathlib import Path

import pytest
from test_restart import STEADY
from test_strangers import program

from heatsolve.case.load import MOST_BYTES, load, parse
from heatsolve.errors import CaseError

DEEP = 10_000
CASES = {
    "binary": os.urandom(64) + b"\xff",
    "UTF-16": STEADY.encode("utf-16"),
    "Latin 1": b"[case]\ntitle = 'Pl\xe4te'\n" + STEADY.encode(),
    "truncated": STEADY[: len(STEADY) // 2].encode(),
    "nothing": b"",
    "zeros": bytes(1000),
    "endless": bytes(MOST_BYTES + 1),
    "power": STEADY.replace('"x"', '"9**9**9**9"').encode(),
    "power of x": STEADY.replace('"x"', '"x/0 + x**9e99"').encode(),
    "parentheses": STEADY.replace('"x"', f'"{"(" * DEEP}x{")" * DEEP}"').encode(),
    "digits": STEADY.replace("24,", f"{'9' * 100_000},").encode(),
    "lists": STEADY.encode() + b"a = " + b"[" * DEEP + b"]" * DEEP,
    "tables": STEADY.encode() + b"a = " + b"{a=" * DEEP + b"1" + b"}" * DEEP,
    "a dotted key": STEADY.encode() + b"a" + b".a" * DEEP + b" = 1",
    "a dotted section": STEADY.encode() + b"[a" + b".a" * DEEP + b"]",
    "a dotted key in a table": STEADY.encode() + b"a = {a" + b" . 'a'" * DEEP + b" = 1}",
    "many mistakes": STEADY.encode() + b"".join(b"k%d = 1\n" % n for n in range(5000)),
    "a program": STEADY.replace('"x"', "\"__import__('os').system('touch owned')\"").encode(),
    "a pickle": pickle.dumps(os.system),
}


HANGING = 30.0
"""Seconds of work after which a parser is not slow, but loops or takes a power of the length."""


@pytest.mark.parametrize("kind", CASES)
def test_a_case_is_refused_in_a_moment(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("case.toml").write_bytes(CASES[kind])
    load("hotspot")  # what is imported once
    began = time.process_time()
    code, said = program(monkeypatch, "check", "case.toml")
    assert time.process_time() - began < HANGING
    assert code == 2
    assert said.count("\n") <= 21
    assert len(said) < 6000
    assert "Traceback" not in said
    assert os.listdir() == ["case.toml"]


def test_no_more_mistakes_than_a_screen_holds():
    with pytest.raises(CaseError) as caught:
        parse(CASES["many mistakes"].decode(), "case.toml")
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("case.toml:") and "k0: unknown key" in lines[0]
    assert lines[-1] == "case.toml: and 4980 more mistakes"


def test_dots_that_are_no_keys():
    dots = f"# {'.' * 500} = done\n" + f"# {'1.0, ' * 500}\n"
    case = parse(f"{dots}{STEADY}[case]\ntitle = '{'a. ' * 90}'\n", "case.toml")
    assert case.grid.counts == (24, 20)


def test_what_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder.toml").mkdir()
    Path("loop.toml").symlink_to("loop.toml")
    for name, code in (("folder.toml", 2), ("loop.toml", 6), ("/dev/zero", 2)):
        found, said = program(monkeypatch, "check", name)
        assert (found, said.count("\n")) == (code, 1)
