"""Names that nobody told: what is taken for one, what is left alone, and that cleaning never makes things worse."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import Episode, Origin
from demerit.data.labels import Outcome
from demerit.use.release.cleaned import Cleaner
from demerit.use.release.everyday import is_everyday, is_word
from demerit.use.release.frequent_names import ALSO_WORDS, BRANDS, CITIES, FIRST_NAMES
from demerit.use.release.guesses import SURE, common, rare
from demerit.use.release.names import DATE, LINK, NAME, PATH, PLACE, Names
from demerit.use.release.settings import Settings
from demerit.use.release.stand_ins import stand_ins
from demerit.use.release.survey import known_names
from fakes.paths import REPO

BENCHMARKS = REPO / "benchmarks"
NAMES = Names(words=frozenset({"cup", "tray", "drawer"}))


def clean(text: str, names: Names = NAMES) -> str:
    return names.in_text(text, Counter())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("it slipped, ask juan about it", f"it slipped, ask {NAME} about it"),
        ("maria's cup fell", f"{NAME} cup fell"),
        ("MARIA said so", f"{NAME} said so"),
        ("ask xyloquin about the cup", f"ask {NAME} about the cup"),
        ("ask anna xyloquin", f"ask {NAME}"),
        ("recorded by xyloquin brontosk at night", f"recorded by {NAME} at night"),
        ("recorded by hand, ask again", "recorded by hand, ask again"),
        ("dr. pepperoni said no", f"dr. {NAME} said no"),
        ("a 5 ms delay", "a 5 ms delay"),
        ("thanks to QX it works", f"thanks to {NAME} it works"),
        ("user: qxyz12 was here, user error", f"user: {NAME} was here, user error"),
        ("cup fell (J. K.)", f"cup fell ({NAME})"),
        ("from qxyz@lab-ws3 and @qxyz_1", f"from {NAME} and {NAME}"),
        ("write to qxyz at lab.example.org", f"write to {NAME}"),
        ("see github.com/qxyz/runs or cs.uni.example", f"see {LINK} or {LINK}"),
        ("on kestrel-pc-03 and DESKTOP-A1B2C3D", f"on {LINK} and {LINK}"),
        ("in data/qxyz/run3.hdf5, ~qxyz/a and /scratch/qxyz/b", f"in {PATH}, {PATH} and {PATH}"),
        ("in room B-212, 12 elm street, berlin", f"in {PLACE}, {PLACE}, {PLACE}"),
        ("in Lindenstraße 5", f"in {PLACE}"),
        ("at 52°31'12\"N 13°24'18\"E, N52.5200 E13.4050", f"at {PLACE} {PLACE}, {PLACE}"),
        ("5/3/24, March 3, may 3rd, 3rd of may, tuesday, 2:30 pm", ", ".join([DATE] * 6)),
        ("Mark the box. Mark dropped it", f"Mark the box. {NAME} dropped it"),
        ("Unfortunately jammed. Hesitated twice", "Unfortunately jammed. Hesitated twice"),
        ("the Coke and the Rubik's cube beside the Panda arm", "the Coke and the Rubik's cube beside the Panda arm"),
        ("MARIA GARCIA stopped it, Maria GARCIA too", f"{NAME} stopped it, {NAME} too"),
        ("MARIA DROPPED the cup. MARIA SAID IT IS BAD", f"{NAME} DROPPED the cup. {NAME} SAID IT IS BAD"),
        ("maria weber was near, maria dropped it", f"{NAME} was near, {NAME} dropped it"),
        ("call 555-123-4567. Or +49 89 1234567.", "call [number]. Or [number]."),
        ("/scratch/qxyz/run1 /tmp/qxyz/x ~qxyz/y robot7.cs.tum.edu", f"{PATH} {PATH} {PATH} {LINK}"),
        (
            "at 14:22:10, 03/05/24, 5-Mar-2024; 00:01:30 in the video",
            f"at {DATE}, {DATE}, 2024-03; 00:01:30 in the video",
        ),
        ("force 12.5 N on the F/T sensor", "force 12.5 N on the F/T sensor"),
        ("hand at 0.1234, 0.5678; joints 1.5708 -0.7854", "hand at 0.1234, 0.5678; joints 1.5708 -0.7854"),
        ("place 5.6037, -0.1870", f"place {PLACE}"),  # not everything near zero is a robot's: this is Accra
    ],
)
def test_names_and_places_that_nobody_told(before: str, after: str) -> None:
    assert clean(before) == after


def test_a_name_in_an_instruction_makes_no_word_of_it() -> None:
    assert clean("Juan saw it, juan too", Names(words=frozenset({"juan"}))) == f"{NAME} saw it, {NAME} too"
    assert clean("Rose fell", Names(words=frozenset({"rose"}))) == "Rose fell"


def test_words_that_may_be_names_are_listed_for_the_owner() -> None:
    assert NAMES.suspects("Hand the cup to juan or xyloquin for Rizal") == ["Rizal", "juan", "xyloquin"]
    assert list(rare("the [name] said: xyloquin's cup, in berlin")) == ["xyloquin", "berlin"]
    assert common("run7/maria_03-berlin.robin") == ["maria", "berlin"]
    cleaner = Cleaner(NAMES)
    cleaner._at = "ep-1"
    assert cleaner._text("near xyloquin the cup fell", "note") == "near xyloquin the cup fell"
    assert cleaner.suspects == {"xyloquin": ["ep-1"]}


def test_lists_are_in_small_letters_and_products_are_no_names() -> None:
    for words in (FIRST_NAMES, CITIES, BRANDS, ALSO_WORDS):
        assert all(word == word.lower() for word in words)
    assert not BRANDS & (SURE | CITIES)
    assert is_word("jammed") and is_word("gripping") and not is_word("xyloquin")
    assert is_everyday("Unfortunately") and not is_everyday("Maria") and not is_everyday("Berlin")


SECRETS = (
    *("Xyloquin", "xyloquin", "Maria", "maria's", "QXYZ", "Brontosk", "berlin", "qxyz@lab-ws3", "@qxyz", "dr. qxyzer"),
    *(
        "52.52001, 13.40501",
        "room B-212",
        "12 elm street",
        "/home/qxyz/a",
        "data/qxyz/a.h5",
        "+49 30 1234567",
        "5/3/24",
    ),
    *("2025-05-03 14:32", "May 3", "tuesday", "2:30 pm", "https://qxyz.example/a", "qxyz.github.io", "kestrel-pc-03"),
)
PLAIN = "the cup fell off a tray near two blocks ask told said by with in at and . , : ( ) \n - Then Grasp".split(" ")
mixed = st.lists(st.sampled_from((*SECRETS, *PLAIN)), max_size=12).map(" ".join)
glued = st.lists(st.sampled_from((*SECRETS, *PLAIN, "'s", "_", "-", ".")), max_size=8).map("".join)
OURS = {"name", "link", "place", "path", "number", "date", "text", "removed", "person"}


@given(st.one_of(mixed, glued))
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    once = clean(text)
    assert clean(once) == once


@given(st.one_of(mixed, glued, st.text(max_size=60)))
def test_cleaning_adds_nothing_but_its_own_marks(text: str) -> None:
    """Every word that is left was there, and no oftener; every number was there, or is the month of a coarse date."""
    cleaned = clean(text, stand_ins(["Anna Schmidt"], [], [], frozenset({"cup"})))
    text = unicodedata.normalize("NFC", text)
    before, after = (Counter(re.findall(r"[^\W\d_]+", one)) for one in (text, cleaned))
    assert {word for word, count in after.items() if count > before[word]} <= OURS
    numbers = re.findall(r"\d+", cleaned)
    assert all(one in text or one == "1" or re.fullmatch(r"0[1-9]|1[0-2]", one) for one in numbers)


@given(
    mixed, st.sampled_from(["Xyloquin", "Maria", "maria", "berlin", "qxyz@lab-ws3", "/home/qxyz/a", "12 elm street"])
)
def test_a_secret_between_spaces_never_stays(text: str, secret: str) -> None:
    found = clean(f"{text} and {secret} here")
    assert secret not in re.split(r"[\s,;]+", found.removeprefix(text))


HARMLESS = (
    *("jack rose may mark pepper turkey china will bill basil ruby robin sandy frank penny iris dawn art max".split()),
    *("the a put into box cup on tray and it fell off twice near left right gripper slipped 3 0.5 cm 90".split()),
)


@given(st.lists(st.sampled_from(HARMLESS), max_size=14))
def test_texts_with_nothing_private_stay_as_they_are(words: list[str]) -> None:
    text = " ".join(words)
    assert clean(text) == text
    assert NAMES.in_name(text, Counter()) == text


@pytest.fixture(scope="module")
def benchmark() -> object:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import scrubbing

        return scrubbing
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize(("hits", "count"), [(0, 30), (1, 30), (17, 40), (300, 300)])
def test_wilsons_interval_is_where_the_shares_stop_to_fit(benchmark, hits: int, count: int) -> None:  # type: ignore[no-untyped-def]
    shares = np.linspace(0, 1, 200_001)
    fits = np.abs(hits / count - shares) <= benchmark.Z * np.sqrt(shares * (1 - shares) / count) + 1e-12
    assert benchmark.wilson(hits, count) == pytest.approx((shares[fits].min(), shares[fits].max()), abs=1e-5)


def test_the_measured_names_are_in_no_rule_and_no_harmless_text_changes(benchmark) -> None:  # type: ignore[no-untyped-def]
    assert all(benchmark.listed())  # refuses names that a rule lists
    from _harmless_texts import CODES, LOOK_LIKE_NAMES, NUMBERS, SENTENCES

    texts = [*LOOK_LIKE_NAMES, *SENTENCES, *NUMBERS, *CODES, *benchmark.HARMLESS]
    assert benchmark.notes_of(texts)[0] == texts


def test_values_of_unknown_fields_vouch_for_no_name(make_episode: Callable[..., Episode]) -> None:
    """Who did it is found in fields of any name, and in notes; what stands in a field that nobody knows is listed."""
    tags = {
        "recorded_by": "Charlotte Weber", "created_by": "Xyloquin Brontosk", "helper": "Rizalino", "wifi": "TUM-guest",
        "session_start": "1709648530", "policy": "Qwobber", "shift": "Late", "assistant": "Anna Baker",
    }  # fmt: skip
    note = "Charlotte was here with Brontosk and Rizalino in the Late shift; Qwobber stalled. Baker saw it"
    one = replace(
        make_episode("ep"),
        instruction="pick up the cup",
        outcomes=(Outcome("human", success=False, note=note, by="zoe"),),
        origin=Origin(tags=tags),
    )
    cleaner = Cleaner(known_names([one], [], Settings()))
    made = cleaner.episode(one)
    assert made.origin.tags == {
        "recorded_by": "person-2", "created_by": "person-3", "helper": "Rizalino", "session_start": "2024-03",
        "policy": "Qwobber", "shift": "Late", "assistant": "person-4",
    }  # fmt: skip
    assert made.outcomes[0].note == (
        f"person-2 was here with person-3 and {NAME} in the Late shift; Qwobber stalled. person-4 saw it"
    )
    assert "Rizalino" in cleaner.suspects


def test_names_in_names_are_listed_and_things_vouch_for_nobody(make_episode: Callable[..., Episode]) -> None:
    """A group, a robot, a camera, a signal and a field may be called after somebody whom nobody told."""
    plain = make_episode("ep")
    one = replace(
        plain,
        instruction="pick up the cup",
        views={"cam_anna": plain.main},
        outcomes=(Outcome("human", success=False, note="Zinsmeister held it, Kowalczyk saw it. The ViperX slipped"),),
        origin=Origin(
            group="charlotte_run3",
            embodiment="ViperX of Bernadette Kowalczyk",
            parent="maria-7",
            tags={"object": "Zinsmeister mug", "juan_rating": "4"},
        ),
        signals={"obs/diego_state": np.zeros(12)},
    )
    cleaner = Cleaner(known_names([one], [], Settings()))
    made = cleaner.episode(one)
    assert set(cleaner.suspects) >= {
        *("charlotte", "Bernadette", "Kowalczyk", "anna", "maria", "juan", "diego", "Zinsmeister"),
    }
    assert all(those == ["ep"] for those in cleaner.suspects.values())
    assert made.outcomes[0].note == f"{NAME} held it, {NAME} saw it. The ViperX slipped"
    # Who is known is replaced there and needs no look.
    told = Cleaner(known_names([one], [], Settings(names=("Charlotte", "Anna"))))
    made = told.episode(one)
    assert (made.origin.group, list(made.views)) == ("name-1_run3", ["cam_name-2"])
    assert not {"charlotte", "anna"} & set(told.suspects)


def test_a_surname_is_found_in_small_letters_too() -> None:
    words = frozenset("put the block with okonkwo and green".split())
    names = stand_ins(["Ngozi Okonkwo", "Ada Green"], [], [], words)
    assert names.in_instruction("put the block with okonkwo", Counter()) == "put the block with person-1"
    assert clean("then okonkwo bumped it", names) == "then person-1 bumped it"
    assert names.in_instruction("put the green block", Counter()) == "put the green block"
    small = stand_ins(["ngozi okonkwo", "crowd worker", "bkowal@xylo.example"], ["xyloquin kitchen"], [], frozenset())
    assert small.in_name("okonkwo_ep3", Counter()) == "person-1_ep3"
    assert small.in_name("bkowal_ep3", Counter()) == "person-3_ep3"
    kept = "a worker in the crowd, a xylo in the kitchen"
    assert small.in_name(kept, Counter()) == kept
