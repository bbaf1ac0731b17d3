"""A plug-in that makes clips: found by its entry point, never labelled but by a person, and taught from only then."""

import re
from pathlib import Path

import numpy as np
import pytest

from demerit.data.episode import Outcome
from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.errors import BadInput
from demerit.negatives import apply_edit
from demerit.negatives.job import make_negatives
from demerit.negatives.mix import Mix
from demerit.negatives.negative import GENERATORS, VARIANTS
from demerit.people.accounts import Accounts
from demerit.people.annotate.work import Work, make_items, store_labels
from demerit.people.database import Database
from demerit.training.teach import TeachConfig, teach
from demerit.use.retrieve import pick_examples_of
from fakes import lesson_data as data
from fakes.command import demerit_here
from fakes.fake_network import FakeNetwork

PAGE = (Path(__file__).parents[2] / "docs/negatives.md").read_text("utf-8")
(PLUG_IN,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.M | re.S)
COMMANDS = re.findall(r"^```bash\n(.*?)^```$", PAGE, flags=re.M | re.S)
MORE = '''

class Counted(Dusk):
    def __call__(self, episode, rng):
        with open("calls.txt", "a") as calls:
            calls.write(episode.id + "\\n")
        return super().__call__(episode, rng)


class Careless:
    """Forgets to say what it was asked."""

    def __call__(self, episode, rng):
        return episode.main, ""
'''
CONFIG = TeachConfig(folds=3, rows=8, views=0, reader=False)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with two generators, in a folder that Python finds; the test runs beside it."""
    site = tmp_path / "site"
    (site / "dreams-1.0.dist-info").mkdir(parents=True)
    (site / "my_dreams.py").write_text(PLUG_IN + MORE)
    (site / "dreams-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: dreams\nVersion: 1.0\n")
    (group, own) = re.findall(r"^```toml\n\[(.*?)\]\n(.*?)^```$", PAGE, flags=re.M | re.S)[0]
    ours = "counted = my_dreams:Counted\ncareless = my_dreams:Careless\nclip = my_dreams:Counted\n"
    ours += "gone = no_such_module:Gone\n"
    points = f"[{group.split(chr(34))[1]}]\n" + own.replace('"', "") + ours
    (site / "dreams-1.0.dist-info/entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(GENERATORS, "_found", None)  # others have looked already
    return tmp_path


def answer_all(folder: Path, verdict: dict[str, bool]) -> None:
    """A person marks every clip in the annotation app's queue."""
    database = Database(f"sqlite:///{folder.parent}/work.db")
    accounts, work = Accounts(database), Work(database)
    ada = accounts.find(accounts.enter(accounts.make_link("owner", accounts.ensure_owner("Ada"))))
    assert ada is not None
    assert work.add_items(make_items(Store(folder), ["verify", "mark"])) == len(verdict)
    while (item := work.next_item(ada, "mark")) is not None:
        parent = item.episode.partition("+")[0]
        work.answer(ada, item.item, f"answer {item.item}", {"success": verdict[parent]}, data.FRAMES, 1.0)
    assert store_labels(database) == len(verdict)
    database.close()


