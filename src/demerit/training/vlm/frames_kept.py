"""Which frames of an episode a corpus keeps, as its recipe says; a run with another recipe is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demerit.errors import BadInput
from demerit.training.compact.made_from import PREPARED, read_facts
from demerit.training.vlm.corpus import Corpus
from demerit.training.vlm.recipe import Recipe, RoboRewardRecipe


def frames_kept(recipe: Recipe) -> dict[str, Any]:
    """Tell which frames are kept, and how large; `fps` is None where they are spread evenly."""
    fps = recipe.fps if isinstance(recipe, RoboRewardRecipe) else None
    told = {name: getattr(recipe, name) for name in ("shorter_side", "most_frames", "fewest_frames")}
    return {**told, "fps": fps}


def corpus_for(folder: str | Path, recipe: Recipe) -> Corpus:
    """Open a corpus that was prepared for this recipe; what it says of itself must not contradict the recipe."""
    folder = Path(folder)
    corpus = Corpus.load(folder)
    facts = read_facts(folder)
    if facts is None:
        raise BadInput(str(folder), "a prepared corpus", f"a folder without {PREPARED}")
    wanted = frames_kept(recipe)
    kinds = ["robometer" if one is None else "roboreward" for one in (wanted["fps"], facts.get("fps"))]
    if kinds[0] != kinds[1]:
        raise BadInput(str(folder), f"a corpus that was prepared for {kinds[0]}", f"one for {kinds[1]}")
    for name, value in wanted.items():
        if facts.get(name) != value:
            expected = f"a corpus with {name} {value}, as the recipe says (--set {name}=... changes the recipe)"
            raise BadInput(str(folder), expected, f"one with {name} {facts.get(name)}")
    return corpus
