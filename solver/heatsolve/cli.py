"""The command line: one function a command, which imports the rooms that it needs."""

import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated

import typer

from heatsolve.errors import (
    ExitCode,
    FileFailure,
    HeatsolveError,
    InputError,
    Interrupted,
    sentence,
)
from heatsolve.report import complain, emit, prepare

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CaseArgument = Annotated[str, typer.Argument(metavar="CASE", help="A case file or a shipped case.")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A file of results.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the case; KEY= removes it; repeatable.",
    ),
]
SliceOption = Annotated[
    list[str] | None,
    typer.Option("--slice", metavar="AXIS=POSITION", help="Cut across an axis; repeatable."),
]
LimitsOption = Annotated[
    str | None,
    typer.Option(metavar="LOW,HIGH", help="The values shown, as -1,1.", show_default="all"),
]
BackendOption = Annotated[
    str | None, typer.Option(help="auto, numpy, numba, cupy or cuda.", show_default="the case's")
]
MeasuredBackendOption = Annotated[str, typer.Option(help="auto, numpy, numba, cupy or cuda.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The file to write.", show_default="./CASE.h5"),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse keys of the case that have no effect.")
]


def _version(wanted: bool) -> None:
    if wanted:
        from heatsolve import __version__

        print(f"heatsolve {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Stencil, heat and flow solver: one case file, any machine, the same bits.

    Exit codes: 0 done, 2 bad input, 3 not converged, 4 diverged, 5 a comparison failed, 6 a file
    failed, 75 stopped with a checkpoint, 130 Ctrl-C; see docs/output.md, "Exit codes".
    """


@app.command()
def run(
    case: CaseArgument,
    backend: BackendOption = None,
    overrides: SetOption = None,
    output: OutputOption = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Go on from the newest checkpoint, if there is one.")
    ] = False,
    restart_from: Annotated[
        Path | None, typer.Option(help="Go on from this checkpoint.", metavar="CHECKPOINT")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew though a run is unfinished.")
    ] = False,
    strict: StrictOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Run a case and write its fields.

    SIGTERM and SIGUSR1 end it with a checkpoint and exit code 75, Ctrl-C with 130.
    """
    from heatsolve.control.stop import StopRequest

    request = StopRequest()
    request.listen()
    from heatsolve.case.load import load
    from heatsolve.control.controller import Start
    from heatsolve.parallel.ranks import failing_together, find_ranks
    from heatsolve.report import Report
    from heatsolve.runner import run as run_case

    request.hold()  # no process may leave while MPI brings all together
    ranks = find_ranks()
    request.mute = ranks.rank > 0
    request.watch(ranks.leave)
    report = Report(quiet, mute=ranks.rank > 0)
    start = Start(restart, restart_from, overwrite)
    try:
        with failing_together(ranks):
            request.release()
            if restart + (restart_from is not None) + overwrite > 1:
                raise InputError("--restart, --restart-from and --overwrite exclude each other")
            loaded = load(case, overrides or [])
            result = run_case(loaded, backend, output, report, ranks, start, request, strict)
            request.release()
        if ranks.rank == 0 and loaded.output.drawn:
            from heatsolve_post import draw

            draw(result.path, loaded.output, report.line, report.warn)
    except Interrupted as error:
        if ranks.rank > 0:  # rank 0 reports it for all
            raise typer.Exit(error.exit_code) from None
        raise
    except KeyboardInterrupt:
        raise Interrupted("interrupted", ExitCode.INTERRUPTED) from None
    finally:
        request.answered = True
        report.end()
    raise typer.Exit(result.exit_code)


@app.command()
def check(
    case: CaseArgument,
    backend: BackendOption = None,
    overrides: SetOption = None,
    ranks: Annotated[int, typer.Option(min=1, help="Processes of the run.")] = 1,
    machine: Annotated[
        str | None,
        typer.Option(help="The machine whose speed is used: h200.", show_default="this one"),
    ] = None,
    untimed: Annotated[bool, typer.Option("--untimed", help="Leave out the time.")] = False,
    strict: StrictOption = False,
) -> None:
    """Say what a run of a case would do, and how long it takes at least."""
    from heatsolve.case.load import load, locating
    from heatsolve.report import Report
    from heatsolve.tools.check import preview

    loaded = load(case, overrides or [])
    with locating(loaded):
        for line in preview(loaded, backend, ranks, Report(), strict, not untimed, machine):
            print(line)


@app.command()
def cases(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The case to print.")] = None,
) -> None:
    """List the shipped cases, or print one of them."""
    from heatsolve.case.load import shipped, text_of, title

    if name is not None:
        print(text_of(name), end="")
        return
    names = shipped()
    width = max(map(len, names))
    for name in names:
        print(f"{name:{width}}  {title(name)}")


@app.command()
def new(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of the case; by default CASE's.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="CASE", help="Copy a case file or a shipped case."),
    ] = None,
) -> None:
    """Write a commented case file to start from, or a copy of a case."""
    from heatsolve.tools.template import write_copy, write_starter

    if name is None and source is None:
        raise InputError("heatsolve new needs a name for the case, or --from CASE")
    path = write_starter(name or "") if source is None else write_copy(source, name)
    print(f"wrote {path}; run it with: heatsolve run {path}")


