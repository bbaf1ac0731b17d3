"""Finding checkpoints: folders, the hub's cache, and every way a download fails."""

import errno
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from demerit.errors import AmbiguityWarning, BadInput, DemeritError, StoreError
from demerit.models.published.topreward import TOPReward
from demerit.models.vlm.hub import hub_id, hub_revision, locate_checkpoint
from fakes.tiny_vlm import tiny_checkpoint


def test_folders_are_used_as_they_are(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen")
    assert locate_checkpoint(str(folder)) == folder
    assert hub_revision(folder) is None
    with pytest.raises(BadInput, match="revision"):
        locate_checkpoint(str(folder), "main")
    for odd in ("robometer", "a/b/c", str(tmp_path / "none"), "./none", ""):
        with pytest.raises(BadInput, match="owner/name"):
            locate_checkpoint(odd)


def hub_error(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, "the hub's own words")
    return error


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (hub_error(hub_errors.GatedRepoError), BadInput, "terms"),
        (hub_error(hub_errors.RepositoryNotFoundError), BadInput, "public"),
        (hub_error(hub_errors.RevisionNotFoundError), BadInput, "'v9'"),
        (hub_error(hub_errors.LocalEntryNotFoundError), BadInput, "connection"),
        (hub_errors.OfflineModeIsEnabled("offline"), BadInput, "connection"),
        (OSError(errno.ENOSPC, "No space left on device"), StoreError, "HF_HOME"),
        (PermissionError(errno.EACCES, "denied"), BadInput, "PermissionError"),
    ],
)
def test_every_download_error_is_translated(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[DemeritError], word: str
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(kind, match=word):
        locate_checkpoint("a/b", "v9")


def test_only_needed_files_are_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "it", "qwen")
    asked: dict[str, Any] = {}

    def fetch(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert locate_checkpoint("Qwen/Qwen3-VL-4B-Instruct", "c0ffee") == folder
    assert (asked["name"], asked["revision"]) == ("Qwen/Qwen3-VL-4B-Instruct", "c0ffee")
    assert "model-*.safetensors" in asked["allow_patterns"]
    assert not any(pattern.endswith((".bin", "*")) for pattern in asked["allow_patterns"])
    locate_checkpoint("Qwen/Qwen3-VL-4B-Instruct", weights=False)
    assert not any("safetensors" in pattern for pattern in asked["allow_patterns"])
    (folder / "config.json").unlink()
    with pytest.raises(BadInput, match="neither"):
        locate_checkpoint("Qwen/Qwen3-VL-4B-Instruct")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A hub whose main can be moved: what its client leaves on disk."""
    plain = tiny_checkpoint(tmp_path / "plain" / "it")
    home = tmp_path / "hub" / "models--a--b"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    main = "1" * 40

    def fetch(_: str, revision: str | None = None, **__: Any) -> str:
        commit = revision if revision not in (None, "main") else main
        if not (home / "snapshots" / commit).is_dir():
            shutil.copytree(plain, home / "snapshots" / commit)
        if revision in (None, "main"):
            (home / "refs").mkdir(exist_ok=True)
            (home / "refs" / "main").write_text(main)
        return os.fspath(home / "snapshots" / commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)

    def move(commit: str) -> None:
        nonlocal main
        main = commit

    return move


def test_an_unpinned_main_warns_once_and_when_it_moves(cache: Callable[[str], None]) -> None:
    with pytest.warns(AmbiguityWarning, match=f"revision={'1' * 40}"):
        folder = locate_checkpoint("a/b")
    assert hub_id(folder) == "a/b"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        locate_checkpoint("a/b")
        locate_checkpoint("a/b", "2" * 40)
    cache("3" * 40)
    with pytest.warns(AmbiguityWarning, match=f"{'3' * 40}.*revision={'1' * 40}"):
        locate_checkpoint("a/b", "main")
    card = TOPReward(path="a/b", revision="2" * 40, device="cpu").card
    assert "2" * 40 in card.revision and card.name.endswith("a-b")
