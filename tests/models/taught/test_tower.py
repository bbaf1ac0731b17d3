"""The second tower: what it adds to the features, encoders of other people, and models that were taught with one."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import demerit
from demerit.errors import BadInput, StoreError
from demerit.models.compact import Engine
from demerit.models.taught.features import (
    DEVIATION,
    MEAN,
    SHIPPED_TOWER,
    PairedNetwork,
    Tower,
    find_engine,
    load_network,
    shipped_tower,
)
from demerit.training.teach import TeachConfig

SAMPLE = Path(demerit.__file__).parent / "assets" / "sample"
RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (9, 48, 40, 3), dtype=np.uint8)


def write_encoder(path: Path, kind: str, side: int = 16) -> Path:
    """Write a graph that averages regions of 2 x 2 pixels: as a vector, as tokens with one in front, or as a map."""
    given = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 3, side, side])
    half = side // 2
    nodes = [helper.make_node("AveragePool", ["pixels"], ["map"], kernel_shape=[2, 2], strides=[2, 2])]
    shape: list[int | str] = ["n", 3, half, half]
    name = "map"
    if kind == "vector":
        nodes.append(helper.make_node("ReduceMean", ["map"], ["vector"], axes=[2, 3], keepdims=0))
        name, shape = "vector", ["n", 3]
    if kind == "tokens":
        nodes += [
            helper.make_node("Reshape", ["map", "flat"], ["channels"]),
            helper.make_node("Transpose", ["channels"], ["patches"], perm=[0, 2, 1]),
            helper.make_node("ReduceMax", ["patches"], ["front"], axes=[1], keepdims=1),
            helper.make_node("Concat", ["front", "patches"], ["tokens"], axis=1),
        ]
        name, shape = "tokens", ["n", half * half + 1, 3]
    flat = helper.make_tensor("flat", TensorProto.INT64, [3], [0, 3, half * half])
    graph = helper.make_graph(
        nodes, "g", [given], [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)], [flat]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("kind", ["vector", "tokens", "map"])
def test_an_encoder_gives_the_mean_of_the_image_and_of_its_sixteenths(tmp_path: Path, kind: str) -> None:
    tower = Tower.load(write_encoder(tmp_path / "e.onnx", kind))
    assert tower is not None
    images = RNG.integers(0, 256, (9, 16, 16, 3), dtype=np.uint8)
    seen = (images / 255 - MEAN) / DEVIATION
    regions = [seen[:, y : y + 4, x : x + 4].mean(axis=(1, 2)) for y in range(0, 16, 4) for x in range(0, 16, 4)]
    expected = [seen.mean(axis=(1, 2)), *(regions if kind != "vector" else [])]
    assert np.allclose(tower(images), np.concatenate(expected, axis=1), atol=1e-5)
    assert (tower.pooled, tower.width, tower.side) == (3, 3 if kind == "vector" else 51, 16)
    assert tower(images[:0]).shape == (0, tower.width)


def test_a_pair_keeps_the_features_of_the_network_and_adds_those_of_the_tower() -> None:
    engine, tower = Engine.load_shipped(), Tower.load(SHIPPED_TOWER)
    assert tower is not None and tower.licence != "unknown"
    pair = load_network(None, tower)
    assert isinstance(pair, PairedNetwork) and find_engine(pair) is pair.engine
    own, other, both = engine.features(IMAGES, IMAGES[0]), tower(IMAGES), pair.features(IMAGES, IMAGES[0])
    cut, pooled = engine.pooled_width, tower.pooled
    assert both.shape[1] == own.shape[1] + other.shape[1] and pair.pooled_width == cut + pooled
    assert np.array_equal(both[:, :cut], own[:, :cut]) and np.array_equal(
        both[:, cut : cut + pooled], other[:, :pooled]
    )
    said, alone = pair.follow(both, "push"), engine.follow(own, "push")
    assert np.array_equal(said.progress, alone.progress) and np.array_equal(said.hidden, alone.hidden)
    assert pair.hash != engine.hash and "DROID" in pair.licence
    assert pair.prepare(IMAGES).shape[1] == max(engine.info.size, tower.side)


@pytest.mark.parametrize("given", ["none", None, "own"])
def test_a_taught_model_finds_its_tower_again(tmp_path: Path, given: str | None) -> None:
    file = write_encoder(tmp_path / "e.onnx", "map")
    out = tmp_path / "model"
    tower = file if given == "own" else given
    episodes = list(demerit.open_dataset(SAMPLE))[:8]
    config = TeachConfig(reader=False)
    model = demerit.teach(SAMPLE, out, tower=tower, config=config, limit=8, workers=0).model
    expected = {"none": "", None: Tower(shipped_tower().read_bytes(), Path()).sha256}.get(given)
    own = Tower(file.read_bytes(), file).sha256
    assert model.config.second_tower == (own if expected is None else expected)
    assert [path.name for path in out.glob("tower-*")] == ([f"tower-{own[:12]}.onnx"] if given == "own" else [])
    file.unlink()
    loaded = demerit.load_model(str(out))
    before, after = (one.score(episodes[:2]) for one in (model, loaded))
    assert all(np.array_equal(a.value, b.value) for a, b in zip(before, after, strict=True))
    if given == "own":
        written = out / f"tower-{own[:12]}.onnx"
        written.write_bytes(written.read_bytes() + b"x")
        with pytest.raises(StoreError):
            demerit.load_model(str(out))


@pytest.mark.parametrize("kind", ["missing", "text", "two inputs", "fixed count", "not square", "no batch", "half"])
def test_what_is_no_encoder_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bad.onnx"
    if kind == "text":
        path.write_text("hello")
    elif kind != "missing":
        shape = {"fixed count": [1, 3, 16, 16], "not square": ["n", 3, 16, 32], "no batch": [3, 16, 16]}.get(
            kind, ["n", 3, 16, 16]
        )
        names = ["a", "b"] if kind == "two inputs" else ["a"]
        number = TensorProto.FLOAT16 if kind == "half" else TensorProto.FLOAT
        given = [helper.make_tensor_value_info(name, number, shape) for name in names]
        node = helper.make_node("Sum", names, ["out"])
        found = helper.make_tensor_value_info("out", number, shape)
        graph = helper.make_graph([node], "g", given, [found])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(BadInput):
        Tower.load(path)
