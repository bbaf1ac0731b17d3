"""A network folder with the real names and shapes and random weights."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from demerit.models.compact.engine import FILES, INFO, PIECE, TEMPORAL, TOWER, WEIGHTS, WORDS, save_text_encoder
from demerit.models.compact.engine import WIDTH as WORDS_WIDTH

FEATURES, VECTOR, HIDDEN, BINS = 12, 8, 10, 5
PIECES = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{one}" for one in "abcdefghijklmnopqrstuvwxyz"), "push", "the", "cup"]


def make_network(folder: Path, seed: int = 0, size: int = 128, kind: str | None = "compact") -> Path:
    """Write a network; with a kind, also a model.json."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    _save(folder / TOWER, _tower(rng, size))
    _save(folder / TEMPORAL, _temporal(rng))
    weights = {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    save_text_encoder(folder / WORDS, PIECES, rng.normal(0, 1, (len(PIECES), PIECE)).astype(np.float32), weights, {})
    write_info(folder, size=size)
    if kind is not None:
        (folder / "model.json").write_text(json.dumps({"format": 1, "kind": kind}))
    return folder


def write_info(folder: Path, **changes: object) -> None:
    """Write network.json for the folder's files as they are now."""
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}
    sizes = {"size": 128, "features": FEATURES, "vector": VECTOR, "words": WORDS_WIDTH}
    sizes |= {"state": HIDDEN, "hidden": HIDDEN, "bins": BINS}
    papers = {"licence": "Apache-2.0", "revision": "tiny", "trained_on": ["nothing at all"], "sha256": sums}
    (folder / INFO).write_text(json.dumps({"format": 1, **sizes, **papers, **changes}))


def random_images(count: int, height: int = 30, width: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def _save(path: Path, graph: onnx.GraphProto) -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _constants(rng: np.random.Generator, shapes: dict[str, tuple[int, ...]], scale: float) -> list[onnx.TensorProto]:
    return [
        numpy_helper.from_array(rng.normal(0, scale, shape).astype(np.float32), name) for name, shape in shapes.items()
    ]


def _values(dtype: int, shapes: dict[str, list[Any]]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, dtype, shape) for name, shape in shapes.items()]


def _tower(rng: np.random.Generator, size: int) -> onnx.GraphProto:
    node = helper.make_node
    picture = [size, size, 3]
    nodes = [
        node("Cast", ["frames"], ["pixels"], to=TensorProto.FLOAT),
        node("Cast", ["first"], ["begun"], to=TensorProto.FLOAT),
        node("Sub", ["pixels", "begun"], ["change"]),
        node("Concat", ["pixels", "change"], ["both"], axis=3),
        node("Transpose", ["both"], ["planes"], perm=[0, 3, 1, 2]),
        node("Conv", ["planes", "kernel"], ["seen"], kernel_shape=[8, 8], strides=[8, 8]),
        node("Relu", ["seen"], ["kept"]),
        node("GlobalAveragePool", ["kept"], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("MatMul", ["flat", "mix"], ["features"]),
    ]
    kernel = _constants(rng, {"kernel": (8, 6, 8, 8)}, 0.002)
    given = _values(TensorProto.UINT8, {"frames": ["n", *picture], "first": [1, *picture]})
    out = _values(TensorProto.FLOAT, {"features": ["n", FEATURES]})
    return helper.make_graph(nodes, "tower", given, out, [*kernel, *_constants(rng, {"mix": (8, FEATURES)}, 0.5)])


def _temporal(rng: np.random.Generator) -> onnx.GraphProto:
    node = helper.make_node
    nodes = [
        node("MatMul", ["words", "read"], ["meaning"]),
        node("Mul", ["meaning", "told"], ["said"]),
        node("Add", ["features", "said"], ["in_words"]),
        node("Transpose", ["in_words"], ["steps"], perm=[1, 0, 2]),
        node("Unsqueeze", ["state", "zero"], ["begin"]),
        node("GRU", ["steps", "w", "r", "b", "", "begin"], ["every", "last"], hidden_size=HIDDEN),
        node("Squeeze", ["last", "zero"], ["state_after"]),
        node("Squeeze", ["every", "one"], ["in_time"]),
        node("Transpose", ["in_time"], ["hidden"], perm=[1, 0, 2]),
        node("MatMul", ["hidden", "to_bins"], ["logits"]),
        node("Softmax", ["logits"], ["bins"], axis=-1),
        node("MatMul", ["bins", "centres"], ["progress"]),
        node("MatMul", ["hidden", "to_success"], ["belief"]),
        node("Sigmoid", ["belief"], ["success"]),
        node("MatMul", ["hidden", "to_rank"], ["rank"]),
    ]
    shapes: dict[str, tuple[int, ...]] = {
        "read": (WORDS_WIDTH, FEATURES), "w": (1, 3 * HIDDEN, FEATURES), "r": (1, 3 * HIDDEN, HIDDEN),
        "b": (1, 6 * HIDDEN), "to_bins": (HIDDEN, BINS), "to_success": (HIDDEN,), "to_rank": (HIDDEN,),
    }  # fmt: skip
    whole = {"zero": np.array([0]), "one": np.array([1]), "centres": np.linspace(0, 1, BINS, dtype=np.float32)}
    given = {"features": [1, "t", FEATURES], "words": [1, WORDS_WIDTH], "told": [1, 1], "state": [1, HIDDEN]}
    rows = {"progress": [1, "t"], "bins": [1, "t", BINS], "success": [1, "t"], "rank": [1, "t"]}
    rows |= {"hidden": [1, "t", HIDDEN], "state_after": [1, HIDDEN]}
    inside = [*_constants(rng, shapes, 0.7), *(numpy_helper.from_array(value, name) for name, value in whole.items())]
    values = (_values(TensorProto.FLOAT, shapes) for shapes in (given, rows))
    return helper.make_graph(nodes, "temporal", *values, inside)