def test_a_clip_teaches_only_after_a_person_has_labelled_it(installed: Path) -> None:
    videos = data.write_videos(installed / "my_videos", 3, 3)
    said = [demerit_here(*line.split()[1:]) for block in COMMANDS for line in block.splitlines()]
    assert [one.returncode for one in said] == [0] * 4, said
    variants = [one for one in Store("varied").episodes() if one.edits]
    assert len(variants) == 30 and len(list(Store("looks").episodes())) == 18
    for name in VARIANTS:
        assert f"| `{name}` |" in PAGE and sum(one.edits[0].name == name for one in variants) == 6
    assert "dusk" in said[2].stdout and "Darkens the end of a video." in said[2].stdout
    assert "Not available here" in said[2].stdout and "no_such_module" in said[2].stdout  # that of another plug-in
    assert "demerit annotate imagined" in said[3].stdout
    clips = {episode.origin.parent: episode for episode in Store(installed / "imagined").episodes()}
    originals = {episode.id: episode for episode in open_dataset(videos)}
    assert clips.keys() == originals.keys()
    for id, clip in clips.items():
        assert clip.outcomes == () and clip.check == "due" and clip.origin.tags["generated_by"] == "dusk"
        assert (clip.edits[0].name, clip.edits[0].params) == ("dusk", {"asked": "the light goes out"})
        assert clip.origin.group == (originals[id].origin.group or id)
        assert clip.instruction == originals[id].instruction
        seen = originals[id].main.all()
        assert np.array_equal(clip.main.all()[0], seen[0]) and clip.main.all()[-1].mean() < seen[-1].mean() / 1.9
        assert clip.main.times()[1] == pytest.approx(0.2)
        replayed = apply_edit(originals[id], clip.edits[0])
        assert replayed.id == clip.id and np.array_equal(replayed.main.all(), clip.main.all())

    def taught(**options: object) -> int:
        outcome = teach("imagined", None, network=FakeNetwork(), config=CONFIG, workers=0, **options)  # type: ignore[arg-type]
        return len(outcome.results.report.episodes)

    with pytest.raises(BadInput, match="no person has checked"):
        taught()
    guesses = {
        clip.id: [Outcome("model", success=True, by="m"), Outcome("rule", success=True, by="r")]
        for clip in clips.values()
    }
    with Store("imagined").writer() as writer:
        writer.relabel(guesses)
    for sources in (("human", "rule"), ("rule", "model")):
        with pytest.raises(BadInput, match="no person has checked"):
            taught(sources=sources)
    copied = make_negatives(open_dataset("imagined"), "copied", Mix.parse("hold"))
    assert copied.originals == 0  # nor is a rule's label copied from it
    with Store("imagined").writer() as writer:
        writer.relabel({id: [] for id in guesses})
    with pytest.raises(BadInput):
        pick_examples_of(data.WORDS, open_dataset("imagined"))  # no example of a success either
    answer_all(installed / "imagined", {id: id.startswith("good") for id in clips})
    labelled = list(Store("imagined").episodes())
    assert {(one.outcomes[0].source, one.outcomes[0].by, one.check) for one in labelled} == {
        ("human", "Ada", "corrected")
    }
    assert taught() == 6


def test_a_second_run_makes_nothing_again(installed: Path) -> None:
    videos, one = data.write_videos(installed / "videos", 2, 2, blank=1), Mix.parse("counted", per_episode=1)
    first = make_negatives(open_dataset(videos), "made", one)
    assert (first.added, first.originals) == (5, 5)  # of the one without a label, too
    calls = (installed / "calls.txt").read_text()
    assert len(calls.splitlines()) == 5
    again = make_negatives(open_dataset(videos), "made", one)
    assert (again.added, again.skipped) == (0, {("counted", "an earlier run has made it"): 5})
    assert (installed / "calls.txt").read_text() == calls
    of_clips = make_negatives(open_dataset("made"), "twice", one, assume_success="demonstrations")
    assert of_clips.skipped == {("counted", "it was generated itself"): 5}
    assumed = make_negatives(open_dataset("made"), "assumed", Mix.parse("clip"), assume_success="demonstrations")
    assert assumed.originals == 0  # assuming makes no label of a generated clip


def test_a_generator_keeps_its_contract_and_no_name_of_ours(installed: Path) -> None:
    videos = data.write_videos(installed / "videos", 1, 1)
    with pytest.raises(BadInput, match=r"careless.*what was asked"):
        make_negatives(open_dataset(videos), "made", Mix.parse("careless"))
    ours = make_negatives(open_dataset(videos), "ours", Mix.parse("clip", per_episode=1))
    assert ours.made == {"clip": 1} and not (installed / "calls.txt").exists()
