"""Names, dates and addresses in texts, and which licences go together: rules that a generator tries to break."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.data.episode import Episode, Origin
from demerit.errors import BadInput
from demerit.use.release.cleaned import Cleaner
from demerit.use.release.fields import about, is_clock, is_counted, is_on_globe
from demerit.use.release.licences import CLOSED, TABLE, doubts, goes_with, hub_id, hub_name, spelt, whole_licence
from demerit.use.release.names import NAME, Names
from demerit.use.release.stand_ins import stand_ins

KNOWN = stand_ins(["Anna Schmidt", "Björn"], ["Rosenheim", "kitchen"], ["Projekt X"], frozenset({"kitchen", "cup"}))

texts = st.text(max_size=80)
PIECES = (
    *("Anna", "Schmidt", "2025-05-03", "2025", "05", "-", "_", " ", ".", "@", "x.org", "a", "[name]", "person-1"),
    *("/home/", "+49 ", "123456789", "T14:32", "May", "3", "http", "://", "52.52001,", "13.40501", "Rosenheim", "\n"),
)
glued = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)
names = st.from_regex(r"[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8})?", fullmatch=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Anna Schmidt dropped it", "person-1 dropped it"),
        ("anna schmidt and ANNA, Schmidt's robot", "person-1 and person-1, person-1's robot"),
        ("Annabelle is somebody else, hannah too", "Annabelle is somebody else, hannah too"),
        ("Björn in Rosenheim", "person-2 in site-1"),
        ("the kitchen table", "the kitchen table"),  # a word of the dataset; only its own field is replaced
        ("projekt x at clip_anna_3", "name-1 at clip_person-1_3"),
        ("write to a.b+c@uni.example.org now", f"write to {NAME} now"),
        ("see https://x.example/a?b=1 or /home/anna/set, ok", "see [link] or [path], ok"),
        ("10.0.0.7 and aa:bb:cc:dd:ee:ff", "[link] and [link]"),
        ("at 52.5200, 13.4050", "at [place]"),
        ("2025-05-03T14:32:10.5Z, 20250503_143210, 2025/05/03", "2025-05, 2025-05, 2025-05"),
        ("on 3 May 2025, May 3rd, 2025 and 3.5.2025", "on 2025-05, 2025-05 and 2025"),
        ("seed 50000, 0.12 m off, 12:30 in the video", "seed 50000, 0.12 m off, 12:30 in the video"),
        ("5-Mar-2024, 5_mar_2024_14-22-10, Fri 05Mar2024 14:22", "2024-03, 2024-03, 2024-03"),
        ("on 3.5.2025. Or 3/5/2025 14:22:10, 03-05-2025", "on 2025. Or 2025, 2025"),
        ("Fri_Mar__5_14_22_10_2024", "2024-03"),
        ("success/Fri_Mar__5_14_22_10_2024/left", "success/2024-03/left"),
        ("date: Fri Mar  5 14:22:10 CET 2024", "date: 2024-03"),
        ("AUTOLab+5d05c5aa+2023-08-18-12h-01m-10s", "AUTOLab+5d05c5aa+2023-08"),
        ("2023-08-18_12_01_10_left, 2024-03-05_001", "2023-08_left, 2024-03_001"),
        ("ep_1709648530, take1709648530123, 1709648530.25.mp4", "ep_2024-03, take2024-03, 2024-03.mp4"),
        (
            "seed 1234, 0.1709648530 m, 5d1709648530a, 9909648530",
            "seed 1234, 0.1709648530 m, 5d1709648530a, 9909648530",
        ),
        ("at +48.1373+011.5754/ or +48.1+11.5/ or -33.8688+151.2093", "at [place] or [place] or [place]"),
        ("bob(at)lab.org, bob [at] lab [dot] org", f"{NAME}, {NAME}"),
        ("ep_2024-3-5, 2024_3_5-14-22, 24-03-05_x, 05mar24", "ep_2024-03, 2024-03, 2024-03_x, 2024-03"),
        ("20240305142210123, 20240305142210123456, 202403051422", "2024-03, 2024-03, 2024-03"),
        ("isaac 2023.1.1, v1.2.3.4, 1.2.3.4, 2024-3-55", "isaac 2023.1.1, v1.2.3.4, 1.2.3.4, 2024-3-55"),
        ("55-03-05, 24-13-05, 078-05-1120, 24-03-05-7", "55-03-05, 24-13-05, 078-05-1120, 24-03-05-7"),
        ('{"lat": 48.1373, "lon": 11.5754}', '{"[place]}'),
        ("'longitude':'11.5754','latitude':'48.1373'", "'[place]'"),
        ("48.1373N 11.5754E; 48.137 S, 11.575 W", "[place]; [place]"),
        ("slat 3.55, long 4.55; flat: 3.55 lon 4.55", "slat 3.55, long 4.55; flat: 3.55 lon 4.55"),
    ],
)
def test_known_names_addresses_and_moments(before: str, after: str) -> None:
    assert KNOWN.in_name(before, Counter()) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("The robot dropped the cup.", "The robot dropped the cup."),
        ("It failed because Juan pushed it. Maria saw.", f"It failed because {NAME} pushed it. {NAME} saw."),
        ("I saw the UR5 and a TCP error. OK!", "I saw the UR5 and a TCP error. OK!"),
        ("call +49 30 1234567 or 0171/2345678", "call [number] or [number]"),
        ("Cup fell", "Cup fell"),
        ("机器人把杯子掉了", "[text removed]"),
    ],
)
def test_free_text_loses_whatever_looks_like_a_name(before: str, after: str) -> None:
    assert KNOWN.in_text(before, Counter()) == after


def test_instructions_are_looked_at_and_not_guessed_at() -> None:
    assert KNOWN.suspects("Put the Coke can beside the cup for Juan") == ["Coke", "Juan"]
    assert KNOWN.in_name("Put the Coke can beside the cup", Counter()) == "Put the Coke can beside the cup"


def test_a_told_name_is_found_where_a_script_has_no_spaces() -> None:
    told = stand_ins([], [], ["小明", "たなか", "민수", "สมชาย", "Ana"], frozenset())
    for before, after in (
        ("把杯子给小明。", "把杯子给name-1。"),
        ("たなかさんにカップを", "name-2さんにカップを"),
        ("민수에게 컵을", "name-3에게 컵을"),
        ("ส่งให้สมชายที่โต๊ะ", "ส่งให้name-4ที่โต๊ะ"),
        ("Banana for Ana", "Banana for name-5"),
    ):
        assert told.in_name(before, Counter()) == after


def test_a_known_name_is_found_with_its_accents_apart() -> None:
    told = stand_ins(["José Núñez"], [], [], frozenset())
    assert told.in_name("clip_Jose\u0301_2, NU\u0301N\u0303EZ", Counter()) == "clip_person-1_2, person-1"
    assert Names().in_text("with Jose\u0301", Counter()) == f"with {NAME}"


def test_a_name_in_an_instruction_makes_no_word_of_a_known_person() -> None:
    words = frozenset({"mug", "xyloquin", "rose", "küche", "ur5"})
    names = stand_ins(
        ["xyloquin", "Rose Miller", "ur5", "3", "teleoperation"], ["küche"], [], words, labels=frozenset({"ur5"})
    )
    assert names.in_name("give the mug to xyloquin", Counter()) == "give the mug to person-1"
    assert names.in_text("xyloquin liked it, Rose too", Counter()) == "person-1 liked it, person-2 too"
    # What is a word too stays and is shown to the owner; a number is somebody in its own field alone.
    kept = "put 3 rose petals by teleoperation in the küche of the ur5"
    assert names.in_name(kept, Counter()) == names.in_text(kept, Counter()) == kept
    assert set(names.suspects(kept)) >= {"rose", "teleoperation", "küche", "ur5"}
    assert names.fields["3"] == "person-4" and names.fields["küche"] == "site-1" and names.fields["ur5"] == "person-3"


PATHOLOGICAL = (
    *(
        "a",
        "A",
        "1",
        "a.",
        "a-",
        "Ł-",
        "a_",
        "a/",
        "a\\",
        "1.",
        "1-",
        "(1",
        "A.",
        "a@",
        "+1",
        "12h",
        "é",
        "\t",
        " ",
        "user ",
    ),
    *(
        "lat",
        "lat ",
        "2024-",
        "2024-01-01",
        "-01-01",
        "May",
        "jan 1 ",
        "Fri_",
        "Mar__5_",
        "1709648530",
        "room A1",
        "ask a-",
    ),
)


@pytest.mark.parametrize("piece", PATHOLOGICAL)
@pytest.mark.parametrize("ends", [("", ""), ("2024-01", "9")])
def test_long_texts_take_no_longer_than_their_length(piece: str, ends: tuple[str, str]) -> None:
    """Work that grows with the square of 20,000 letters took 10 to 60 s here; these took 0.7 s at most."""
    text = ends[0] + (piece * 20_000)[:20_000] + ends[1]
    started = time.process_time()
    KNOWN.in_text(text, Counter())
    KNOWN.suspects(text)
    assert time.process_time() - started < 4


@pytest.mark.parametrize(
    ("precision", "before", "after"),
    [
        ("month", "2025-05-03T14:32:10", "2025-05"),
        ("year", "2025-05-03T14:32:10", "2025"),
        ("drop", "2025-05-03", "[date]"),
        ("month", "1746282730", "2025-05"),
        ("month", "1746282730000", "2025-05"),
        ("month", "1746282730123456789", "2025-05"),
        ("month", "12.5", "12.5"),
        ("month", "morning", "morning"),
        ("month", "sometime in week 7", ""),
        ("month", "Charlotte Weber", ""),
        ("month", "xyloquin", ""),
        ("month", "2025-05", "2025-05"),
        ("year", "2025-05", "2025"),
        ("drop", "2025-05", "[date]"),
        ("month", "20240305", "2024-03"),
        ("month", "202403051422", "2024-03"),
        ("month", "20240306142210", "2024-03"),
        ("month", "20240305142210123", "2024-03"),
        ("month", "20240305_142210", "2024-03"),
        ("month", "1_000", ""),
        ("month", "2024-03-05 Wolfgang Zinsmeister, room B.204", "2024-03 [name] [name], [place]"),
        ("month", "5 Mar 2024 at Garching by zinsmeister", "2024-03"),
        ("month", "2024-03-05, 14:22", "2024-03"),
        ("drop", "2024-03-05, about 14:22", "[date]"),
        ("month", "2024-03-05 in the morning", "2024-03 in the morning"),
    ],
)
def test_fields_that_hold_a_moment(precision: str, before: str, after: str) -> None:
    assert Names(dates=precision).coarse(before) == after  # type: ignore[arg-type]


@given(st.one_of(texts, glued))
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    once = KNOWN.in_text(text, Counter())
    assert KNOWN.in_text(once, Counter()) == once


@given(texts, names, texts)
def test_no_known_name_is_left(before: str, name: str, after: str) -> None:
    known = stand_ins([name], [], [], frozenset())
    for text in (f"{before} {name} {after}", f"{before}_{name.upper()}.{after}"):
        cleaned = known.in_name(text, Counter())
        assert not re.search(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", cleaned, re.I)


@given(st.from_regex(r"[a-z][a-z0-9.]{0,8}@[a-z]{2,8}\.(org|de|com)", fullmatch=True), texts)
def test_no_mail_address_is_left(address: str, text: str) -> None:
    found: Counter[str] = Counter()
    assert address not in KNOWN.in_name(f"{text} {address} {text}", found)
    assert found["mail address"] >= 1


@given(st.dates(min_value=__import__("datetime").date(2000, 1, 1)), st.times())
def test_no_day_and_no_hour_is_left(day: object, hour: object) -> None:
    if not str(day).startswith(("19", "20")):
        return
    for text in (f"{day}", f"{day}T{hour}", f"run {day} {hour} end"):
        cleaned = KNOWN.in_name(text, Counter())
        assert str(day) not in cleaned
        assert str(hour)[:5] not in cleaned


@given(st.lists(st.sampled_from("put the cup on a tray near 3 blocks 0.5 m".split()), max_size=12))
def test_plain_words_stay_as_they_are(words: list[str]) -> None:
    text = " ".join(words)
    assert KNOWN.in_text(text, Counter()) == text


def test_fields_tell_what_they_are_about() -> None:
    told = {
        "evaluator_name": "person", "operatorId": "person", "evaluation_location": "place", "hostname": "machine",
        "recorded": "moment", "session_creation_timestamp": "moment", "gpt5_mini_check": "text", "policy": "thing",
        "object_place": "thing", "contact": "thing",
    }  # fmt: skip
    assert {name: about(name) for name in told} == told
    assert about("anything", "a value of quite some words") == "text"
    assert about("operator_remarks", "the cup fell off when it was near") == "text"
    doers = (
        "recorded_by created_by collectedBy creator recorder demonstrator experimenter annotator uploader author owner"
    )
    assert {about(name) for name in (*doers.split(), "full_name", "checked_by")} == {"person"}
    assert {about(name) for name in ("caused_by", "sorted_by", "recorded", "policy_name")} == {"thing", "moment"}
    assert {about(name) for name in ("wifi", "ssid", "host", "machine", "computer")} == {"machine"}
    # Of what nobody knows the value tells; a policy is a policy even if it is called like somebody.
    assert about("contact", "Lerato Dlamini") == about("helper", "Juan Xyloquin") == about("helper", "juan") == "person"
    assert about("contact", "left finger") == about("policy", "Juan") == about("fruit", "the juan cup") == "thing"
    assert is_clock("observation.timestamp") and not is_clock("times_grasped")
    assert is_on_globe("gps.lat") and not is_on_globe("plate")


def test_fields_with_numbers_and_endings_are_about_the_same() -> None:
    people = "operator1 annotator2 user1 rater3 operatorid userName2 annotatornames worker_7 OperatorID"
    assert {name: about(name, "mensah") for name in people.split()} == dict.fromkeys(people.split(), "person")
    assert {about(name, "kestrel") for name in ("hostname2", "host1", "hostid", "pc3")} == {"machine"}
    assert {about(name) for name in ("room2", "labname")} == {"place"} and about("date2") == "moment"
    assert is_on_globe("gps0/fix") and is_on_globe("base_wgs84") and is_on_globe("geo_pos") and is_on_globe("lat")
    assert about("android", "x") == about("tidy", "x") == about("grids", "x") == "thing"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("generated_by", name) for name in ("pi0", "pi0_fast_droid", "gpt-4o", "openvla-7b", "octo", "act", "dp")),
        ("controlled_by", "policy"),
        *(("judge", "gpt-4o"), ("judge_model", "gpt-4o"), ("student_model", "vit"), ("annotator", "gemini-2.5-pro")),
        *(("subject", "cup"), ("target_location", "shelf"), ("goal_location", "left drawer"), ("lat_accel", "0.3")),
        *(("path_length", "1.35"), ("file_format", "mp4"), ("machine", "washing machine"), ("num_workers", "4")),
    ],
)  # fmt: skip
def test_policies_and_measures_are_nobody(field: str, value: str) -> None:
    assert about(field, value) == "thing"


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("generated_by", "dp42", "person"),
        ("generated_by", "kwame7", "person"),
        ("recorded_by", "Claude", "person"),
        ("recorded_by", "rose", "person"),
        ("judge", "act kowalczyk", "person"),
        ("judge_model", "Anna", "person"),
        ("subject", "3", "person"),
        ("subject", "S03", "person"),
        ("subject", "xyloquin", "person"),
        ("operator_height", "171", "person"),
        ("model_author", "mensah", "person"),
        ("target_location", "Rosenheim", "place"),
        ("location", "kitchen", "place"),
        ("machine", "falcon", "machine"),
        ("path", "left drawer", "machine"),
    ],
)
def test_people_and_places_stay_people_and_places(field: str, value: str, kind: str) -> None:
    assert about(field, value) == kind


def test_a_long_name_of_a_model_takes_no_longer_than_its_length() -> None:
    started = time.process_time()
    assert about("generated_by", "gpt" + "1-" * 20_000 + "!") == "person"
    assert time.process_time() - started < 1


def test_seeds_steps_hashes_and_versions_are_no_moments() -> None:
    counted = {
        "seed": "1608637542",
        "ckpt_step": "1500000000",
        "version": "2024.10.05",
        "sw": "10.2.3.4",
        "sha256": "12" * 8,
    }
    for field, value in counted.items():
        assert is_counted(field, value)
        assert Names().in_name(value, Counter(), counted=True) == value != Names().in_name(value, Counter())
    assert KNOWN.in_name("anna_3, https://x.org", Counter(), counted=True) == "person-1_3, [link]"
    # A name that also says when, words, and an id that is text: these are searched as ever.
    assert not is_counted("step_time", "1608637542") and not is_counted("hash_date") and not is_counted("note", "3")
    assert not is_counted("step", "ask Maria") and not is_counted("session_id", "1709648530")
    assert is_counted("track_id") and is_counted("encoder_ticks") and is_counted("hash64") and not is_counted("t")


def test_spellings_of_licences() -> None:
    for given_name, name in (
        ("mit", "MIT"),
        ("Apache 2.0", "Apache-2.0"),
        ("CC BY 4.0", "CC-BY-4.0"),
        ("cc0", "CC0-1.0"),
    ):
        assert spelt(given_name) == name
    assert spelt("The MIT License") == "MIT"
    assert spelt("my own") == "my own"
    assert hub_name("CC BY-NC 4.0") == "cc-by-nc-4.0"
    assert hub_name("my own") == "other"
    assert hub_name("Apache-2.0 AND MIT") == "other"
    assert hub_id("Apache-2.0 AND MIT") == "apache-2.0-and-mit"


@pytest.mark.parametrize(
    ("mixed", "whole"),
    [
        ({"MIT": 3}, "MIT"),
        ({"cc0": 1, "MIT": 3}, "MIT"),
        ({"MIT": 1, "CC-BY-SA-4.0": 2}, "CC-BY-SA-4.0"),
        ({"CC-BY-4.0": 1, "CC-BY-NC-4.0": 2, "CC0-1.0": 1}, "CC-BY-NC-4.0"),
        ({"CC-BY-NC-4.0": 1, "CC-BY-NC-SA-4.0": 2}, "CC-BY-NC-SA-4.0"),
        ({"our own terms": 4}, "our own terms"),
        ({"CC-BY-ND-4.0": 4}, "CC-BY-ND-4.0"),
        ({"MIT": 1, "CC BY 4.0": 9, "Apache 2.0": 1}, "Apache-2.0 AND CC-BY-4.0 AND MIT"),
        ({"Unlicense": 1, "cc0": 9}, "CC0-1.0 AND Unlicense"),
        ({"Apache-2.0 AND MIT": 2, "mit": 1}, "Apache-2.0 AND MIT"),
        ({"apache-2.0-and-mit": 2, "CC-BY-NC-4.0": 1}, "CC-BY-NC-4.0"),
    ],
)
def test_licences_that_go_together(mixed: dict[str, int], whole: str) -> None:
    assert whole_licence(mixed) == whole


@pytest.mark.parametrize(
    ("mixed", "said"),
    [
        ({"CC-BY-SA-4.0": 1, "CC-BY-NC-4.0": 1}, "release each apart"),
        ({"CC-BY-SA-4.0": 1, "ODbL-1.0": 1}, "release each apart"),
        ({"our own terms": 1, "MIT": 1}, "--where 'licence=our own terms'"),
        ({"CC-BY-ND-4.0": 1, "MIT": 1}, "release each apart"),
        ({"": 2, "MIT": 1}, "none for 2 of 3 episodes"),
        ({"All rights reserved": 2}, "one that allows sharing"),
        ({"CC-BY-SA-4.0 AND CC-BY-NC-4.0": 2}, "release each apart"),
    ],
)
def test_licences_that_do_not(mixed: dict[str, int], said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        whole_licence(mixed)


def test_what_may_not_be_changed_is_not() -> None:
    with pytest.raises(BadInput, match="allows changes"):
        whole_licence({"CC-BY-ND-4.0": 4}, changed=True)


licences = st.sampled_from([one.name for one in TABLE.values()])


@given(st.dictionaries(st.one_of(licences, st.sampled_from(["odd terms", "others"])), st.integers(1, 9), min_size=1))
def test_the_whole_takes_all_of_its_parts_in_any_order(mixed: dict[str, int]) -> None:
    try:
        whole = whole_licence(mixed)
    except BadInput:
        assert not any(all(goes_with(part, whole) for part in mixed) for whole in mixed)
        return
    assert whole == whole_licence(dict(reversed(mixed.items())))
    assert all(goes_with(part, whole) for part in mixed)
    # Whoever got the whole may use each part at least as freely.
    order = ["no conditions", "name the authors", "not commercial", "share alike", "not commercial, share alike"]
    if len(mixed) > 1:
        terms = {name: TABLE[name.lower()].terms for name in mixed}
        strictest = [name for name in mixed if terms[name] == max(terms.values(), key=order.index)]
        assert whole == (strictest[0] if len(strictest) == 1 else " AND ".join(sorted(mixed, key=str.casefold)))
        assert hub_name(whole) == (TABLE[whole.lower()].hub if len(strictest) == 1 else "other")


@pytest.mark.parametrize(
    "said",
    """n/a;N.A.;TBD;tbd;UNLICENSED;no license;No Licence;private;none;-;?;licence pending;not for redistribution
    research only, do not redistribute;Redistribution is not permitted;internal use only;proprietary (ACME);under NDA
    all rights reserved (c) 2024;may not be shared;NOASSERTION;sharing prohibited;no sharing allowed;without a licence
    no copying, sharing or publication;may not be copied, edited, or shared;no warranty, do not share""".replace(
        "\n", ";"
    ).split(";"),
)
def test_what_says_no_is_no_licence(said: str) -> None:
    with pytest.raises(BadInput, match="one that allows sharing"):
        whole_licence({said.strip(): 2})


@pytest.mark.parametrize(
    "name",
    [
        *("our own terms", "CC-BY-NC-SA-3.0", "LGPL-3.0", "no restrictions on distribution", "other", "research only"),
        *(
            "no attribution required, sharing allowed",
            "MIT (no warranty, see LICENSE)",
            "own licence, no fee for publication",
        ),
        *("not for sale, sharing allowed", "without warranty, see the license"),
    ],
)
def test_what_nobody_knows_is_doubted_aloud(name: str) -> None:
    assert whole_licence({name: 2}) == name
    (said,) = doubts({name: 2, "MIT": 1, "Apache-2.0 AND MIT": 1})
    assert repr(name) in said and "2 episodes" in said
    assert not doubts({one.name: 1 for one in TABLE.values()})


def test_no_licence_of_the_table_says_no() -> None:
    for one in TABLE.values():
        assert whole_licence({one.name: 1}) == spelt(f"the {one.name} license") == one.name


@given(licences, licences, licences)
def test_going_together_is_an_order(a: str, b: str, c: str) -> None:
    assert goes_with(a, a)
    if goes_with(a, b) and goes_with(b, c):
        assert goes_with(a, c)
    if goes_with(a, b) and goes_with(b, a):
        assert TABLE[a.lower()].terms == TABLE[b.lower()].terms


def test_words_for_no_licence_are_spelt_as_they_are_looked_up() -> None:
    assert all(word == word.lower() and " " not in word for word in CLOSED)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Hand the cup to Bob Miller", "Hand the cup to [name]"),
        ("give the mug to Maria", "give the mug to [name]"),
        ("Gib Frau Schneider die Tasse", "Gib Frau [name] die Tasse"),
        ("put Anna's bottle in the bin", "put [name] bottle in the bin"),
        ("put Wendy's cup in the bin", "put [name] cup in the bin"),
        ("hand the Anna's cup to Dr. Peppermann", "hand the [name] cup to Dr. [name]"),
        ("take the doll from Elsa, Tim and Scott", "take the doll from [name], [name] and [name]"),
    ],
)
def test_who_is_surely_somebody_leaves_an_instruction(text: str, clean: str) -> None:
    assert Names().in_instruction(text, Counter()) == clean


@pytest.mark.parametrize(
    "text",
    [
        "Pick up the Allen key",
        "Mark the box with the Panda arm",
        "put the Coke beside the Rubik's Cube",
        "Rose goes into the China vase",
        "Bob the buoy in the water",
        "Stack the LEGO on the KALLAX shelf",
        "Put the Dr. Pepper next to the Dr Pepper can",
        "Place Mr. Potato Head in the box and wipe with Mr Clean",
        "Open the Annie's mac and the Uncle Ben’s rice",
        "Put the Wendy's cup beside a Tim Hortons cup",
        "Put the Bobby pin and the Elsa doll on the Scott towel",
    ],
)
def test_things_stay_in_an_instruction(text: str) -> None:
    assert Names().in_instruction(text, Counter()) == text


def test_seeds_steps_and_versions_are_no_moments(make_episode: Callable[..., Episode]) -> None:
    tags = {"seed": "1608637542", "ckpt_step": "1500000000", "version": "2024.10.05", "sw": "1.2.3.4"}
    clean = Cleaner(Names()).episode(replace(make_episode(), origin=Origin(tags={**tags, "made": "1608637542"})))
    assert clean.origin.tags == {**tags, "made": "2020-12"}
