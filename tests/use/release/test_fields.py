"""The allow-list: what a released episode is built from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.episode import Edit, Episode, Event, Origin, Outcome, Preference
from demerit.data.stages import StageSpan
from demerit.errors import BadInput, UnknownName
from demerit.use.release.config import ReleaseConfig, ReleaseFields, load_hook, read_replacements

MakeEpisode = Callable[..., Episode]


def private_episode(make_episode: MakeEpisode, id: str = "anna-2025-05-03") -> Episode:
    events = (Event("dropped", 2, 4, note="Anna laughed"),)
    return replace(
        make_episode(id),
        instruction="hand the cup to Anna",
        outcomes=(
            Outcome("human", False, 0.25, 2, np.linspace(0, 0.25, 12), events, note="ask Juan", by="Anna Schmidt"),
            Outcome("model", False, by="judge-7b", note="she drops it"),
        ),
        origin=Origin(
            "kitchen", "v2", "MIT", "arm", "Rosenheim", "train", "2025-05-03", "raw-7", {"policy": "pi", "pc": "host"}
        ),
        signals={
            "state": np.arange(24, dtype=np.float32).reshape(12, 2),
            "action": np.array(["Anna"] * 12),
            "gps": np.ones((12, 2)),
            "timestamp": 1746282730 + np.arange(12.0),
        },
        edits=(
            Edit("splice", {"partner": "raw-7", "before": 3, "after": [1, 2]}, 5),
            Edit("counterfactual", {"words": "hand the cup to Anna", "model": "writer-8b", "path": "/home/anna"}),
        ),
    )


def test_stages_are_released_on_request_with_names_that_the_owner_replaced(make_episode: MakeEpisode) -> None:
    label = Outcome("human", True, stages=(StageSpan("reach", 0, 3), StageSpan("to Juan", 4, 9)), by="Anna")
    source = replace(private_episode(make_episode), outcomes=(label,))
    fields = ReleaseFields(ReleaseConfig(), [source])
    assert fields.episode(source).outcomes[0].stages == () and fields.dropped["stages"] == 1
    kept = ReleaseFields(ReleaseConfig(keep=("stages",), replacements={"to Juan": "give"}), [source])
    assert [str(one) for one in kept.episode(source).outcomes[0].stages] == ["reach:0-3", "give:4-9"]


def test_only_allowed_fields_are_released(make_episode: MakeEpisode) -> None:
    source = private_episode(make_episode)
    fields = ReleaseFields(ReleaseConfig(), [source])
    made = fields.episode(source)
    assert (made.id, made.instruction) == ("episode_000001", "hand the cup to Anna")
    assert made.origin == Origin("kitchen", "v2", "MIT", "arm", "", "train", "group_1", "unreleased_000001", {})
    human, model = made.outcomes
    assert human == replace(source.outcomes[0], note="", by="annotator_1", events=(Event("dropped", 2, 4),))
    assert (model.by, model.note) == ("judge-7b", "")
    assert list(made.signals) == ["state"]  # the action is text
    np.testing.assert_array_equal(made.signals["state"], source.signals["state"])
    assert made.edits == (
        Edit("splice", {"partner": "unreleased_000001", "before": 3, "after": [1, 2]}, 5),
        Edit("counterfactual", {"words": "hand the cup to Anna", "model": "writer-8b"}),
    )
    assert fields.dropped == {
        "notes": 3, "site": 1, "tags.policy": 1, "tags.pc": 1, "signals.action": 1, "signals.gps": 1,
        "signals.timestamp": 1, "edits.path": 1,
    }  # fmt: skip
    assert fields.numbered["annotators"] == {"Anna Schmidt": "annotator_1"}


def test_kept_fields_are_verbatim_and_times_begin_at_zero(make_episode: MakeEpisode) -> None:
    source = private_episode(make_episode)
    keep = ("notes", "site", "tags.policy", "signals.timestamp", "signals.action")
    made = ReleaseFields(ReleaseConfig(keep=keep), [source]).episode(source)
    assert [outcome.note for outcome in made.outcomes] == ["ask Juan", "she drops it"]
    assert made.outcomes[0].events[0].note == "Anna laughed"
    assert (made.origin.site, made.origin.tags) == ("Rosenheim", {"policy": "pi"})
    assert list(made.signals) == ["state", "action", "timestamp"]
    assert made.signals["timestamp"].tolist() == list(range(12))
    assert set(made.signals["action"]) == {"Anna"}
    calendar = replace(
        source, signals={"time": np.datetime64("2025-05-03T14:00:00") + np.arange(3) * np.timedelta64(500, "ms")}
    )
    made = ReleaseFields(ReleaseConfig(keep=("signals",)), [calendar]).episode(calendar)
    assert made.signals["time"].tolist() == [0.0, 0.5, 1.0]


def test_replacements_and_the_scrubber(make_episode: MakeEpisode, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "my_scrubber.py").write_text(
        "def scrub(text):\n    return text.replace('Juan', 'X')\ndef wrong(text):\n    return None\nnumber = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    source = private_episode(make_episode)
    config = ReleaseConfig(
        keep=("notes",), scrub="my_scrubber:scrub",
        replacements={"hand the cup to Anna": "hand over the cup", "main": "front", "nowhere": "x"},
    )  # fmt: skip
    fields = ReleaseFields(config, [source])
    made = fields.episode(source)
    assert (made.instruction, made.edits[1].params["words"]) == ("hand over the cup", "hand over the cup")
    assert (made.outcomes[0].note, list(made.views)) == ("ask X", ["front"])
    assert (fields.unused, fields.texts) == ({"nowhere"}, {"hand over the cup"})
    two = replace(source, views={"main": source.main, "front": source.main})
    with pytest.raises(BadInput, match="cameras"):  # two cameras never become one
        ReleaseFields(config, [two]).episode(two)
    with pytest.raises(BadInput, match="NoneType"):
        ReleaseFields(replace(config, scrub="my_scrubber:wrong"), [source]).episode(source)
    for wrong in ("my_scrubber", "no_such_module:f", "my_scrubber:nothing", "my_scrubber:number"):
        with pytest.raises(BadInput, match="--scrub"):
            load_hook(wrong, "--scrub")


def test_numbers_are_the_same_everywhere(make_episode: MakeEpisode) -> None:
    first, second = make_episode("a"), replace(make_episode("b"), origin=Origin(parent="a", group="g"))
    second = replace(second, outcomes=(Outcome("human", by="Juan"), Outcome("human", by="Anna"), Outcome("human")))
    fields = ReleaseFields(ReleaseConfig(), [first, second])
    made = fields.episode(second)
    assert (made.id, made.origin.parent) == ("episode_000002", "episode_000001")
    assert [outcome.by for outcome in made.outcomes] == ["annotator_1", "annotator_2", ""]
    pair = fields.preference(Preference("b", "a", "a", "human", why="Anna likes it", by="Anna"))
    assert pair == Preference("episode_000002", "episode_000001", "a", "human", by="annotator_2")


def test_replacement_files(tmp_path: Path) -> None:
    good = {"a.csv": '\ufeffinstruction,replacement\n"to Anna, now",to a person\n\n'}
    good |= {"a.json": '{"to Anna, now": "to a person"}'}
    bad = {"b.csv": "one\n", "b.json": '["one"]', "c.json": '{"one": 2}'}
    for name, text in {**good, **bad}.items():
        (tmp_path / name).write_text(text, "utf-8")
    for name in good:
        assert read_replacements(tmp_path / name) == {"to Anna, now": "to a person"}
    for name in (*bad, "none.csv"):
        with pytest.raises(BadInput, match="--replace"):
            read_replacements(tmp_path / name)


@pytest.mark.parametrize(
    "wrong", [{"layout": "zip"}, {"where": {"colour": "red"}}, {"fps": 5.0}, {"keep": ("tags.",)}, {"keep": ("by",)}]
)
def test_unknown_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((UnknownName, BadInput)):
        ReleaseConfig(**wrong)
