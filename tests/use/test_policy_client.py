"""The client of openpi's policy servers, against a WebSocket server that speaks their protocol."""

import math
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from demerit.errors import BadInput, DemeritWarning, RemoteError
from demerit.use.policy_client import PolicyClient, pack_message, unpack_message
from fakes.policy_server import METADATA, decode, encode, serve_policy

CHUNK = np.arange(8, dtype=np.float32).reshape(4, 2)
OBSERVATION = {"observation/image": np.full((6, 8, 3), 7, np.uint8), "prompt": "lift it", "state": np.float32(0.5)}


def count_up(observation: Mapping[str, Any]) -> dict[str, Any]:
    count_up.calls = getattr(count_up, "calls", 0) + 1
    return {"actions": CHUNK + count_up.calls, "server_timing": {"infer_ms": 1.5}}


def test_it_gets_metadata_and_chunks_and_the_policy_gets_the_observation() -> None:
    with serve_policy(count_up) as (server, url):
        client = PolicyClient(url)
        assert client.metadata == METADATA
        answer = client.infer(OBSERVATION)
        assert answer["server_timing"] == {"infer_ms": 1.5} and answer["actions"].dtype == np.float32
        chunks = client.sample_chunks(OBSERVATION, 3)
        client.close()
    assert [float(chunk[0, 0] - chunks[0][0, 0]) for chunk in chunks] == [0.0, 1.0, 2.0]
    chunks[0][0, 0] = 5.0  # it is the caller's own
    assert server.connections == 1 and len(server.asked) == 4
    for asked in server.asked:
        np.testing.assert_array_equal(asked["observation/image"], OBSERVATION["observation/image"])
        assert asked["prompt"] == "lift it" and asked["state"] == np.float32(0.5) and type(asked["state"]) is np.float32


def test_a_policy_that_does_not_sample_is_reported() -> None:
    with serve_policy(lambda observation: {"actions": CHUNK}) as (_, url):
        client = PolicyClient(url)
        with pytest.warns(DemeritWarning, match="same chunk 2 times"):
            client.sample_chunks({}, 2)
        client.sample_chunks({}, 1)
        with pytest.raises(BadInput):
            client.sample_chunks({}, 0)
        client.close()


def test_a_lost_connection_is_opened_again_and_the_question_asked_again() -> None:
    with serve_policy(count_up) as (server, url):
        server.hangs_up_after = 2
        client = PolicyClient(url)
        chunks = client.sample_chunks(OBSERVATION, 5)
        client.close()
        assert len(chunks) == 5 and server.connections == 3 and len(server.asked) == 5


def test_a_server_that_restarts_is_found_again() -> None:
    with serve_policy(count_up) as (_, url):
        client = PolicyClient(url)
        client.infer(OBSERVATION)
    with serve_policy(count_up, port=int(url.rpartition(":")[2])) as (server, _):
        client.infer(OBSERVATION)
        client.close()
        assert len(server.asked) == 1


def test_an_error_of_the_policy_is_one_sentence_and_the_next_question_is_answered() -> None:
    calls = count()

    def fail_once(observation: Mapping[str, Any]) -> dict[str, Any]:
        if next(calls) == 0:
            raise KeyError("observation/state")
        return {"actions": CHUNK}

    with serve_policy(fail_once) as (server, url):
        client = PolicyClient(url)
        with pytest.raises(RemoteError) as failed:
            client.infer(OBSERVATION)
        assert "KeyError: 'observation/state'" in str(failed.value) and "\n" not in str(failed.value)
        assert client.infer(OBSERVATION)["actions"].shape == (4, 2)
        client.close()
        assert server.connections == 2


def test_a_key_is_sent_and_a_refusal_says_so() -> None:
    with serve_policy(count_up, api_key="secret") as (_, url):
        PolicyClient(url, api_key="secret").close()
        with pytest.raises(RemoteError) as refused:
            PolicyClient(url, api_key="other")
        assert refused.value.status == 401 and "secret" not in str(refused.value)


def test_nobody_there_and_silence_end_when_patience_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RemoteError) as refused:  # it accepts and never answers
            PolicyClient(address, patience=0.0, timeout=0.05)
        assert refused.value.status == 0
    with pytest.raises(RemoteError):
        PolicyClient(address, patience=0.0)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "127.0.0.1:8000", "ws://", "ws://h:99999", "", None])
def test_an_address_that_is_none_is_refused(url: Any) -> None:
    with pytest.raises(BadInput):
        PolicyClient(url)


@pytest.mark.parametrize(
    "answer",
    [
        {"action": CHUNK},
        {"actions": CHUNK[0]},
        {"actions": CHUNK[:0]},
        {"actions": CHUNK.tolist()},
        {"actions": np.full((2, 2), np.nan)},
        b"\xc1",
        b"",
        msgpack.packb([1, 2]),
        msgpack.packb({1.5: 2}),
        pickle.dumps({"actions": CHUNK}),
    ],
)
def test_what_is_no_chunk_is_refused(answer: Any) -> None:
    with serve_policy(lambda observation: answer) as (_, url):
        client = PolicyClient(url, patience=0.0)
        with pytest.raises(RemoteError):
            client.sample_chunks(OBSERVATION, 1)
        client.close()


