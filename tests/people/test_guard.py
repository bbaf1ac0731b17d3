"""The guard: TLS beyond this machine, cookies, sizes, requests that end early."""

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response

from demerit.errors import BadInput
from demerit.people.accounts import TRIES, Accounts
from demerit.people.database import Database
from demerit.people.guard import ANYBODY, MOST_BYTES, Guard
from demerit.web.doors import STRANGER_BYTES
from demerit.web.server import WebServer


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    database = Database(f"sqlite:///{tmp_path}/work.db")
    yield Accounts(database)
    database.close()


def make_guard(accounts: Accounts, **options: bool) -> Guard:
    guard = Guard(accounts, **options)
    guard.add("POST", "/echo", ANYBODY, lambda asked: Response(asked.body))
    return guard


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_beyond_this_machine_tls_is_demanded(accounts: Accounts, host: str) -> None:
    with pytest.raises(BadInput) as caught:
        WebServer(make_guard(accounts).app, host)
    assert "--tls" in caught.value.expected


def test_with_a_certificate_pages_come_by_https_and_cookies_only_so(accounts: Accounts, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program to make a certificate")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run(
        [*make, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    guard = make_guard(accounts, is_secure=True)
    link = accounts.make_link("owner", accounts.ensure_owner("me"))
    with WebServer(guard.app, tls=(cert, key)) as server:
        assert server.url.startswith("https://")
        answer = httpx.get(f"{server.url}/enter/{link}", verify=ssl.create_default_context(cafile=str(cert)))
    cookie = answer.headers["set-cookie"].lower()
    assert "secure" in cookie and "httponly" in cookie and "samesite=lax" in cookie


def test_files_that_are_no_certificate_are_one_sentence(accounts: Accounts, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing")
    with pytest.raises(BadInput):
        WebServer(make_guard(accounts).app, tls=(tmp_path / "cert.pem", tmp_path / "cert.pem"))


def test_a_port_in_use_is_one_sentence(accounts: Accounts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BadInput):
        WebServer(make_guard(accounts).app, port=taken.getsockname()[1])


def test_the_public_name_is_answered_and_no_other(accounts: Accounts) -> None:
    with WebServer(make_guard(accounts).app, names=["label.example"]) as server:
        statuses = [
            httpx.get(f"{server.url}/login", headers={"host": name}).status_code for name in ("label.example", "evil")
        ]
    assert statuses == [200, 421]


def test_a_body_that_is_too_large_or_ends_early_is_refused(accounts: Accounts) -> None:
    link = accounts.make_link("owner", accounts.ensure_owner("me"))
    with WebServer(make_guard(accounts).app) as server, httpx.Client(base_url=server.url) as me:
        stranger = [httpx.post(f"{server.url}/echo", content=bytes(STRANGER_BYTES + more)) for more in (0, 1)]
        me.get(f"/enter/{link}")
        large = [me.post("/echo", content=bytes(MOST_BYTES + more)) for more in (0, 1)]
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
        after = httpx.post(f"{server.url}/echo", content=b"whole")
    assert [answer.status_code for answer in (*stranger, *large)] == [200, 413, 200, 413]
    assert after.content == b"whole"


def test_behind_a_proxy_tries_are_counted_by_the_address_that_it_saw(accounts: Accounts) -> None:
    with WebServer(make_guard(accounts).app, behind_proxy=True) as server:
        for place in range(TRIES["address"]):
            accounts._count_try({"name": f"guess {place}", "address": "10.0.0.1"})
        late = httpx.post(
            f"{server.url}/login",
            data={"name": "another", "password": "a password"},
            headers={"X-Forwarded-For": "6.6.6.6, 10.0.0.1"},
        )
    assert late.status_code == 429
