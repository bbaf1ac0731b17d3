"""Accounts: links, passwords, sessions, what is refused; on SQLite and PostgreSQL."""

from contextlib import suppress

import pytest
import sqlalchemy as sa
from argon2 import Type, extract_parameters

from demerit.errors import BadInput, StoreError
from demerit.people import accounts as module
from demerit.people.accounts import Accounts, NotAllowed
from demerit.people.database import AUDIT, LINKS, PEOPLE, SESSIONS, Database

PASSWORD = "correct horse"


def join(accounts: Accounts, name: str, role: str = "rater") -> str:
    return accounts.join(accounts.make_link(role), name, PASSWORD)


def test_an_invited_person_gets_in_and_out_and_in_again(database: Database) -> None:
    accounts = Accounts(database)
    session = join(accounts, "Ada")
    person = accounts.find(session)
    assert person is not None and (person.name, person.role, person.is_owner) == ("Ada", "rater", False)
    accounts.log_out(session)
    assert accounts.find(session) is None
    again = accounts.find(accounts.log_in("Ada", PASSWORD, "10.0.0.1"))
    assert again is not None and again.id == person.id and again.csrf != person.csrf


def test_an_invitation_works_once(database: Database) -> None:
    accounts = Accounts(database)
    link = accounts.make_link("rater")
    accounts.join(link, "Ada", PASSWORD)
    with pytest.raises(NotAllowed) as caught:
        accounts.join(link, "Bob", PASSWORD)
    assert caught.value.status_code == 404


def test_a_refused_name_does_not_use_up_the_invitation(database: Database) -> None:
    accounts = Accounts(database)
    join(accounts, "Ada")
    link = accounts.make_link("rater")
    for name, password in (
        ("Ada", PASSWORD),
        ("<b>", PASSWORD),
        ("", PASSWORD),
        ("x" * 61, PASSWORD),
        ("Bob", "short"),
    ):
        with pytest.raises(BadInput):
            accounts.join(link, name, password)
    assert accounts.find(accounts.join(link, "Bob", PASSWORD)) is not None


def test_expired_links_and_sessions_let_nobody_in(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = Accounts(database)
    session, link = join(accounts, "Ada"), accounts.make_link("rater")
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + module.SESSION_SECONDS + 1)
    assert accounts.find(session) is None
    with pytest.raises(NotAllowed):
        accounts.join(link, "Bob", PASSWORD)


def test_the_link_of_a_person_lets_that_person_in_and_nobody_join(database: Database) -> None:
    accounts = Accounts(database)
    link = accounts.make_link("owner", accounts.ensure_owner("me"))
    person = accounts.find(accounts.enter(link))
    assert person is not None and person.is_owner and accounts.ensure_owner("me") == person.id
    with pytest.raises(NotAllowed):
        accounts.join(link, "Bob", PASSWORD)
    with pytest.raises(NotAllowed):
        accounts.enter(accounts.make_link("rater"))


def test_wrong_passwords_and_unknown_names_are_refused_alike(database: Database) -> None:
    accounts = Accounts(database)
    join(accounts, "Ada")
    accounts.ensure_owner("me")  # has no password
    said = set()
    for name, password in (("Ada", "wrong password"), ("Eve", PASSWORD), ("me", PASSWORD), ("me", "")):
        with pytest.raises(NotAllowed) as caught:
            accounts.log_in(name, password, "10.0.0.1")
        said.add((caught.value.status_code, str(caught.value)))
    assert len(said) == 1 and {status for status, _ in said} == {403}


def test_guessing_is_limited_by_name_and_by_address(database: Database) -> None:
    accounts = Accounts(database)
    join(accounts, "Ada")
    statuses = []
    for place in range(8):
        with pytest.raises(NotAllowed) as caught:
            accounts.log_in("Ada", "wrong password", f"10.0.0.{place}")
        statuses.append(caught.value.status_code)
    assert statuses == [403] * 5 + [429] * 3
    with pytest.raises(NotAllowed) as caught:
        accounts.log_in("Ada", PASSWORD, "10.0.1.1")  # also the right one, for a minute
    assert caught.value.status_code == 429
    for place in range(60):
        accounts._count_try({"name": f"guess {place}", "address": "10.0.0.99"})
    with pytest.raises(NotAllowed) as caught:
        accounts._count_try({"name": "another", "address": "10.0.0.99"})
    assert caught.value.status_code == 429


