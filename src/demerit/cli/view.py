"""The view command: a local page that browses episodes."""

from __future__ import annotations

import tempfile
import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import out
from demerit.cli.options import CameraOption, DatasetArgument, InstructionOption, SourceOptions, reader_options
from demerit.cli.scoring import score_with_bar
from demerit.data.episode import count_episodes
from demerit.data.formats import open_dataset
from demerit.models import load_model
from demerit.use.view.page import EpisodeViewer
from demerit.use.view.server import LocalServer


def view(
    dataset: DatasetArgument,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", metavar="NAME", help="Score what is missing with this model first; repeatable."),
    ] = None,
    rewards: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A folder of rewards that is not next to the dataset; repeatable."),
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 = a free one.")] = 8010,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    instruction: InstructionOption = "",
    camera: CameraOption = None,
    options: SourceOptions = None,
) -> None:
    """Browse episodes with their videos, labels and every model's curves, in your browser.

    The rewards that `demerit score` stored are shown without loading a model. Nothing but this machine can open the
    page. Ctrl-C ends it.

    [bold]Examples[/bold]

      demerit view my_set
      demerit view my_set --model ./my-model --model clock
      demerit view lerobot:~/data/so101 --camera wrist --port 0 --no-browser
    """
    opens = partial(open_dataset, dataset, camera=camera, **reader_options(options, False, instruction))
    for name in models or ():
        score_with_bar(opens(), load_model(name))
    with tempfile.TemporaryDirectory(prefix="demerit-view-", ignore_cleanup_errors=True) as cache:
        viewer = EpisodeViewer(opens, Path(cache), rewards or ())
        server = LocalServer(viewer.routes(), port=port)
        known = ", ".join(model.name for model in viewer.index.models) or "no model"
        count = count_episodes(len(viewer.index.columns["id"]))
        out.print(escape(f"{count}, rewards of {known}: {server.url} (Ctrl-C ends it)"))
        for problem in viewer.index.problems:
            out.print(f"  [yellow]{escape(problem)}[/yellow]")
        if not no_browser:
            webbrowser.open(server.url)
        server.run()
