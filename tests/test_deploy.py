"""What is in deploy/: parsed as its programs do, and held against the repository and against servers that run.

No container is started: neither Docker nor a registry is needed.
"""

import fnmatch
import json
import os
import re
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from demerit import RemoteModel
from demerit.cli import COMMANDS, load_command
from demerit.data.formats import open_dataset
from demerit.data.reward import Verdict
from demerit.models import load_model
from demerit.use.watch.alarms import AlarmCondition
from demerit.use.watch.figures import WatchPage
from demerit.use.watch.watcher import WatchedEpisode, Watcher
from demerit.web.media import EpisodeMedia
from fakes.paths import REPO
from fakes.postgres import create_database
from fakes.processes import running
from fakes.tiny_video import put_video

DEPLOY = REPO / "deploy"
TOKEN = "a token for tests only"
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")
COMPOSE_TEXT = (DEPLOY / "compose.yaml").read_text("utf-8")
COMPOSE = yaml.safe_load(VARIABLE.sub(lambda found: found[2] or "", COMPOSE_TEXT))
SERVICES = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == "demerit"]
GUIDE = (REPO / "docs" / "deploy.md").read_text("utf-8")
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text("utf-8"))
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text("utf-8"))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if re.match(r"[A-Z]", line)]


def parse(words: list[str]) -> dict[str, Any]:
    """The options of a command, as the command line reads them."""
    parameters: dict[str, Any] = load_command(COMMANDS, words[0]).make_context(words[0], list(words[1:])).params
    return parameters


@pytest.mark.parametrize("name", OURS)
def test_every_service_runs_a_command_that_exists(name: str) -> None:
    assert name in COMMANDS and SERVICES[name]["command"][0] == name
    assert parse(SERVICES[name]["command"])["port"] in (8000, 8020, 8300)
    with pytest.raises(Exception, match="No such option"):  # Typer's own copy of click
        parse([*SERVICES[name]["command"], "--no-such-option"])


def test_servers_listen_at_this_machine_alone() -> None:
    assert OURS == ["serve", "watch", "annotate"]
    assert [parse(SERVICES[name]["command"]).get("host", "127.0.0.1") for name in OURS] == ["127.0.0.1"] * 3
    assert not any("ports" in service for service in SERVICES.values())
    assert SERVICES["postgres"]["network_mode"] == "none"
    assert "--web.listen-address=127.0.0.1:9090" in SERVICES["prometheus"]["command"]
    assert SERVICES["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_the_image_holds_what_the_build_needs_and_runs_as_nobody_special() -> None:
    copied = [words.split()[:-1] for name, words in instructions() if name == "COPY" and "--from" not in words]
    sources = {source for one in copied for source in one}
    assert sources and all((REPO / source).exists() for source in sources)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").split()
    admitted = [pattern[1:] for pattern in ignored if pattern.startswith("!")]
    assert ignored[0] == "*" and all(any(fnmatch.fnmatch(one, ok) for ok in admitted) for one in sources)
    project = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]
    assert {project["readme"], *project["license-files"], "src", "pyproject.toml", "constraints.txt"} == sources
    defaults = dict(words.split("=", 1) for name, words in instructions() if name == "ARG" and "=" in words)
    assert set(defaults["EXTRAS"].split(",")) <= set(project["optional-dependencies"])
    assert COMPOSE["x-demerit"]["build"]["args"] == defaults
    (user,) = (words for name, words in instructions() if name == "USER")
    for one in (user, *(SERVICES[name]["user"] for name in OURS)):
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", one)
    assert (dict(instructions())["ENTRYPOINT"], "demerit") == ('["demerit"]', *project["scripts"])
    assert "://" not in "".join(words for _, words in instructions())


def test_no_secret_is_written_down() -> None:
    assert set(COMPOSE["secrets"]) == {
        one["source"] for service in SERVICES.values() for one in service.get("secrets", ())
    }
    assert all(set(secret) == {"environment"} for secret in COMPOSE["secrets"].values())
    for path in (path for path in DEPLOY.rglob("*") if path.is_file()):
        assert not re.search(r"(password|token)\w*\s*[:=]\s*[\"']?\w{8,}", path.read_text("utf-8"), re.I), path
    assert "/deploy/.env" in (REPO / ".gitignore").read_text("utf-8").splitlines()
    named = {secret["environment"] for secret in COMPOSE["secrets"].values()}
    for name in named | {found[1] for found in VARIABLE.finditer(COMPOSE_TEXT)}:
        assert name in GUIDE, f"the guide does not mention {name}"


def test_what_is_mounted_exists() -> None:
    mounts = [one.split(":") for service in SERVICES.values() for one in service.get("volumes", ())]
    for source, target, *_ in mounts:
        if source.startswith("./"):
            assert (DEPLOY / source).is_file(), source
        elif source:  # not ${DEMERIT_DATA}
            assert source in COMPOSE["volumes"], source
        assert target.startswith("/")
    places = {target for _, target, *_ in mounts}
    assert "/etc/prometheus/prometheus.yml" in places
    assert {f"/etc/prometheus/{name}" for name in PROMETHEUS["rule_files"]} <= places
    provider = yaml.safe_load((DEPLOY / "grafana" / "provider.yml").read_text("utf-8"))["providers"][0]
    assert f"{provider['options']['path']}/dashboard.json" in places
    gpu = yaml.safe_load((DEPLOY / "gpu.yaml").read_text("utf-8"))["services"]
    assert set(gpu) <= set(SERVICES)


