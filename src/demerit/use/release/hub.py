"""Pushing a release to the Hugging Face hub. Nothing is sent until the owner confirms."""

from __future__ import annotations

import importlib
import re
from typing import Any

from demerit.errors import BadInput, MissingExtra, RemoteError, StoreError
from demerit.use.release.job import Released, list_files, verify

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
CONFLICT = 409


def plan_push(release: Released, repository: str) -> list[str]:
    """Check the name, the checksums and the client without sending anything; return what a push would do."""
    if not REPOSITORY.fullmatch(repository):
        raise BadInput("--push", "OWNER/NAME of a dataset repository", repr(repository))
    changes = verify(release.folder)
    if changes:
        raise StoreError(release.folder, f"files differ from SHA256SUMS ({changes[0]}); make the release again")
    _client()
    files = list_files(release.folder)
    return [
        f"create the private dataset repository {repository} (it must not exist)",
        f"send {len(files) + 1} files, {release.bytes / 1e6:.1f} MB: {release.facts['episodes']} episodes under "
        f"{release.facts['licence']}",
        "leave it private: make it public on the hub after you have read the card",
    ]


def push(release: Released, repository: str) -> str:
    """Create a private repository and send everything; return its address."""
    plan_push(release, repository)
    api: Any = _client().HfApi()
    try:
        address = api.create_repo(repo_id=repository, repo_type="dataset", private=True, exist_ok=False)
        api.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=str(release.folder),
            commit_message=f"Release {release.facts['name']}",
        )
    except Exception as error:  # the client raises errors of several libraries
        status = getattr(getattr(error, "response", None), "status_code", 0) or 0
        if status == CONFLICT:
            raise BadInput("--push", "a repository that does not exist yet", repository) from error
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise RemoteError(f"the hub ({repository})", status, lines[0].rstrip(".")) from error
    return str(address)


def _client() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise MissingExtra("Pushing a release to a hub", "hub") from error
