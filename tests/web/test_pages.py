"""One way to render pages: everything is escaped, and every template compiles."""

import pytest
from jinja2 import UndefinedError

import demerit.evaluate.reports  # noqa: F401  registers the filters of reports
from demerit.web.pages import TEMPLATES, fill, render


def test_every_template_compiles_under_one_name() -> None:
    names = TEMPLATES.list_templates(extensions=["j2"])
    assert {"report.html.j2", "release_card.html.j2", "watch.html.j2", "home.html.j2", "arena.html.j2"} <= set(names)
    for name in names:
        TEMPLATES.get_template(name)
    folders = [loader.list_templates() for loader in TEMPLATES.loader.loaders]  # type: ignore[union-attr]
    assert not set(folders[0]) & set(folders[1])


def test_texts_are_escaped_and_an_undefined_name_is_an_error() -> None:
    page = fill("message.html.j2", me=None, title="<b>", text="<script>")
    assert "&lt;script&gt;" in page and "<script>" not in page
    with pytest.raises(UndefinedError):
        fill("message.html.j2", me=None, title="")


def test_a_page_allows_its_own_scripts_by_hash() -> None:
    assert "script-src 'sha256-" in render("view.html.j2", name="a", data="{}", curves="{}", videos={})
