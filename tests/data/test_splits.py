"""Splits: bundles are never parted, shares are kept, leaks and overlaps are found."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import Edit, Episode, Origin
from demerit.data.frames import Frames
from demerit.data.splits import (
    SplitAssigner,
    deal,
    describe_leaks,
    find_leaks,
    find_overlap,
    is_evaluation_split,
    normalize_split,
    same_split,
)
from demerit.errors import BadInput


def episode(id: str, instruction: str, split: str, seed: int, **origin: Any) -> Episode:
    images = np.random.default_rng(seed).integers(0, 255, (4, 4, 4, 3), dtype=np.uint8)
    return replace(Episode.from_array(images, instruction, id=id), origin=Origin(split=split, **origin))


def kinds(*episodes: Episode) -> dict[str, tuple[str, ...]]:
    return {leak.kind: leak.episodes for leak in find_leaks(episodes)}


def test_leaks_between_splits() -> None:
    first = episode("a", "open it", "train", 0)
    assert not find_leaks([first, episode("b", "close it", "test", 1), episode("c", "x", "", 0)])
    assert not find_leaks([first, episode("b", "open it", "train", 0)])
    assert kinds(first, episode("b", "Open  it.", "test", 1)) == {"task": ("a", "b")}
    clip = replace(first.select([0, 1]), id="b", instruction="close it", origin=Origin(split="test"))
    assert kinds(first, clip) == {"video": ("a", "b")}
    recorded = [episode("a", "x", "train", 0, group="g"), episode("b", "y", "val", 1, group="g")]
    assert kinds(*recorded) == {"recording": ("a", "b")}
    assert kinds(first, episode("b", "y", "test", 1, parent="a")) == {"original": ("a", "b")}
    # An instruction written by an edit shares its wording, not its task.
    edited = replace(episode("b", "open it", "test", 1), edits=(Edit("counterfactual", {}),))
    assert kinds(first, edited) == {"wording": ("a", "b")}
    assert kinds(first, episode("c", "open it", "val", 2), edited) == {"task": ("a", "c")}
    many = [episode(f"{i}{split}", f"task {i}", split, 100 * i + len(split)) for i in range(5) for split in ("a", "bb")]
    (sentence,) = describe_leaks(find_leaks(many))
    assert "5 tasks" in sentence and "10 episodes" in sentence and "and 2 more" in sentence


def test_a_typo_is_no_other_task() -> None:
    written = [episode("a", "open the drawer", "train", 0), episode("b", "Open the drawr.", "test", 1)]
    (leak,) = find_leaks(written)
    assert (leak.kind, leak.episodes) == ("task", ("a", "b")) and "drawr" in leak.what and "drawer" in leak.what
    edited = replace(written[1], edits=(Edit("counterfactual", {}),))
    assert kinds(written[0], edited) == {"wording": ("a", "b")}
    assert not find_leaks([written[0], episode("b", "open the drawer and close it", "test", 1)])
    tagged = [
        episode("a", "x", "train", 0, tags={"task": "drawer"}),
        episode("b", "y", "test", 1, tags={"task": "drawr"}),
    ]
    assert not find_leaks(tagged), "names of tasks are exact"
    found = find_overlap("bench", [episode("x", "open teh drawer", "", 7)], written)
    assert found.tasks == ("open the drawer", "open the drawr")


def test_typos_are_not_parted() -> None:
    texts = [
        "open the drawer",
        "wipe the table",
        "fold the towel",
        "stack the plates",
        "pour the water",
        "push the button",
    ]
    episodes = [tied(f"{number}{copy}", number, 20 * number + copy, 0, 0) for number in range(6) for copy in range(2)]
    spelled = [[text, text[:-3] + text[-2] + text[-3] + text[-1]] for text in texts]
    episodes = [replace(one, instruction=spelled[index // 2][index % 2]) for index, one in enumerate(episodes)]
    for seed in range(10):
        found = assign(episodes, seed)
        assert len(set(found.values())) > 1
        assert all(found[f"{number}0"] == found[f"{number}1"] for number in range(6))


def test_overlap_with_a_held_out_set() -> None:
    mine = [episode("a", "open it", "train", 0), episode("b", "close it", "train", 1)]
    found = find_overlap("bench", [episode("x", "Open it!", "", 7), episode("y", "push", "", 1)], mine)
    assert (found.episodes, found.videos, found.tasks) == (2, ("b",), ("open it",))
    assert "nothing" in str(find_overlap("bench", [episode("x", "push", "", 7)], mine))


@given(st.integers(1, 80), st.integers(0, 5))
def test_bundles_are_dealt_by_share(count: int, seed: int) -> None:
    shares = {"train": 8, "val": 1, "test": 1}
    got = Counter(deal({f"b{n}": 1 for n in range(count)}, shares, seed).values())
    for name, share in shares.items():
        assert -4 / 3 <= got[name] - share / 10 * count <= 2 / 3
    giant = deal({"giant": 10 * count, **{f"b{n}": 1 for n in range(count)}}, shares, seed)
    assert giant["giant"] == "train"


def tied(id: str, words: int, pixels: int, group: int, task: int) -> Episode:
    """Groups up to 4 and tasks up to 8 stand for none."""
    tags = {"task": f"t{task}"} if task > 8 else {}
    origin = Origin("d", group=f"g{group}" if group > 4 else "", tags=tags)
    images = np.full((2, 8, 8, 3), pixels, dtype=np.uint8)
    return Episode(id, f"do {words}", {"main": Frames.from_array(images)}, origin=origin)


def assign(episodes: list[Episode], seed: int = 0, **more: Any) -> dict[str, str]:
    assigner = SplitAssigner()
    for episode in episodes:
        assigner.add(episode)
    return assigner.assign({"train": 0.6, "val": 0.2, "test": 0.2}, seed, **more)


@given(st.lists(st.tuples(*[st.integers(0, 12)] * 4), min_size=1, max_size=30), st.integers(0, 3))
def test_episodes_that_share_anything_are_in_one_split(facts: list[tuple[int, int, int, int]], seed: int) -> None:
    episodes = [tied(f"e{number}", *fact) for number, fact in enumerate(facts)]
    found = assign(episodes, seed)
    for mine, first in zip(episodes, facts, strict=True):
        for other, second in zip(episodes, facts, strict=True):
            same = [a == b for a, b in zip(first, second, strict=True)]
            if same[0] or same[1] or (same[2] and first[2] > 4) or (same[3] and first[3] > 8):
                assert found[mine.id] == found[other.id]
    assert assign(episodes[::-1], seed) == found


def test_kept_splits_stay_and_take_along_what_is_tied_to_them() -> None:
    first = [tied(f"e{number}", number, number, 0, 0) for number in range(10)]
    again = [tied(f"f{number}", 100 + number, number, 0, 0) for number in range(10)]
    kept = assign(first)
    assert set(kept.values()) == {"train", "val", "test"}
    later = assign([*first, *again], kept=kept)
    assert {id: later[id] for id in kept} == kept
    assert all(later[f"f{number}"] == later[f"e{number}"] for number in range(10))
    assert set(assign([*first, *again], only=["e0", "f3"])) == {"e0", "f3"}
    both = replace(first[0], id="both", origin=Origin(tags={"task": "do 1"}))
    with pytest.raises(BadInput, match="both"):
        assign([*first, both], kept={"e0": "train", "e1": "test"})


def test_names_of_evaluation_splits() -> None:
    for name in "test Test TEST test_2 testing held_out heldout Hold-Out eval valTest unseen".split():
        assert is_evaluation_split(name), name
    for name in ["", "train", "val", "validation", "contest", "latest", "fastest", "medieval", "out"]:
        assert not is_evaluation_split(name), name


def test_a_split_means_the_same_everywhere() -> None:
    names = {
        "train": ["", "train", "Training", "train_2", "lab-2", "latest", "contest"],
        "validation": ["val", "valid", "Validation", "dev", "eval", "evaluation", "val_seen", "valid2"],
        "test": ["test", "Test_2", "test-clean", "held_out", "valTest", "eval_unseen", "val_unseen", "holdout"],
    }
    for meaning, alike in names.items():
        assert {name: normalize_split(name) for name in alike} == dict.fromkeys(alike, meaning)
    assert same_split("val", "Validation") and same_split("training", "train") and same_split("lab", "lab")
    assert not same_split("lab", "train") and not same_split("test_a", "test_b") and not same_split("", "train")