def test_prometheus_asks_the_servers_and_grafana_asks_prometheus() -> None:
    jobs = {job["job_name"]: job for job in PROMETHEUS["scrape_configs"]}
    for name, job in jobs.items():
        port = parse(SERVICES[name]["command"])["port"]
        assert job["static_configs"] == [{"targets": [f"127.0.0.1:{port}"]}]
    token = jobs["serve"]["authorization"]["credentials_file"]
    assert token == str(parse(SERVICES["serve"]["command"])["token_file"]) == "/run/secrets/serve_token"
    assert [one["source"] for one in SERVICES["prometheus"]["secrets"]] == ["serve_token"]
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasource.yml").read_text("utf-8"))["datasources"]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}
    assert f"listen-address={source['url'].removeprefix('http://')}" in " ".join(SERVICES["prometheus"]["command"])
    boxes = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [(x, y) for b in boxes for x in range(b["x"], b["x"] + b["w"]) for y in range(b["y"], b["y"] + b["h"])]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) == 23  # no panel lies on another


# Against servers that run


@contextmanager
def serving(name: str, changes: dict[str, str]) -> Iterator[str]:
    """Run the command of a service with other paths and a free port; yield its address."""
    words = SERVICES[name]["command"]
    words = [changes.get(word, word) for word in words]
    words[words.index("--port") + 1] = "0"
    environment = {"PYTHONUNBUFFERED": "1", "COLUMNS": "500"}
    command = [sys.executable, "-m", "demerit", *words]
    with running(command, env={**os.environ, **environment}, start_new_session=True) as run:
        assert run.stdout is not None
        line = next((line for line in run.stdout if "http://" in line), "")
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found is not None, line
        yield found[0]


def get(address: str, token: str = "") -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def health_path(name: str) -> str:
    """The path that the health check of a service asks; its port is that of the service."""
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", " ".join(SERVICES[name]["healthcheck"]["test"]))
    assert found is not None and int(found[1]) == parse(SERVICES[name]["command"])["port"]
    return found[2]


def labels_by_metric(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries() -> list[tuple[str, str]]:
    """Every expression with the text that shows its labels."""
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    panels = [(target["expr"], target["legendFormat"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*panels, *((rule["expr"], rule["annotations"]["summary"].replace("$labels.", "")) for rule in rules)]


def check_queries(server: str, known: dict[str, set[str]]) -> None:
    """Every metric of a server that is asked for is printed, and has the labels that are named."""
    asked = 0
    for expression, shown in queries():
        names = set(re.findall(r"\bdemerit_\w+", expression))
        if not names or ("watch" if "demerit_watch_" in expression else "serve") != server:
            continue
        asked += 1
        assert names <= set(known), expression
        labels = set().union(*(known[name] for name in names)) | {"le"}
        used = set(re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", expression)) | set(re.findall(r"{{ ?(\w+) ?}}", shown))
        used |= {label.strip() for group in re.findall(r"by \(([^)]+)\)", expression) for label in group.split(",")}
        assert used <= labels, expression
    assert asked > 5


@pytest.mark.slow
def test_serve_is_healthy_and_prints_what_the_dashboard_shows(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with serving("serve", {"/run/secrets/serve_token": str(tmp_path / "token")}) as address:
        assert json.loads(get(address + health_path("serve")))["status"] == "ok"  # without the token
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(f"{address}/metrics")
        run = RemoteModel(address, token=TOKEN).start("push the cup")
        run.step(np.zeros((48, 64, 3), np.uint8))
        check_queries("serve", labels_by_metric(get(f"{address}/metrics", TOKEN)))


@pytest.mark.slow
def test_watch_is_healthy(tmp_path: Path) -> None:
    put_video(tmp_path / "runs" / "a.mp4")
    with serving("watch", {"/data/runs": str(tmp_path / "runs")}) as address:
        assert labels_by_metric(get(address + health_path("watch")))["demerit_watch_info"] == {"model"}
        assert "demerit" in get(address)


def test_watch_prints_what_the_dashboard_shows(tmp_path: Path) -> None:
    put_video(tmp_path / "runs" / "a.mp4")
    watcher = Watcher(str(tmp_path / "runs"), load_model("clock"), open_dataset, settle=0.0)
    watcher.look()
    some = [
        WatchedEpisode(f"e{i}", "push", i, float(i), (i % 7) / 7, Verdict(bool(i % 2)), 0.5, "", kind="slip")
        for i in range(80)
    ]
    watcher.state = replace(watcher.state, rows=tuple(some))
    condition = SERVICES["watch"]["command"][SERVICES["watch"]["command"].index("--alarm") + 1]
    page = WatchPage(watcher, EpisodeMedia(tmp_path / "media"), [AlarmCondition.parse(condition)])
    check_queries("watch", labels_by_metric(page.metrics()))


@pytest.mark.slow
def test_annotate_is_healthy_with_postgresql_through_its_socket(tmp_path: Path, postgres: str) -> None:
    put_video(tmp_path / "runs" / "a.mp4")
    address = create_database(postgres)
    with psycopg.connect(postgres) as connection:
        (row,) = connection.execute("SHOW unix_socket_directories")
    command = SERVICES["annotate"]["command"]
    planned = command[command.index("--database") + 1]
    assert planned == "postgresql://demerit@/demerit?host=/var/run/postgresql"
    assert any(one.endswith(":/var/run/postgresql") for one in SERVICES["postgres"]["volumes"])
    port, name = re.findall(r":(\d+)/(\w+)$", address)[0]
    here = f"postgresql://tester@/{name}?host={row[0]}&port={port}"
    with serving("annotate", {"/data/runs": str(tmp_path / "runs"), planned: here}) as url:
        assert "password" in get(url + health_path("annotate"))
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT count(*) FROM items").fetchone() != (0,)
