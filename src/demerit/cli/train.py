"""The train commands, one for everything that can be trained."""

from __future__ import annotations

from collections.abc import Callable

import typer

from demerit.cli.train_compact import compact
from demerit.cli.train_vlm import robometer, roboreward

HELP = """\
Train the default model's network anew, or a vision-language model; to fit the one that ships, use demerit teach.

[bold]Examples[/bold]

  demerit train compact -o mine --data lab=lerobot:~/data/so101 --set steps=500
  demerit train robometer -o mine --data lab=my_set --from robometer/Robometer-4B --set lora=32 --set steps=500
  demerit train roboreward -o graded --data lab=my_graded_set --held-out later=my_other_set
"""
COMMANDS: dict[str, Callable[..., None]] = {"compact": compact, "robometer": robometer, "roboreward": roboreward}
app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="rich")
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