@app.command()
def info(file: FileArgument) -> None:
    """Summarise a file of results."""
    from heatsolve.io.reader import summary

    print(summary(file))


@app.command()
def gather(
    file: FileArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The plain file to write; it may be FILE.")
    ],
) -> None:
    """Make one plain file of results that lie in the parts of many processes."""
    from heatsolve.io.writer import gather as write_plain

    write_plain(file, output)
    print(f"wrote {output}")


@app.command()
def submit(
    case: CaseArgument,
    time: Annotated[str, typer.Option(metavar="H:M:S", help="Wall time of one job of the chain.")],
    nodes: Annotated[int, typer.Option(help="Nodes of the job.")] = 1,
    ranks_per_node: Annotated[int, typer.Option(help="Processes on each node.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs on each node.")] = 0,
    backend: BackendOption = None,
    overrides: SetOption = None,
    output: OutputOption = None,
    partition: Annotated[str | None, typer.Option(help="Partition of the cluster.")] = None,
    account: Annotated[str | None, typer.Option(help="Account to charge.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script; write and submit nothing.")
    ] = False,
) -> None:
    """Run a case under Slurm, in as many jobs as it takes: write CASE.sbatch and submit it."""
    from heatsolve.tools.submit import Resources, script_for
    from heatsolve.tools.submit import submit as submit_script

    resources = Resources(time, nodes, ranks_per_node, gpus_per_node, partition, account)
    name, script = script_for(case, resources, overrides or [], backend, output)
    if dry_run:
        emit(script)
    else:
        job = submit_script(name, script)
        print(f"submitted {name}.sbatch as job {job}, which writes to {name}-{job}.out")


@app.command()
def plot(
    file: FileArgument,
    field: Annotated[
        str | None, typer.Option(help="The field to draw; with --history, the column.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Draw how the norm fell, or FIELD of the history.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The PNG, PDF or SVG to write.")
    ] = None,
    slices: SliceOption = None,
    at_time: Annotated[
        float | None, typer.Option(help="The time of the frame to draw.", show_default="its end")
    ] = None,
    vectors: Annotated[
        bool, typer.Option("--vectors", help="Draw arrows of the velocity, too.")
    ] = False,
    streamlines: Annotated[
        bool, typer.Option("--streamlines", help="Draw streamlines, too.")
    ] = False,
    log: Annotated[bool, typer.Option("--log", help="Use a logarithmic scale.")] = False,
    limits: LimitsOption = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="Draw OTHER and the difference, too.")
    ] = None,
) -> None:
    """Draw a field, or a column of the history: a line, a plane, or three planes in space."""
    from heatsolve_post.plot import plot as draw
    from heatsolve_post.view import parse_slices

    path = draw(file, output, field, history, slices=parse_slices(slices or []), at_time=at_time,
                vectors=vectors, streamlines=streamlines, log=log, limits=limits,
                compare=compare)  # fmt: skip
    print(f"wrote {path}")


@app.command()
def animate(
    file: FileArgument,
    field: Annotated[str | None, typer.Option(help="The field to show.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The MP4 or GIF to write.",
            show_default="FILE_FIELD.mp4, or .gif",
        ),
    ] = None,
    rate: Annotated[int, typer.Option(help="Frames a second.")] = 15,
    slices: SliceOption = None,
    limits: LimitsOption = None,
) -> None:
    """Draw the frames of a field as a film."""
    from heatsolve_post.animate import animate as draw
    from heatsolve_post.view import parse_slices

    print(f"wrote {draw(file, output, field, rate, parse_slices(slices or []), limits)}")


