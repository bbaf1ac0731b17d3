"""What the rewards of a vision-language model are filed under.

    robometer                              robometer              a published checkpoint has its published name
    robometer:path=runs/ra/model           ra                     a folder has its own (or its parent's)
    robometer:path=someone/Robometer-ft    someone-Robometer-ft   so has anybody's on the hub
    roboreward:8b,adapter=runs/mine/model  roboreward-8b+mine     an adapter makes another model of it

No two of them may be filed together, and nothing trained further under a published name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from demerit.data.episode import safe_name
from demerit.models import MODELS
from demerit.models.loading import LOCAL
from demerit.models.vlm.hub import id_of

OUTPUT = "model"
"""the folder of every training's result: its parent is the one that a person named"""
ONE_OF_MANY = re.compile(r"(checkpoint|step|epoch)s?[-_]?\d*|ckpt|best|last|latest|final|merged|adapter|weights")
"""names that many folders have: the parent's is put before them"""


def filed_under(place: str, adapter: str | None, published: Mapping[str, str], prefix: str = "") -> str:
    """Name a model after the checkpoint that was asked for.

    Args:
        place: a folder or a hub id.
        adapter: likewise, of an adapter on it.
        published: names of published checkpoints by their hub ids.
        prefix: what stands before the name of any other.
    """
    known = _hub_id(place)
    if known is not None and known in published:
        name = published[known]
    else:
        name = prefix + called(place)
        if name.lower() in {each.lower() for each in (*published.values(), *MODELS)}:
            name += LOCAL
    return name if not adapter else f"{name}+{called(adapter)}"


def called(place: str) -> str:
    """Name a checkpoint: a folder by its last part that tells anything, a hub's by owner and name."""
    known = _hub_id(place)
    if known:
        owner, _, name = known.partition("/")
        return safe_name(name if name.lower().startswith(owner.lower()) else f"{owner}-{name}")
    folder = Path(os.path.abspath(Path(place).expanduser()))
    if folder.name == OUTPUT and folder.parent.name:
        return safe_name(folder.parent.name)
    if ONE_OF_MANY.fullmatch(folder.name) and folder.parent.name:
        return safe_name(f"{folder.parent.name}-{folder.name}")
    return safe_name(folder.name)


def _hub_id(place: str) -> str | None:
    """Return the hub id that is meant, also by the folder in which its files are kept; None for any other folder."""
    folder = Path(place).expanduser()
    return id_of(folder) if folder.is_dir() else place
