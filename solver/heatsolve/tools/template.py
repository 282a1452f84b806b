"""A commented case file to start from: the answer of `heatsolve new`."""

import re
from pathlib import Path

from heatsolve.case.load import parse, read
from heatsolve.errors import InputError
from heatsolve.io.disk import write_text
from heatsolve.stencil.expressions import quoted

STARTER = """\
# NAME: a copper plate that a chip heats and air cools, in two dimensions.
#
#   div(k grad T) + q = 0        T temperature (K), k conductivity (W/(m K)), q heat source (W/m3)
#
# heatsolve check NAME.toml      says what a run would do
# heatsolve run NAME.toml        writes NAME.h5, which xarray, h5py and (by NAME.xdmf) ParaView open
# heatsolve plot NAME.h5         draws the temperature
#
# Any key can be changed for one run: heatsolve run NAME.toml --set constants.power=5e7

schema = 1

[case]
title = "NAME: a heated plate"
description = "Two dimensions, a heat source, one wall of each kind."

[constants] # names for expressions, each may use those before it
width = 0.10 # m
height = 0.05
chip = "0.1*width" # radius of the chip, m
power = 2e7 # W/m3
ambient = 293.15 # K

[model]
kind = "heat"
steady = true # false: march in time, see [time] below
conductivity = 400 # W/(m K); a number, or an expression in x, y and the constants
# density = 8960 # kg/m3, for a transient case
# specific_heat = 385 # J/(kg K)

[grid]
nodes = [101, 51] # points along x and y, walls included; or cells = [100, 50]
lower = [0, 0]
upper = ["width", "height"]
# periodic = ["x"] # such an axis has no walls

[initial] # where the iteration, or the march in time, starts
temperature = "ambient"

[source] # the chip in the middle; wherever a number may stand, an expression may
temperature = "where((x - width/2)**2 + (y - height/2)**2 < chip**2, power, 0)"

# [[source.point]] # a source at one point, by index = [i, j] or by position
# field = "temperature"
# position = [0.02, 0.01]
# value = 1e8

[boundary.left] # a given temperature
temperature = { value = "ambient + 20*y/height" }

[boundary.right] # a given outward derivative dT/dn; 0 is an insulated wall
temperature = { gradient = 0 }

[boundary.bottom] # moving air: -k dT/dn = h (T - ambient)
temperature = { robin = { h = 50, ambient = "ambient" } }

[boundary.top]
temperature = { robin = { h = 50, ambient = "ambient" } }

[solver]
method = "auto" # or "jacobi", "sor", "chebyshev", "cg", "multigrid", "mgcg", "fft"
monitor = "residual" # or "update"
norm = "l2" # or "max"
relative = true # measure the residual by the size of the right side
tolerance = 1e-8
max_iterations = 10000

# [time] # with steady = false
# end = 60 # s
# step = 0.5
# scheme = "crank-nicolson" # or "explicit", "backward-euler"

[output]
fields = ["temperature"]
# every = 10 # steps between frames of a transient case

[parallel]
backend = "auto" # the fastest that works here; or "numpy", "numba", "cupy", "cuda"

[units] # names that the output carries
temperature = "K"
length = "m"
# time = "s" # of a transient case
"""


def write_starter(name: str) -> Path:
    """Write NAME.toml, a case to start from, in the current directory and return its path.

    Raises InputError for a name that is no plain file name and for a file that is there already,
    FileFailure when it cannot be written.
    """
    path = _path_for(name)
    return _write(path, STARTER.replace("NAME", path.stem))


def write_copy(source: str, name: str | None = None) -> Path:
    """Write a copy of a case, by default under its own name, and return its path.

    Raises as `write_starter`, and as `case.load` for what is no case.
    """
    found = read(source)
    parse(found.text, found.name)
    return _write(_path_for(name or Path(source).stem), found.text)


def _path_for(name: str) -> Path:
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise InputError(
            f"{quoted(name)} is no name for a case: write letters, digits, _, - and ., "
            "a letter, digit or _ first"
        )
    return Path(f"{name.removesuffix('.toml')}.toml")


def _write(path: Path, text: str) -> Path:
    try:
        write_text(path, text, new=True)
    except FileExistsError:
        raise InputError(f"{path} exists already, and is not overwritten") from None
    return path
