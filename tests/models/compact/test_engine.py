"""The engine: features, outputs, and strict loading."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from demerit.errors import BadInput, DemeritError, WeightsMismatch
from demerit.models import load_model
from demerit.models.compact.engine import CHUNK, STEPS, Engine
from fakes.tiny_network import FEATURES, HIDDEN, random_images, write_info


def test_features_do_not_depend_on_threads_or_chunks(network: Path, engine: Engine) -> None:
    images = random_images(3 * CHUNK + 5)
    together = engine.features(images, images[0])
    assert together.shape == (len(images), FEATURES) and together.dtype == np.float32
    np.testing.assert_array_equal(Engine.load(network, threads=1).features(images, images[0]), together)
    np.testing.assert_array_equal(engine.features(images[: 2 * CHUNK], images[0]), together[: 2 * CHUNK])
    alone = np.concatenate([engine.features(one[None], images[0]) for one in images])
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_an_episode_can_be_continued_from_any_state(engine: Engine) -> None:
    features = np.random.default_rng(1).normal(size=(2 * STEPS + 7, FEATURES)).astype(np.float32)
    whole = engine.follow(features, "push the cup")
    assert whole.hidden.shape == (len(features), HIDDEN)
    np.testing.assert_allclose(whole.bins.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(whole.progress, whole.bins @ np.linspace(0, 1, whole.bins.shape[1]), atol=1e-5)
    for cut in (1, STEPS, STEPS + 3):
        begun = engine.follow(features[:cut], "push the cup")
        rest = engine.follow(features[cut:], "push the cup", begun.state)
        for name in ("progress", "bins", "success", "rank", "hidden"):
            both = np.concatenate([getattr(begun, name), getattr(rest, name)])
            np.testing.assert_allclose(both, getattr(whole, name), atol=1e-5)
        np.testing.assert_allclose(rest.state, whole.state, atol=1e-5)


def test_the_instruction_changes_the_outputs(engine: Engine) -> None:
    features = np.ones((3, FEATURES), np.float32)
    said, other, none, blank = (engine.follow(features, text).progress for text in ("push the cup", "cup", "", " \n"))
    assert not np.allclose(said, other) and not np.allclose(said, none)
    np.testing.assert_array_equal(none, blank)
    assert engine.text_vector("中") is None


def test_empty_inputs_give_empty_outputs(engine: Engine) -> None:
    assert engine.features(random_images(0), random_images(1)[0]).shape == (0, FEATURES)
    empty = engine.follow(np.empty((0, FEATURES), np.float32), "push")
    assert empty.progress.shape == (0,) and empty.hidden.shape == (0, HIDDEN)
    with pytest.raises(BadInput, match="12"):
        engine.follow(np.empty((2, 3), np.float32), "push")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["tower.onnx", "temporal.onnx", "words.npz"])
def test_a_damaged_file_is_refused(copied: Path, name: str) -> None:
    cut_short(copied / name)
    with pytest.raises(BadInput, match=name):
        load_model(str(copied))
    write_info(copied)  # now the hash is right
    with pytest.raises(DemeritError, match=name):
        load_model(str(copied))
    (copied / name).unlink()
    with pytest.raises(BadInput, match=name):
        load_model(str(copied))


def test_other_shapes_and_names_are_refused(copied: Path) -> None:
    for change, name in (({"features": FEATURES + 1}, "tower.onnx"), ({"state": HIDDEN + 1}, "temporal.onnx")):
        write_info(copied, **change)
        with pytest.raises(BadInput, match=name):
            load_model(str(copied))
    graph = onnx.load(copied / "tower.onnx")
    graph.graph.output[0].name = graph.graph.node[-1].output[0] = "other"
    onnx.save(graph, copied / "tower.onnx")
    write_info(copied)
    with pytest.raises(WeightsMismatch, match=r"features.*other"):
        load_model(str(copied))


@pytest.mark.parametrize(
    ("field", "value"),
    [("format", 2), ("bins", 0), ("bins", True), ("licence", ""), ("trained_on", "x"), ("sha256", {"tower.onnx": "0"}),
     ("more", 1)],
)  # fmt: skip
def test_a_wrong_field_of_network_json_is_named(copied: Path, field: str, value: object) -> None:
    write_info(copied, **{field: value})
    with pytest.raises(BadInput, match=field):
        load_model(str(copied))


def test_a_missing_or_broken_network_json_is_refused(copied: Path) -> None:
    for damage in (lambda path: path.write_text("{"), Path.unlink):
        damage(copied / "network.json")
        with pytest.raises(BadInput, match=r"network\.json"):
            load_model(str(copied))


def test_missing_weights_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("demerit.models.compact.engine.files", lambda _: tmp_path)
    with pytest.raises(BadInput, match="default model"):
        load_model("default")
