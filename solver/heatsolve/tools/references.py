"""Figures of the literature that verifications compare with."""

LESSONS: dict[str, tuple[str, float, int]] = {
    "cfdpython-01": ("concentration", 51.9994559586048, 0),
    "cfdpython-02": ("velocity_x", 45.0254251598721, 0),
    "cfdpython-03": ("concentration", 51.9994784879949, 0),
    "cfdpython-04": ("velocity_x", 384.223887567688, 0),
    "cfdpython-05": ("concentration", 7001.99968515438, 0),
    "cfdpython-06": ("velocity_x", 10760.833754631883, 0),
    "cfdpython-07": ("concentration", 1074.844853661326, 0),
    "cfdpython-08": ("velocity_x", 1796.079269618067, 0),
    "cfdpython-09": ("temperature", 231.8167538742652, 1132),
    "cfdpython-10": ("temperature", 0.0, 100),
    "cfdpython-11": ("velocity_x", 57.125839299091, 700),
    "cfdpython-12": ("velocity_x", 3892.64070952243, 499),
    "legate-cfd": ("velocity_x", 1.8327658261354953, 51),
}
"""By case: a field, its sum, and the number of iterations or steps, or 0."""

CAVITIES: dict[
    int, tuple[tuple[float, float, float], str, dict[int, tuple[float, float]], bool]
] = {
    100: (
        (-0.2140433, 0.1795746, -0.2538052), "limit of the scheme",
        {64: (0.01, 0.01), 128: (0.002, 0.002)}, True,
    ),
    400: (
        (-0.3287349, 0.3038402, -0.4540727), "limit of the scheme",
        {64: (0.03, 0.03), 128: (0.008, 0.008)}, True,
    ),
    1000: (
        (-0.3885698, 0.3769447, -0.5270771), "Botella, Peyret 1998",
        {64: (0.025, 0.03), 128: (0.007, 0.008), 256: (0.002, 0.0022)}, False,
    ),
}  # fmt: skip
"""By Reynolds number: lowest u on x = 1/2, highest and lowest v on y = 1/2; their source; by cells
the tolerances of u and of v; and whether these are relative. The limits of the scheme are those of
a second-order central staggered scheme on 128 and 256 cells, by Richardson's extrapolation."""

CONVECTION: dict[str, tuple[float, str, dict[int, float]]] = {
    "1e4": (2.24481576, "spectral, de Vahl Davis 1983: 2.243", {32: 0.012, 64: 0.003, 128: 0.0008}),
    "1e5": (4.52164, "spectral, de Vahl Davis 1983: 4.519", {32: 0.04, 64: 0.01, 128: 0.003}),
}
"""By Rayleigh number: the mean Nusselt number, its source, and by cells the relative tolerance.
The first number of cells is for a quick verification."""

PLATE = 0.06797166811306164
"""T of `hot-plate` at (1/4, 1/4): its series in 40 digits."""

CYLINDER = {
    "drag": (5.57953523, {41: 0.03, 123: 0.01}),
    "lift": (0.010618948, {41: 0.05, 123: 0.02}),
    "pressure": (0.117520167, {41: 0.06, 123: 0.01}),
}
"""Of the steady cylinder: coefficients of drag and lift, the difference of pressures before and
behind it; the spectral values of Nabh 1998; by cells across the channel the relative tolerance."""

EDDIES: tuple[tuple[str, float, dict[int, float]], ...] = (
    ("end of the lower eddy", 6.10, {32: 0.04, 64: 0.015}),
    ("begin of the upper eddy", 4.85, {32: 0.1, 64: 0.04}),
    ("end of the upper eddy", 10.48, {32: 0.03, 64: 0.015}),
)
"""Behind the step: what, where, by cells across the channel the relative tolerance."""

DISSIPATION = (0.01285753, 8.97)
"""The largest loss of energy of `taylor-green-3d`, a unit of volume, and its time; spectral
solution with 512^3 modes of the Workshop on High-Order CFD Methods 2012, problem C3.5."""