def test_chunks_of_different_shapes_are_refused() -> None:
    lengths = count(2)
    with serve_policy(lambda observation: {"actions": np.ones((next(lengths), 2))}) as (_, url):
        client = PolicyClient(url)
        with pytest.raises(RemoteError, match="shapes"):
            client.sample_chunks(OBSERVATION, 2)
        client.close()


def test_a_large_answer_is_refused_at_once() -> None:
    with serve_policy(lambda observation: {"actions": np.zeros((100, 100))}) as (server, url):
        client = PolicyClient(url, most_bytes=10_000)
        with pytest.raises(RemoteError) as refused:
            client.infer(OBSERVATION)
        assert refused.value.status == 413 and len(server.asked) == 1
        client.close()


def test_broken_metadata_is_refused() -> None:
    with serve_policy(count_up) as (server, url):
        server.metadata = b"\xc1"
        with pytest.raises(RemoteError):
            PolicyClient(url, patience=0.0)


def test_without_msgpack_the_extra_is_named() -> None:
    code = "import sys; sys.modules['msgpack'] = None; import demerit.use.policy_client"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtra" in run.stderr and "pip install -e '.[openpi]'" in run.stderr


NUMERIC = st.sampled_from(["<f4", ">f8", "<f2", "u1", "<i8", ">u2", "?"]).map(np.dtype)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | NUMERIC.flatmap(lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=3, max_side=3)))
    | arrays(np.dtype("<f4"), (2,)).map(lambda array: array[0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert type(one) is type(other) and getattr(one, "shape", ()) == getattr(other, "shape", ())
        np.testing.assert_array_equal(one, other)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4))
def test_messages_are_those_of_openpi(content: dict[str, Any]) -> None:
    """Our bytes are read by openpi's rules, and openpi's bytes by ours."""
    assert pack_message(content) == msgpack.packb(content, default=encode)
    assert_same(unpack_message(msgpack.packb(content, default=encode)), content)
    assert_same(msgpack.unpackb(pack_message(content), object_hook=decode), content)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(content: bytes) -> None:
    try:
        assert isinstance(unpack_message(content), dict)
    except BadInput:
        pass


ARRAY: dict[bytes, Any] = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f4", b"shape": [2]}


@pytest.mark.parametrize(
    "changed",
    [
        {b"dtype": "O"},
        {b"dtype": "|O8"},
        {b"dtype": "<U2"},
        {b"dtype": "<c8"},
        {b"dtype": "V8"},
        {b"dtype": "<f4,<f4"},
        {b"dtype": "(2,)<f4"},
        {b"dtype": "i3"},
        {b"dtype": 7},
        {b"shape": [3]},
        {b"shape": [-2]},
        {b"shape": [1.0, 2]},
        {b"shape": [True, 2]},
        {b"shape": [2**40, 2**40]},
        {b"shape": [0, 2**62, 2**62], b"data": b""},
        {b"shape": 2},
        {b"data": "12345678"},
        {b"data": [0] * 8},
        {b"shape": None},
    ],
)
def test_an_array_that_does_not_add_up_is_refused(changed: dict[bytes, Any]) -> None:
    assert unpack_message(msgpack.packb({"a": ARRAY}))["a"].shape == (2,)
    with pytest.raises(BadInput):
        unpack_message(msgpack.packb({"a": {**ARRAY, **changed}}))


@pytest.mark.parametrize("missing", [b"data", b"dtype", b"shape"])
def test_an_array_without_all_its_facts_is_refused(missing: bytes) -> None:
    with pytest.raises(BadInput):
        unpack_message(msgpack.packb({"a": {key: value for key, value in ARRAY.items() if key != missing}}))


@pytest.mark.parametrize("number", [{b"data": 300, b"dtype": "u1"}, {b"data": b"1", b"dtype": "<f4"}, {b"data": "1"}])
def test_a_number_that_is_none_is_refused(number: dict[bytes, Any]) -> None:
    with pytest.raises(BadInput):
        unpack_message(msgpack.packb({"a": {b"__npgeneric__": True, **number}}))


def test_extensions_and_deep_nesting_are_refused() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert unpack_message(msgpack.packb({"a": deep}))
    for content in (b"\x81\xa1a" + b"\x91" * 100_000 + b"\x01", msgpack.packb({"a": msgpack.ExtType(5, b"x")})):
        with pytest.raises(BadInput):
            unpack_message(content)


@pytest.mark.parametrize(
    "value", [object(), np.array([object()]), np.array(["text"]), np.array([1j]), {1, 2}, 2**70, math.nan + 1j]
)
def test_what_cannot_be_sent_is_refused(value: Any) -> None:
    with pytest.raises(BadInput):
        pack_message({"a": value})
