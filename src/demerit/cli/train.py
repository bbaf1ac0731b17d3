"""The train commands."""

from __future__ import annotations

from demerit.cli import LazyGroup, make_app

HELP = """\
Train the network of the default model, or a vision-language model.

To teach the shipped network your task, use demerit teach.

[bold]Examples[/bold]

  demerit train compact -o mine --data lab=lerobot:~/data/so101 --set steps=500
  demerit train robometer -o mine --data lab=my_set --from robometer/Robometer-4B --set lora=32 --set steps=500
  demerit train roboreward -o graded --data lab=my_graded_set --held-out later=my_other_set
"""


class TrainGroup(LazyGroup):
    """The commands of `demerit train`."""

    table = {  # noqa: RUF012
        "compact": ("train_compact:compact", "Train the network of the default model."),
        "robometer": ("train_vlm:robometer", "Train a Robometer on progress, success and preferences."),
        "roboreward": ("train_vlm:roboreward", "Train a RoboReward on grades from 1 to 5."),
    }


app = make_app(TrainGroup, name="train", help=HELP, add_completion=False)
