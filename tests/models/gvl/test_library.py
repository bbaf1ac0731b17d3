"""Examples never come from the evaluated rollout, its pair, its session, or anything made from these."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode, Event, Origin, Outcome, Preference
from demerit.llm import ChatImage
from demerit.models.gvl import GVLConfig
from demerit.models.gvl.library import (
    ContextBuilder,
    FailureDescriptions,
    Library,
    failing_frames,
    gather_remarks,
    similarity,
)
from fakes.prompted import coloured, failed

INSTRUCTIONS = ["put the cup on the shelf", "put the cup away", "open the drawer", "wipe the table"]
IDS = [f"e{i}" for i in range(8)]


@st.composite
def datasets(draw: Any) -> list[Record]:
    """Episodes with sessions, parents and shared videos, and preferences between any of them."""
    count = draw(st.integers(2, len(IDS)))
    ids = IDS[:count]
    curve = np.linspace(0, 0.5, 3)
    records: list[Record] = []
    for id in ids:
        outcomes = (
            failed(f"note on {id}", events=(Event("dropped", 1, 2),)),
            Outcome("model", curve=curve, by="gvl simulated"),
        )
        made = coloured(id, 3, blue=10 * draw(st.integers(0, 24)), instruction=draw(st.sampled_from(INSTRUCTIONS)))
        origin = Origin(
            group=draw(st.sampled_from(["", "s1", "s2", "s3"])), parent=draw(st.sampled_from([*[""] * 20, *ids]))
        )
        records.append(replace(made, outcomes=outcomes, origin=origin))
    for _ in range(draw(st.integers(0, 4))):
        a, b = draw(st.permutations(ids))[:2]
        records.append(Preference(a, b, draw(st.sampled_from(["a", "b", "tie"])), "human", why=f"why {a} {b}"))
    return draw(st.permutations(records))


def related_ids(episode: Episode, records: list[Record]) -> set[str]:
    """What is related to an episode, computed another way: from every pair of records."""
    episodes = {one.id: one for one in records if isinstance(one, Episode)}

    def ancestors(one: Episode) -> set[str]:
        found = {one.id}
        while one.origin.parent and one.origin.parent not in found:
            found.add(one.origin.parent)
            if one.origin.parent not in episodes:
                break
            one = episodes[one.origin.parent]
        return found

    own = ancestors(episode)
    own |= {id for id, one in episodes.items() if one.origin.group and one.origin.group == episode.origin.group}
    own |= {p.b for p in records if isinstance(p, Preference) and p.a in own} | {
        p.a for p in records if isinstance(p, Preference) and p.b in own
    }
    pixels = episode.main.all()
    return {
        id
        for id, one in episodes.items()
        if ancestors(one) & own
        or (one.origin.group and one.origin.group == episode.origin.group)
        or np.array_equal(one.main.all(), pixels)
    }


@given(datasets(), st.data())
def test_nothing_related_to_the_rollout_is_allowed(records: list[Record], data: st.DataObject) -> None:
    episodes = [one for one in records if isinstance(one, Episode)]
    evaluated = data.draw(st.sampled_from(episodes))
    library, forbidden = Library(records), related_ids(evaluated, records)
    assert evaluated.id in forbidden
    allowed = library.allowed_examples(evaluated)
    near = {one.id for one in episodes if similarity(one.instruction, evaluated.instruction) > 0}
    assert {one.id for one in allowed} == near - forbidden, "all that is near and unrelated, and nothing else"
    remarks = gather_remarks(allowed)
    placed, given = ContextBuilder(GVLConfig(context="dense", shown_examples=8, example_frames=2)).build(
        allowed, FailureDescriptions(("x",), "people")
    )
    shown = set(given.get("failures shown", [])) | {one["episode"] for one in given.get("references", [])}
    assert not (shown | set(remarks.episodes)) & forbidden
    assert not any(f"note on {id}" in text for text in remarks.texts for id in forbidden)
    assert not any(id in text.split() for text in remarks.texts for id in forbidden if text.startswith("why"))
    assert len(placed["failure_frame"]) == 2 * len(given.get("failures shown", []))
    assert len(placed["reference_frame"]) == 2 * len(given.get("references", []))
    assert all(isinstance(part, ChatImage) for name in ("failure_frame", "reference_frame") for _, part in placed[name])


@given(datasets(), st.data())
def test_a_renamed_or_cut_copy_is_still_the_same_rollout(records: list[Record], data: st.DataObject) -> None:
    episodes = [one for one in records if isinstance(one, Episode)]
    original = data.draw(st.sampled_from(episodes))
    cut = original.select([1, 0]) if data.draw(st.booleans()) else original
    stranger = replace(cut, id="a stranger", origin=Origin(), outcomes=())
    assert original.id not in {one.id for one in Library(records).allowed_examples(stranger)}


def test_neither_the_order_of_records_nor_their_number_in_a_session_matters() -> None:
    records = [coloured(f"e{i}", blue=10 * i, group=f"s{i % 2}", outcomes=(failed(),)) for i in range(8)]
    evaluated = coloured("new", blue=200)
    forwards, backwards = Library(records), Library(records[::-1])
    assert [one.id for one in forwards.allowed_examples(evaluated)] == [
        one.id for one in backwards.allowed_examples(evaluated)
    ]
    assert forwards.identity == backwards.identity != Library(records[1:]).identity
    assert len(forwards.allowed_examples(evaluated).failures(5)) == 2, "no two examples of one session"


def test_the_same_task_comes_first_then_the_nearest() -> None:
    texts = {"far": "open the top drawer", "near": "put the cup on the table", "same": "Put the cup  away."}
    texts |= {"other": "close it", "nearer": "put the blue cup away"}
    library = Library(coloured(id, blue=30 + 10 * i, instruction=text) for i, (id, text) in enumerate(texts.items()))
    allowed = library.allowed_examples(coloured("new", blue=200, instruction="put the cup away"))
    assert [one.id for one in allowed] == ["same", "nearer", "near"]


def test_a_task_with_several_instructions_is_one_task() -> None:
    def tagged(id: str, text: str, blue: int) -> Episode:
        return replace(coloured(id, blue=blue, instruction=text), origin=Origin(tags={"task": "tap"}))

    library = Library([tagged("a", "close the tap", 10), tagged("b", "shut off the water", 30)])
    told = replace(coloured("new", blue=90, instruction="close the tap"), origin=Origin(tags={"task": "another"}))
    assert {one.id for one in library.allowed_examples(told)} == {"a", "b"}, "by the instruction, not by a label"


def test_what_counts_as_a_failure() -> None:
    cases = {
        "failed": (failed(),),
        "done": (Outcome("human", success=True),),
        "graded low": (Outcome("human", grade=2),),
        "graded high": (Outcome("human", grade=4),),
        "rejected": (),
        "unknown": (),
        "a model says": (Outcome("model", success=False),),
        "done but rejected": (Outcome("human", success=True),),
    }
    records: list[Record] = [coloured(id, blue=20 * i, outcomes=one) for i, (id, one) in enumerate(cases.items())]
    records += [Preference("unknown", "rejected", "a", "human"), Preference("done", "done but rejected", "a", "human")]
    records += [Preference("unknown", "graded high", "b", "model"), Problem("x", "y", "z", kept=True)]
    library = Library(records)
    found = {one.id for one in records if isinstance(one, Episode) and library.is_failure(one)}
    assert found == {"failed", "graded low", "rejected"}


def test_recorded_kinds_stand_in_where_nobody_wrote() -> None:
    event = Event("dropped", 3, 4)
    simulated = Outcome("simulator", success=False, events=(event,), by="mujoco")
    allowed = Library([coloured("a", blue=90, outcomes=(simulated,))]).allowed_examples(coloured("new"))
    remarks = gather_remarks(allowed)
    assert remarks.source == "records" and remarks.texts[0].startswith("dropped: ")
    people = Library([coloured("a", blue=90, outcomes=(simulated, failed("it fell")))]).allowed_examples(
        coloured("new")
    )
    assert gather_remarks(people).source == "people" and gather_remarks(people).texts == ("it fell",)
    assert gather_remarks(Library([]).allowed_examples(coloured("new"))).texts == ()
    unnamed = Outcome("human", success=False, events=(Event("unknown", 3, 4),))
    nothing = Library([coloured("a", blue=90, outcomes=(unnamed,))]).allowed_examples(coloured("new"))
    assert gather_remarks(nothing).texts == ()


def test_frames_of_a_failure_begin_where_it_is_seen() -> None:
    episode = coloured("a", outcomes=(failed(events=(Event("dropped", 12, 14),)),))
    assert failing_frames(episode, 20, 3).tolist() == [12, 16, 19]
    assert failing_frames(coloured("b"), 20, 4).tolist() == [1, 7, 13, 19]
    assert failing_frames(coloured("c", frames=1), 1, 4).tolist() == [0]
