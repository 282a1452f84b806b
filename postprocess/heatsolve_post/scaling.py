"""The figure of a scaling study: throughput of a process and efficiency, over processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from heatsolve_post.bars import OTHER, OWN
from heatsolve_post.pieces import drawing_style, save

SIZE = (3.5, 4.2)


def plot_scaling(
    sizes: Sequence[Any],
    output: Path,
    model: Sequence[tuple[int, float]] = (),
    title: str = "",
) -> Path:
    """Draw the sizes of a study (see `study.scaling.Size`), and a model of more; the image's path.

    The title says what was measured. Raises InputError for an image format that there is not,
    FileFailure where it cannot be written.
    """
    return save(figure(sizes, model, title), Path(output))


@drawing_style()
def figure(
    sizes: Sequence[Any], model: Sequence[tuple[int, float]] = (), title: str = ""
) -> Figure:
    """Two panels over the number of processes: throughput with its spread, and efficiency."""
    drawing = Figure(figsize=SIZE)
    above, below = drawing.subplots(2, 1, sharex=True)
    ranks = [size.ranks for size in sizes]
    reference = sizes[0].throughput
    scale, name = prefix(reference)
    middle = [size.throughput / scale for size in sizes]
    errors = [
        [(size.throughput - size.lowest) / scale for size in sizes],
        [(size.highest - size.throughput) / scale for size in sizes],
    ]
    above.axhline(reference / scale, color=OTHER, linewidth=0.9, label="ideal")
    above.errorbar(ranks, middle, errors, color=OWN, marker="o", markersize=4, capsize=2,
                   label="measured")  # fmt: skip
    below.axhline(1.0, color=OTHER, linewidth=0.9)
    below.plot(ranks, [size.efficiency for size in sizes], color=OWN, marker="o", markersize=4)
    highest = max([size.highest for size in sizes] + [rate for _, rate in model]) / scale
    beyond = [(count, rate) for count, rate in model if count >= ranks[-1]]
    if beyond:
        many, rates = zip(*beyond, strict=True)
        dashed = {"color": "#c1666b", "linestyle": (0, (4, 2))}
        above.plot(many, [rate / scale for rate in rates], label="model", **dashed)
        below.plot(many, [rate / reference for rate in rates], **dashed)
    above.set_ylim(0.0, 1.15 * highest)
    below.set_ylim(0.0, 1.15 * max(1.0, highest * scale / reference))
    above.set_ylabel(f"{name}unknowns/s a process")
    below.set_ylabel("efficiency")
    below.set_xlabel("processes")
    above.set_title(title, fontsize=8, loc="left", parse_math=False)
    drawing.legend(loc="outside upper right", ncols=3, fontsize=8)
    for ax in (above, below):
        _over_processes(ax, sorted({*ranks, *[count for count, _ in beyond]}))
    return drawing


def _over_processes(ax: Axes, counts: Sequence[int]) -> None:
    """An axis of powers of two; many of them share the room of eight labels."""
    ax.set_xscale("log", base=2)
    shown = counts[:: max(1, -(-len(counts) // 8))]
    ax.set_xticks(shown, [str(count) for count in shown])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", which="minor", length=0)
    ax.spines[["top", "right"]].set_visible(False)


def prefix(value: float) -> tuple[float, str]:
    """The unit in which a number is written: 1e6 and "M"."""
    for scale, name in ((1e9, "G "), (1e6, "M "), (1e3, "k ")):
        if value >= scale:
            return scale, name
    return 1.0, ""
