"""The command line: one function a command, each of which imports only what it needs."""

import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from heatsolve.errors import CaseError, FileFailure, HeatsolveError

app = typer.Typer(
    help="Stencil, heat and flow solver: one case file, any machine, the same bits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

CaseArgument = Annotated[str, typer.Argument(metavar="CASE", help="A case file or a shipped case.")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A file of results.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the case; repeatable."),
]
BackendOption = Annotated[
    str | None, typer.Option(help="auto, numpy, numba, cupy or cuda.", show_default="the case's")
]


@app.command()
def run(
    case: CaseArgument,
    backend: BackendOption = None,
    overrides: SetOption = None,
    output: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="./CASE.h5")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Run a case and write its fields."""
    from heatsolve.case import load
    from heatsolve.halo import find_ranks
    from heatsolve.report import Report
    from heatsolve.run import run as run_case

    # Else the unfinished file of results would stay behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ranks = find_ranks()
    report = Report(quiet or ranks.rank > 0)
    try:
        result = run_case(load(case, overrides or []), backend, output, report, ranks)
    except HeatsolveError as error:
        ranks.fail(sentence(error), error.exit_code)
        raise
    except Exception:
        ranks.fail(traceback.format_exc(), 1)
        raise
    finally:
        report.end()
    raise typer.Exit(result.exit_code)


@app.command()
def check(case: CaseArgument, backend: BackendOption = None, overrides: SetOption = None) -> None:
    """Say what a run of a case would do, without running it."""
    from heatsolve.case import load, locating
    from heatsolve.preview import preview

    loaded = load(case, overrides or [])
    with locating(loaded):
        for line in preview(loaded, backend):
            print(line)


@app.command()
def cases() -> None:
    """List the shipped cases."""
    from heatsolve.case import shipped

    titles = shipped()
    width = max(map(len, titles))
    for name, title in titles.items():
        print(f"{name:{width}}  {title}")


@app.command()
def new(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the case.")]) -> None:
    """Write a commented case file to start from."""
    from heatsolve.starter import write_starter

    path = write_starter(name)
    print(f"wrote {path}; run it with: heatsolve run {path}")


@app.command()
def info(file: FileArgument) -> None:
    """Summarise a file of results."""
    from heatsolve.output import summary

    print(summary(file))


@app.command()
def plot(
    file: FileArgument,
    field: Annotated[str | None, typer.Option(help="The field to draw.")] = None,
    history: Annotated[bool, typer.Option("--history", help="Draw the residual instead.")] = False,
    output: Annotated[Path | None, typer.Option(help="The PNG to write.")] = None,
) -> None:
    """Draw a field, or the history of the residual, as a PNG."""
    from heatsolve.postprocess.plot import plot as draw

    print(f"wrote {draw(file, output, field, history)}")


@app.command()
def bench(
    backend: Annotated[str, typer.Option(help="auto, numpy, numba, cupy or cuda.")] = "auto",
    only: Annotated[list[str] | None, typer.Option(help="One benchmark; repeatable.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file, too.")] = None,
) -> None:
    """Measure sweeps as fractions of this machine's copy bandwidth."""
    from heatsolve.study.bench import bench as measure
    from heatsolve.study.bench import write_json

    rows = []
    for row in measure(backend, only or ()):
        print(row, flush=True)
        rows.append(row)
    if json is not None:
        write_json(rows, json)


def sentence(error: HeatsolveError) -> str:
    """What the program says of an error: a mistake in a case begins with its place."""
    return str(error) if isinstance(error, CaseError) else f"heatsolve: {error}"


def main() -> None:
    """The program: an error that a user can cause is one sentence and its exit code."""
    try:
        app()
    except HeatsolveError as error:
        print(sentence(error), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"heatsolve: {error.strerror}: {error.filename or 'output'}", file=sys.stderr)
        sys.exit(FileFailure.exit_code)
    except KeyboardInterrupt:
        print("heatsolve: interrupted", file=sys.stderr)
        sys.exit(130)
    except MemoryError as error:
        print(f"heatsolve: not enough memory ({error})", file=sys.stderr)
        sys.exit(2)
