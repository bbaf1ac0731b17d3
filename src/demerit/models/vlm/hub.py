"""Find a checkpoint: a folder on this machine, or a model on the Hugging Face hub, downloaded once.

Only configuration, tokenizer and safetensors files are downloaded, never pickles.
"""

from __future__ import annotations

import errno
import re
import warnings
from pathlib import Path

from demerit.errors import AmbiguityWarning, BadInput, DemeritError, MissingExtra, StoreError

SMALL_FILES = (
    "config.json",
    "config.yaml",
    "adapter_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
)
WEIGHT_FILES = (
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "custom_heads.safetensors",
)
ENTRIES = ("config.json", "adapter_config.json")
"""a checkpoint has at least one of these"""
MAIN = "main"
"""the hub's default revision; its owners may move it"""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
INCOMPLETE = "incomplete download? Run the same command again with a connection to the hub"


def locate_checkpoint(name_or_path: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of a checkpoint, downloading it from the hub if it is not a folder here.

    Args:
        name_or_path: a folder, or a hub id such as `Qwen/Qwen3-VL-4B-Instruct`.
        revision: a branch, a tag or (best) a commit on the hub; a folder has none.
        weights: False downloads only configuration and tokenizer.
    """
    folder = Path(name_or_path).expanduser()
    if not name_or_path or not folder.is_dir():
        if not HUB_ID.fullmatch(name_or_path) or folder.exists():
            raise BadInput("checkpoint", "a folder, or the owner/name of a model on the hub", repr(name_or_path))
        folder = _download(name_or_path, revision, weights)
    elif revision is not None:
        raise BadInput(f"checkpoint in {folder}", "no revision, because a folder has none", repr(revision))
    if not any((folder / entry).is_file() for entry in ENTRIES):
        got = "neither" + (f" ({INCOMPLETE})" if hub_revision(folder) is not None else "")
        raise BadInput(str(folder), "a checkpoint with config.json (or adapter_config.json)", got)
    return folder


def hub_revision(folder: Path) -> str | None:
    """Return the commit of a folder in the hub's cache; None for any other folder."""
    folder = folder.absolute()
    return folder.name if folder.parent.name == "snapshots" else None


def hub_id(folder: Path) -> str | None:
    """Return the owner/name of a folder in the hub's cache; None for any other folder."""
    cached = folder.absolute().parent.parent.name
    owner, _, name = cached.removeprefix("models--").partition("--")
    return f"{owner}/{name}" if hub_revision(folder) and cached.startswith("models--") and name else None


def _download(name: str, revision: str | None, weights: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise MissingExtra("Downloading a checkpoint from the hub", "vlm") from missing
    before = _cached_main(name)
    try:
        folder = Path(
            snapshot_download(
                name, revision=revision, allow_patterns=[*SMALL_FILES, *(WEIGHT_FILES if weights else ())]
            )
        )
    except Exception as error:
        translated = _translate(error, f"checkpoint {name!r}" + (f" at revision {revision!r}" if revision else ""))
        if translated is None:
            raise
        raise translated from error
    if revision in (None, MAIN):
        _warn_about_commit(name, before, hub_revision(folder))
    return folder


def _cached_main(name: str) -> str:
    """Return the commit of `main` when it was last downloaded; empty if it never was."""
    from huggingface_hub import constants, file_download  # noqa: PLC0415

    cached = Path(constants.HF_HUB_CACHE) / file_download.repo_folder_name(repo_id=name, repo_type="model")
    try:
        return (cached / "refs" / MAIN).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _warn_about_commit(name: str, before: str, now: str | None) -> None:
    """Name the commit of an unpinned branch, the first time and whenever it has moved."""
    if now is None or now == before:
        return
    message = f"{name}: no revision is pinned, and main on the hub may move. Pin today's with revision={now}."
    if before:
        message = f"{name}: main on the hub has moved to {now}, so earlier rewards are stale. "
        message += f"Keep the earlier one with revision={before}."
    warnings.warn(message, AmbiguityWarning, stacklevel=4)


def _translate(error: Exception, what: str) -> DemeritError | None:
    """Turn an error of the hub client into one of ours; None for an unknown one."""
    from huggingface_hub import constants  # noqa: PLC0415
    from huggingface_hub import errors as hub  # noqa: PLC0415

    if getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT} or "No space left" in str(error):
        return StoreError(str(constants.HF_HUB_CACHE), f"the disk is full; {what} does not fit (HF_HOME moves it)")
    if isinstance(error, hub.GatedRepoError):
        return BadInput(what, "access", "none: accept its terms on its hub page, then log in with `hf auth login`")
    if isinstance(error, hub.RepositoryNotFoundError):
        return BadInput(what, "a public model on the hub", "none of that name (or a private one: `hf auth login`)")
    if isinstance(error, hub.RevisionNotFoundError):
        return BadInput(what, "a branch, tag or commit of that model", "none of that name")
    offline = (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled, ConnectionError, TimeoutError)
    if isinstance(error, offline) or type(error).__module__.partition(".")[0] in {"httpx", "httpcore", "requests"}:
        reason = str(error).partition("\n")[0].removeprefix("Got: ")
        advice = "connect once to download it, or copy it from another machine and give the folder's path"
        return BadInput(what, f"a local copy or a connection to the hub ({advice})", f"neither ({reason})")
    if isinstance(error, hub.HfHubHTTPError | OSError):
        return BadInput(what, "an answer from the hub and a writable cache", f"{type(error).__name__}: {error}")
    return None
