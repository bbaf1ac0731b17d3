"""Made-up words about people and places that are hidden in texts of robot data, and words that only look like them.

The names here are the held-out half: `scrubbing.py` refuses to run if a rule lists one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

HELD_OUT_NAMES = tuple(
    """
    Tobias Annika Wolfgang Heike Lieselotte Matthieu Benoit Solene Elodie Thibault Gonzalo Itziar Rocio Iker Macarena
    Gianluca Chiara Fabrizio Ilaria Duarte Beatriz Thiago Larissa Agnieszka Zbigniew Malgorzata Radek Vojtech Zdenka
    Dmitri Svetlana Yaroslav Oksana Bogdan Ioana Szabolcs Eszter Kaisa Jukka Sigrid Torbjorn Freja Magnus Aoife Niamh
    Siobhan Alistair Gwyneth Deirdre Brandon Tyler Madison Brittany Courtney Dustin Shelby Latoya Deshawn Keisha
    Tremaine Haruto Sakura Takumi Ayaka Shinji Minjun Seoyeon Jiwoo Hyunwoo Weijie Xiaomei Zihan Yuxuan Ruoxi Guangyu
    Thuy Ngoc Quang Siti Rizal Wayan Anjali Rohan Deepika Vikram Lakshmi Suresh Farhan Ayesha Bilal Mahnoor Reza Nasrin
    Behzad Shirin Yusuf Zeynep Emre Elif Mustafa Khalid Layla Noura Tariq Chidi Ngozi Folake Tunde Kwame Abena Thabo
    Lerato Tendai Wanjiru Kamau Amara Makana Leilani Aroha Tane Nahuel Ximena Itzel Jimena
    """.split()
)
SURNAMES = tuple(
    """
    Schneider Baumgartner Lefebvre Moreau Garcia Echeverria Rossi Esposito Ferreira Oliveira Kowalski Novak Ivanov
    Petrenko Popescu Nagy Virtanen Lindqvist Rasmussen O'Sullivan McAllister Whitfield Hutchinson Washington Tanaka
    Yamamoto Kim Choi Zhang Huang Nguyen Tran Wijaya Sharma Krishnamurthy Patel Qureshi Hosseini Yilmaz Haddad Okafor
    Mensah Dlamini Mwangi Kealoha Quispe Fernandez-Lopez
    """.split()
)
HELD_OUT_CITIES = tuple(
    """
    Ingolstadt Freiburg Grenoble Besancon Salamanca Zaragoza Bologna Trieste Coimbra Gdansk Brno Lviv Cluj Debrecen
    Tampere Uppsala Aarhus Galway Swansea Albuquerque Tucson Spokane Nagoya Sendai Daejeon Hefei Wuxi Danang Bandung
    Pune Nagpur Lahore Isfahan Bursa Haifa Kumasi Nakuru Durban Rosario Medellin
    """.split()
)
LABS = ("Moravec", "Kestrel", "Nightingale", "Aurora", "Tinkerbell", "Halcyon", "Verne", "Octavia")
STREETS = ("Magnolia", "Birchwood", "Wellington", "Ostrander", "Kingsley", "Fairmont", "Lindenhof", "Sycamore")
HELD_OUT_BRANDS = tuple(
    "Doritos Nutella Heinz Dasani Gatorade Snapple Febreze Dawn Tide Crayola Hasbro Moleskine Stabilo Tesa Bosch "
    "Dremel Makita Dyson Keurig Nespresso Pyrex Stanley Thinkpad Airpods Xarm Flexiv Dobot Koala Unitree Schunk".split()
)

SUBJECTS = ("the gripper", "the arm", "the robot", "the policy", "the cup", "the block", "the lid", "the towel")
HAPPENED = (
    "slipped off the edge", "missed the handle", "stopped half way", "closed too early", "hit the table",
    "went to the wrong drawer", "got stuck at the lid", "dropped the cup",
)  # fmt: skip
NOTES: tuple[str, ...] = (
    "{It} {happened}, ask {x} about it",
    "{It} {happened} while {x} was near the table",
    "{x} had to reset the scene because {it} {happened}",
    "{It} {happened}. {x} said the camera was moved before",
    "failed: {it} {happened}, see what {x} wrote",
    "same as the run with {x}, {it} {happened}",
    "recorded by {x}, {it} {happened}",
    "{it} {happened} ({x})",
    "Success, but {x} touched {it} during the episode",
    "thanks to {x} {it} is calibrated again; still, {it} {happened}",
)
"""for people; `{x}` is where the private words stand"""
PLACED: tuple[str, ...] = (
    "{It} {happened}, recorded at {x}",
    "{it} {happened} in {x}",
    "moved here from {x}, {it} {happened}",
    "{It} {happened}. Light is different than in {x}",
    "taken to {x} after {it} {happened}",
)
MACHINE: tuple[str, ...] = (
    "{It} {happened}, log is at {x}",
    "{it} {happened}; data came from {x}",
    "see {x} for the other camera, {it} {happened}",
    "{It} {happened}. Rerun from {x} please",
    "copied from {x} after {it} {happened}",
)
MOMENTS: tuple[str, ...] = (
    "{It} {happened} on {x}",
    "recorded {x}, {it} {happened}",
    "{It} {happened}. Same fault as {x}",
    "broken since {x}: {it} {happened}",
    "{it} {happened} ({x})",
)
INSTRUCTIONS = (
    "Hand the cup to {x}", "put the red block into {x}'s box", "Give {x} the screwdriver", "bring the towel to {x}",
    "Move the mug next to the photo of {x}",
)  # fmt: skip
IDS = ("{x}_2_success", "run7/{x}/episode_12", "clip-{x}-03", "{x}.004", "kitchen_{x}_left")


@dataclass(frozen=True)
class Planted:
    """A text with something private in it, and what of it must not be left."""

    text: str
    secrets: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """How to make the private words of a kind: the words, and the parts of them that tell."""

    make: Callable[[random.Random], tuple[str, tuple[str, ...]]]
    within: tuple[str, ...]


def planted(kind: Kind, count: int, seed: str) -> list[Planted]:
    """Make texts with private words of a kind, the same ones for the same seed."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        words, secrets = kind.make(rng)
        it, happened = rng.choice(SUBJECTS), rng.choice(HAPPENED)
        frame = kind.within[number % len(kind.within)]
        text = frame.format(x=words, it=it, It=it.capitalize(), happened=happened)
        made.append(Planted(text[0].upper() + text[1:] if words[0].isupper() else text, secrets))
    return made