@app.command()
def report(
    file: FileArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page to write.", show_default="FILE.html"),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="Copy bandwidth of the run's machine, GB/s.", show_default="measured"),
    ] = None,
) -> None:
    """Write a page about a run: fields, profiles, convergence, speed, environment, the case."""
    from heatsolve.tools.measure import copy_bandwidth
    from heatsolve_post.page import report as write

    if bandwidth is not None and not 0 < bandwidth < 1e9:
        raise InputError(f"--bandwidth must be a number of GB/s, not {bandwidth:g}")
    print(f"wrote {write(file, output, bandwidth * 1e9 if bandwidth else copy_bandwidth)}")


@app.command()
def compare(
    file: FileArgument,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="Another file of results.")],
    field: Annotated[list[str] | None, typer.Option(help="One field; repeatable.")] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Largest difference, relative to the largest value.", show_default="bit for bit"
        ),
    ] = 0.0,
) -> None:
    """Say how far apart the fields of two files are, and where first; exit code 5 if they are.

    Of different grids the finer is interpolated to the points of the coarser.
    """
    from heatsolve_post.compare import Remark
    from heatsolve_post.compare import compare as differences

    same = True
    for difference in differences(file, other, field or (), tolerance):
        print(difference)
        if isinstance(difference, str):
            same = same and isinstance(difference, Remark)
        else:
            same = same and not difference.differing
    raise typer.Exit(0 if same else ExitCode.FAILED)


@app.command()
def doctor() -> None:
    """Look at this machine: packages, threads, GPUs, MPI, files; exit code 2 if there is an error.

    Under mpiexec or srun: also how the processes, and their GPUs, reach each other.
    """
    from heatsolve.tools.doctor import diagnose

    worst = 0
    for finding in diagnose():
        print(finding, flush=True)
        worst = max(worst, InputError.exit_code if finding.level == "error" else 0)
    raise typer.Exit(worst)


@app.command()
def bench(
    backend: MeasuredBackendOption = "auto",
    only: Annotated[list[str] | None, typer.Option(help="One benchmark; repeatable.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the rows as bars in this image.")] = None,
) -> None:
    """Measure sweeps and solvers in units of this machine's copy bandwidth.

    Under mpiexec: the cost of the halo, the output and the checkpoints of these processes.
    """
    from heatsolve.io.disk import target_of, write_json
    from heatsolve.parallel.ranks import failing_together, find_ranks
    from heatsolve.tools.bench import bench as measure
    from heatsolve.tools.bench import records

    for path in filter(None, (json, plot)):
        target_of(path)
    if plot is not None:
        from heatsolve_post.curves import bench_figure
        from heatsolve_post.style import image_format, save

        image_format(plot)  # a mistake is told before the minutes of measuring
    ranks = find_ranks()
    rows = []
    with failing_together(ranks):
        for row in measure(backend, only or (), ranks=ranks):
            if ranks.rank == 0:
                print(row, flush=True)
            rows.append(row)
        if ranks.rank == 0:
            table = records(rows, ranks)
            if json is not None:
                write_json(json, table)
            if plot is not None:
                print(f"wrote {save(bench_figure(table), plot)}")


@app.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    backend: MeasuredBackendOption = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller runs.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the lines to this file as JSON.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write them to this file as a table.")
    ] = None,
) -> None:
    """Run shipped cases against exact solutions and the literature; exit code 5 if one fails."""
    from heatsolve.io.disk import target_of, write_json
    from heatsolve.tools.verify import records, write_markdown
    from heatsolve.tools.verify import verify as verifying

    for path in filter(None, (json, markdown)):
        target_of(path)  # a mistake is told before the minutes of computing
    lines = []
    for line in verifying(names or (), backend, quick):
        print(line, flush=True)
        lines.append(line)
    if json is not None:
        write_json(json, records(lines))
    if markdown is not None:
        write_markdown(lines, markdown)
    failed = sum(not line.passed for line in lines)
    print(f"{len(lines) - failed} of {len(lines)} pass")
    raise typer.Exit(ExitCode.FAILED if failed else 0)