def test_tries_take_little_memory_whatever_is_sent(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TRIES", 20)
    accounts = Accounts(database)
    for name, password in (("x" * 61, "short"), ("Ada", "x" * 201), ("a\0b", "short"), ("", "short")):
        with pytest.raises(NotAllowed) as caught:
            accounts.log_in(name, password, "10.0.0.1")
        assert caught.value.status_code == 403 and not accounts._tries
    for _ in range(30):
        with suppress(NotAllowed):
            accounts._count_try({"name": "Ada", "address": "x" * 100_000})
    assert len(accounts._tries) == 2 * module.TRIES["name"]  # refused ones are not kept
    assert sum(len(hash) for _, hash in accounts._tries) < 1000
    for place in range(30):
        accounts._count_try({"name": f"guess {place}"})
    assert len(accounts._tries) == module.MOST_TRIES


def test_a_closed_account_is_out_at_once(database: Database) -> None:
    accounts = Accounts(database)
    session = join(accounts, "Ada")
    ada = accounts.find(session)
    owner = accounts.find(accounts.enter(accounts.make_link("owner", accounts.ensure_owner("me"))))
    assert ada is not None and owner is not None
    accounts.set_active(ada.id, False, owner)
    assert accounts.find(session) is None
    with pytest.raises(NotAllowed):
        accounts.log_in("Ada", PASSWORD, "10.0.0.1")
    with pytest.raises(BadInput):
        accounts.set_active(owner.id, False, owner)


def test_no_secret_is_in_the_database(database: Database) -> None:
    accounts = Accounts(database)
    link = accounts.make_link("rater")
    session = join(accounts, "Ada")
    with database.begin() as db:
        stored = str([db.execute(sa.select(table)).all() for table in (PEOPLE, LINKS, AUDIT)])
        hashes = str(db.execute(sa.select(SESSIONS.c.hash)).all())
    assert all(secret not in stored + hashes for secret in (link, session, PASSWORD))
    assert "$argon2id$" in stored


@pytest.mark.usefixtures("real_passwords")
def test_a_password_is_costly_to_guess(database: Database) -> None:
    accounts = Accounts(database)
    join(accounts, "Ada")
    with database.begin() as db:
        stored = db.execute(sa.select(PEOPLE.c.password)).scalar_one()
    cost = extract_parameters(stored)
    assert cost.type is Type.ID and cost.memory_cost >= 64 * 1024 and cost.time_cost >= 3  # RFC 9106, little memory
    assert accounts.find(accounts.log_in("Ada", PASSWORD, "10.0.0.1")) is not None
    with pytest.raises(NotAllowed):
        accounts.log_in("Ada", "wrong password", "10.0.0.1")


def test_the_log_says_who_joined_and_who_invited(database: Database) -> None:
    accounts = Accounts(database)
    owner = accounts.find(accounts.enter(accounts.make_link("owner", accounts.ensure_owner("me"))))
    assert owner is not None
    accounts.join(accounts.make_link("rater", by=owner), "Ada", PASSWORD)
    with database.begin() as db:
        rows = db.execute(sa.select(PEOPLE.c.name, AUDIT.c.action).join(PEOPLE).order_by(AUDIT.c.id)).all()
    assert [tuple(row) for row in rows] == [("me", "invite"), ("Ada", "join")]


def test_a_name_with_sql_in_it_is_a_name(database: Database) -> None:
    accounts = Accounts(database)
    join(accounts, "Ada")
    for name in ("Ada' OR '1'='1", "'; DROP TABLE people; --"):
        with pytest.raises(NotAllowed):
            accounts.log_in(name, PASSWORD, "10.0.0.1")
    assert accounts.find(accounts.log_in("Ada", PASSWORD, "10.0.0.1")) is not None


@pytest.mark.parametrize("url", ["mysql://x/y", "not a url", "postgresql://"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises((BadInput, StoreError)):
        Database(url)