def people(names: tuple[str, ...]) -> dict[str, Kind]:
    """Kinds of words for people, made of these first names."""

    def said(form: Callable[[str, str], str], both: bool = False) -> Kind:
        def make(rng: random.Random) -> tuple[str, tuple[str, ...]]:
            first, last = rng.choice(names), rng.choice(SURNAMES)
            return form(first, last), (first, last) if both else (first,)

        return Kind(make, NOTES)

    return {
        "first name": said(lambda first, _: first),
        "first name, possessive": said(lambda first, _: f"{first}'s student"),
        "full name": said(lambda first, last: f"{first} {last}", both=True),
        "first name in small letters": said(lambda first, _: first.lower()),
        "possessive in small letters": said(lambda first, _: f"{first.lower()}'s arm"),
        "full name in small letters": said(lambda first, last: f"{first} {last}".lower(), both=True),
        "FIRST NAME IN CAPITALS": said(lambda first, _: first.upper()),
    }


def titled(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """A surname in small letters behind a title."""
    last = rng.choice(SURNAMES).lower()
    return f"{rng.choice(('dr.', 'prof.', 'prof', 'professor', 'mr.'))} {last}", (last,)


def initials(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """Letters that stand for somebody."""
    a, b = rng.sample("ABDEFGHJKLMNPRSTVW", 2)
    words = rng.choice((f"{a}.{b}.", f"{a}. {b}.", f"{a}{b}"))
    return words, (words,)


def mail(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    first, last = rng.choice(HELD_OUT_NAMES).lower(), _letters(rng.choice(SURNAMES))
    local = rng.choice((f"{first}.{last}", f"{first[0]}{last}", f"{first}{rng.randint(1, 99)}"))
    host = rng.choice(("cs.uni.example", "lab.example.org", "robotics.example.edu"))
    at = rng.choice(("@", "@", "@", " at ", " (at) "))
    return f"{local}{at}{host}", (local,)


def phone(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    digits = "".join(rng.choices("23456789", k=10))
    a, b, c = digits[:3], digits[3:6], digits[6:]
    words = rng.choice(
        (f"+1 {a} {b} {c}", f"({a}) {b}-{c}", f"{a}-{b}-{c}", f"0{a}/{b}{c}", f"+49{digits}", f"{b}-{c}")
    )
    return words, (c,)


def user(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    name = _account(rng)
    return rng.choice((f"@{name}", f"user {name}", f"user: {name}", f"login {name}", name)), (name,)


def host(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    lab, number = rng.choice(LABS).lower(), rng.randint(1, 40)
    words = rng.choice(
        (f"{lab}-pc-{number:02}", f"{lab}{number}.cs.uni.example", f"{lab}-nuc{number}",
         f"DESKTOP-{lab.upper()[:4]}4F2",
         f"{lab}.local", f"{_account(rng)}@{lab}-ws{number}", lab)
    )  # fmt: skip
    return words, (lab if lab in words else lab.upper()[:4],)


def path(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    name = _account(rng)
    words = rng.choice(
        (f"/home/{name}/logs/run3", f"/Users/{name}/demo.mp4", f"/scratch/{name}/set/ep_12", f"~{name}/videos/a.mp4",
         f"C:\\Users\\{name}\\Desktop\\run.h5", f"data/{name}/run3.hdf5", f"/nfs/groups/{name}/robot",
         f"\\\\nas\\{name}\\x")
    )  # fmt: skip
    return words, (name,)


def url(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    name = _account(rng)
    words = rng.choice(
        (f"https://example.org/~{name}/runs", f"www.{name}.example.com", f"github.com/{name}/robot-logs",
         f"{name}.github.io/notes", f"s3://{name}-bucket/run1", f"http://10.3.2.1:8080/{name}")
    )  # fmt: skip
    return words, (name,)


def lab(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    name = rng.choice(LABS)
    return rng.choice((f"the {name} lab", f"{name} Robotics Lab", f"the {name.lower()} lab", f"lab {name}")), (name,)


def room(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    number = rng.choice(
        (f"{rng.randint(1, 9)}.{rng.randint(10, 99)}", f"B-{rng.randint(100, 499)}", f"{rng.randint(100, 999)}")
    )
    return f"{rng.choice(('room', 'Room', 'lab', 'office', 'building', 'rm'))} {number}", (number,)


def street(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    name, number = rng.choice(STREETS), rng.randint(2, 180)
    words = rng.choice(
        (f"{number} {name} Street", f"{number} {name.lower()} road", f"{number} {name} Ave", f"{name}strasse {number}",
         f"rue {name} {number}", f"{number} {name.lower()} street", f"{name.lower()}weg {number}")
    )  # fmt: skip
    return words, (name,)


def gps(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    lat, lon = rng.uniform(-60, 70), rng.uniform(-150, 150)
    lat, lon = (one if abs(one) > 4 else one + 8 for one in (lat, lon))
    north, east = "N" if lat > 0 else "S", "E" if lon > 0 else "W"
    a, b = f"{abs(lat):.4f}", f"{abs(lon):.4f}"
    degrees = f"{int(abs(lat))}°{rng.randint(10, 59)}'{rng.randint(10, 59)}\"{north}"
    across = f"{int(abs(lon))}°{rng.randint(10, 59)}'{rng.randint(10, 59)}\"{east}"
    return rng.choice(
        ((f"{lat:.5f}, {lon:.5f}", (f"{lat:.5f}",)), (f"lat {lat:.3f} lon {lon:.3f}", (f"{abs(lat):.3f}",)),
         (f"{degrees} {across}", (degrees, across)), (f"{north}{a} {east}{b}", (a, b)))
    )  # fmt: skip


MONTHS = "January February March April May June July August September October November December".split()


def day(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    year, month, day_ = rng.randint(2019, 2026), rng.randint(1, 12), rng.randint(1, 28)
    name = MONTHS[month - 1]
    words = rng.choice(
        (f"{year}-{month:02}-{day_:02}", f"{name} {day_}, {year}", f"{day_}.{month}.{year}", f"{month}/{day_}/{year}",
         f"{day_} {name[:3]} {year}", f"{year}{month:02}{day_:02}")
    )  # fmt: skip
    return words, (words,)


def day_without_year(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    month, day_ = rng.randint(1, 12), rng.randint(2, 28)
    name = MONTHS[month - 1]
    words = rng.choice(
        (f"{name} {day_}", f"{day_}th of {name}", f"{name[:3].lower()} {day_}", f"{month:02}/{day_:02}/24",
         f"{day_:02}.{month:02}.24", f"{name.lower()} {day_}th")
    )  # fmt: skip
    return words, (words,)


def hour(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    h, m = rng.randint(1, 11), rng.randint(10, 59)
    words = rng.choice((f"at {h}:{m} pm", f"{h}pm", f"{h + 12}:{m} h", f"around {h + 12}:{m}", f"{h + 12}:{m}:07"))
    return words, (words.removeprefix("at ").removeprefix("around "),)


def moment(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    year, month, day_ = rng.randint(2019, 2026), rng.randint(1, 12), rng.randint(1, 28)
    h, m = rng.randint(10, 23), rng.randint(10, 59)
    words = rng.choice(
        (f"{year}-{month:02}-{day_:02}T{h}:{m}:09", f"{year}{month:02}{day_:02}_{h}{m}09",
         f"{year}/{month:02}/{day_:02} {h}:{m}")
    )  # fmt: skip
    return words, (words, f"{h}:{m}", f"{h}{m}09")


def weekday(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    name = rng.choice("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
    return rng.choice((f"last {name}", name.lower(), f"{name} morning")), (name,)


def cities(names: tuple[str, ...]) -> dict[str, Kind]:
    """Kinds of words for cities, made of these."""

    def city(rng: random.Random) -> tuple[str, tuple[str, ...]]:
        name = rng.choice(names)
        return name, (name,)

    def small(rng: random.Random) -> tuple[str, tuple[str, ...]]:
        name = rng.choice(names)
        return name.lower(), (name,)

    return {"city": Kind(city, PLACED), "city in small letters": Kind(small, PLACED)}


OTHER_KINDS: Mapping[str, Kind] = {
    "surname in small letters with a title": Kind(titled, NOTES),
    "initials": Kind(initials, NOTES),
    "mail address": Kind(mail, NOTES),
    "telephone number": Kind(phone, NOTES),
    "user name": Kind(user, MACHINE),
    "host name": Kind(host, MACHINE),
    "path with a user name": Kind(path, MACHINE),
    "link": Kind(url, MACHINE),
    "lab": Kind(lab, PLACED),
    "room": Kind(room, PLACED),
    "street": Kind(street, PLACED),
    "position on the globe": Kind(gps, PLACED),
    "day": Kind(day, MOMENTS),
    "day and hour": Kind(moment, MOMENTS),
    "day without a full year": Kind(day_without_year, MOMENTS),
    "weekday": Kind(weekday, MOMENTS),
    "hour alone": Kind(hour, MOMENTS),
}


def _letters(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalpha())


def _account(rng: random.Random) -> str:
    first, last = rng.choice(HELD_OUT_NAMES).lower(), _letters(rng.choice(SURNAMES))
    return rng.choice((f"{first[0]}{last}", f"{first}_{last[0]}", f"{first[:2]}{last[:3]}{rng.randint(10, 99)}"))