@app.command()
def scale(
    kind: Annotated[str, typer.Argument(metavar="weak|strong|collect", help="What to do.")],
    target: Annotated[
        str | None,
        typer.Argument(metavar="[CASE|DIR]", help="A case; of collect the study's folder.",
                       show_default="weak, strong: legate-stencil"),
    ] = None,
    ranks: Annotated[str, typer.Option(help="Numbers of processes.")] = "1,2",
    backend: BackendOption = None,
    per_rank: Annotated[
        float | None,
        typer.Option(help="Unknowns of a process; strong: of the case.",
                     show_default="weak: 12264004, strong: the case's"),
    ] = None,
    launcher: Annotated[str, typer.Option(help="mpiexec or srun.")] = "mpiexec",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the study.", show_default="scale-KIND-CASE"),
    ] = None,
    overrides: SetOption = None,
    model: Annotated[
        bool, typer.Option("--model", help="Predict more processes, up to 2048, by a model.")
    ] = False,
    sbatch: Annotated[
        bool, typer.Option("--sbatch", help="Write job scripts of Slurm instead of running.")
    ] = False,
    ranks_per_node: Annotated[int, typer.Option(help="With --sbatch: processes on each node.")] = 1,
    time: Annotated[
        str, typer.Option(metavar="H:M:S", help="With --sbatch: wall time of each job.")
    ] = "0:20:00",
) -> None:  # fmt: skip
    """Measure a case on more and more processes: a table, and a figure with the ideal line.

    weak: each process has as many unknowns; strong: all share the same ones. With --sbatch the
    sizes are jobs, and `heatsolve scale collect DIR` gathers what they measured.
    """
    from heatsolve.report import Report
    from heatsolve.tools import scaling

    choices = (*scaling.KINDS, "collect")
    if kind not in choices:
        raise InputError(f"scale {kind!r}: must be {', '.join(choices[:-1])} or {choices[-1]}")
    if launcher not in scaling.LAUNCHERS:
        raise InputError(f"--launcher {launcher!r} must be {' or '.join(scaling.LAUNCHERS)}")
    if kind == "collect":
        if target is None:
            raise InputError("scale collect needs a study's folder: heatsolve scale collect DIR")
        folder = Path(target)
    else:
        target = target or "legate-stencil"
        size = per_rank if per_rank is not None or kind == "strong" else scaling.PER_RANK
        study, counts = scaling.plan(kind, target, ranks, backend, size, overrides or [], output)
        folder = study.folder
        if sbatch:
            for path in scaling.write_jobs(study, counts, ranks_per_node, time):
                print(f"wrote {path}")
            print(f"submit them with sbatch, and then: heatsolve scale collect {folder}")
            return
        for number, count in enumerate(counts, 1):
            scaling.launch(study, count, launcher)
            print(f"launch {number} of {len(counts)} measured: {count} processes", flush=True)
    from heatsolve_post.curves import scaling_figure, time_line_figure
    from heatsolve_post.style import save

    measured = scaling.records(folder, Report().warn)
    predicted = list(scaling.prediction(measured)) if model else []
    sizes = scaling.table(measured)
    print(scaling.markdown(sizes), end="")
    for count, rate in predicted:
        print(f"model: {count} processes, {rate:.4g} unknowns/s each, "
              f"efficiency {rate / predicted[0][1]:.3f}")  # fmt: skip
    if said := scaling.checked(measured, predicted):
        print(said)
    for path in scaling.write(folder, measured):
        print(f"wrote {path}")
    drawing = scaling_figure(sizes, predicted, scaling.title(measured))
    print(f"wrote {save(drawing, folder / 'scaling.png')}")
    if spans := measured[-1]["timeline"]:
        drawing = time_line_figure(spans, scaling.title(measured[-1:]))
        print(f"wrote {save(drawing, folder / 'timeline.png')}")


def refuse_empty(words: Sequence[str]) -> None:
    """Raise InputError for an option with an empty value: "" would be the current folder."""
    options = takewhile(lambda word: word != "--", words)
    for option, value in pairwise([*options, "--"]):
        if option.startswith("-") and (not value or re.fullmatch(r"--[\w-]+=", option)):
            raise InputError(f"{option.rstrip('=')} is given nothing")


def main() -> None:
    """The program: an error that a user can cause is one sentence and its exit code."""
    prepare()
    # Pictures go to files: no windows, no cells of a notebook.
    os.environ["MPLBACKEND"] = "agg"
    try:
        import heatsolve.io.disk  # noqa: F401  refuses systems without file locks

        refuse_empty(sys.argv[1:])
        app()
    except HeatsolveError as error:
        complain(sentence(error))
        sys.exit(error.exit_code)
    except OSError as error:
        complain(f"heatsolve: {error.strerror}: {error.filename or 'output'}")
        sys.exit(FileFailure.exit_code)
    except KeyboardInterrupt:
        complain("heatsolve: interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except MemoryError as error:
        complain(f"heatsolve: not enough memory ({error})")
        sys.exit(ExitCode.BAD_INPUT)
