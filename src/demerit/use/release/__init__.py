"""Releases: datasets to share, built from allowed fields only.

A release holds what config.py allows and nothing else: numbered ids, instructions, labels, state and
action, and videos without sound or metadata. Notes, tags, sites and other signals are dropped unless kept on request.
`release` writes everything into a hidden folder and renames it once; `verify` checks the files against SHA256SUMS.
"""

from demerit.use.release.config import Mask, ReleaseConfig
from demerit.use.release.job import Released, open_release, release, verify

__all__ = ["Mask", "ReleaseConfig", "Released", "open_release", "release", "verify"]
