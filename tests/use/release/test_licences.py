"""Licences: SPDX ids, and which may be combined."""

import pytest

from demerit.errors import BadInput
from demerit.use.release.config import combine_licences, hub_licence, licence_doubts, parse_licence


@pytest.mark.parametrize(
    ("text", "spdx"),
    [
        ("", ""), ("mit", "MIT"), ("cc-by-4.0", "CC-BY-4.0"), ("odc-by", "ODC-By-1.0"), ("gpl-3.0", "GPL-3.0-only"),
        ("mit AND apache-2.0", "MIT AND Apache-2.0"), ("apache-2.0-and-mit", "Apache-2.0 AND MIT"),
        ("LicenseRef-lab", "LicenseRef-lab"),
    ],
)  # fmt: skip
def test_spdx_ids(text: str, spdx: str) -> None:
    assert parse_licence(text) == spdx


@pytest.mark.parametrize("text", ["TBD", "do not redistribute", "cc by", "none"])
def test_texts_that_are_not_licences_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="SPDX"):
        parse_licence(text)


@pytest.mark.parametrize(
    ("licences", "whole"),
    [
        (("MIT",), "MIT"),
        (("MIT", "CC0-1.0"), "MIT"),
        (("MIT", "CC-BY-4.0"), "CC-BY-4.0 AND MIT"),
        (("MIT", "CC-BY-NC-4.0", "CC0-1.0"), "CC-BY-NC-4.0"),
        (("CC-BY-NC-4.0", "CC-BY-NC-SA-4.0"), "CC-BY-NC-SA-4.0"),
        (("MIT AND Apache-2.0", "CC-BY-SA-4.0"), "CC-BY-SA-4.0"),
        (("LicenseRef-lab",), "LicenseRef-lab"),
        (("CC-BY-ND-4.0",), "CC-BY-ND-4.0"),
    ],
)
def test_the_whole_has_the_strictest_licence(licences: tuple[str, ...], whole: str) -> None:
    assert combine_licences(dict.fromkeys(licences, 2)) == whole
    assert combine_licences(dict.fromkeys(reversed(licences), 2)) == whole


@pytest.mark.parametrize(
    "licences",
    [("",), ("MIT", ""), ("CC-BY-SA-4.0", "CC-BY-NC-4.0"), ("ODbL-1.0", "CC-BY-SA-4.0"), ("LicenseRef-lab", "MIT"),
     ("CC-BY-ND-4.0", "MIT")],
)  # fmt: skip
def test_conflicts_are_refused(licences: tuple[str, ...]) -> None:
    with pytest.raises(BadInput):
        combine_licences(dict.fromkeys(licences, 1))
    with pytest.raises(BadInput):  # no derivatives means no changes
        combine_licences({"CC-BY-ND-4.0": 3}, changed=True)


def test_cards_and_doubts() -> None:
    assert hub_licence("ODbL-1.0") == {"license": "odbl"}
    assert hub_licence("Apache-2.0 AND MIT") == {"license": "other", "license_name": "apache-2.0-and-mit"}
    assert not licence_doubts({"MIT AND Apache-2.0": 2})
    (doubt,) = licence_doubts({"MIT": 1, "LicenseRef-lab": 4})
    assert "LicenseRef-lab (4" in doubt
