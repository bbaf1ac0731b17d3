"""ROS bags and MCAP files: topics, and messages in the order in which they were received.

    run/metadata.yaml, run_0.mcap, run_1.mcap    a ROS 2 bag: a folder of .mcap or .db3 (sqlite3) files
    run.mcap                                     one file; messages of ROS 2, ROS 1 or JSON
    run.bag                                      ROS 1

No ROS installation is needed. A file is read chunk by chunk, and never as a whole.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, TypeAlias

import yaml
import zstandard
from mcap.exceptions import McapError
from mcap.reader import SeekingReader
from mcap.writer import MCAP0_MAGIC
from rosbags import rosbag1, rosbag2
from rosbags.interfaces import MessageDefinitionFormat
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

from demerit.data.files import path_inside
from demerit.data.formats.label_file import printable
from demerit.data.frames import file_state
from demerit.errors import UnreadableVideo

LARGEST_RECORD = 2**30
"""bytes of a chunk: a larger one is a damaged number"""
FOLDER_FACTS = "metadata.yaml"
ENCODINGS = {"cdr": "ros2", "ros1": "ros1", "json": "json"}
"""how messages may be encoded, and what that is called here"""
DEFAULT_TYPES = {"ros2": Stores.ROS2_HUMBLE, "ros1": Stores.ROS1_NOETIC}
"""for recorders that did not store the definitions of the messages, as in sqlite3 bags before ROS 2 Iron"""
VIDEO_DEFINITION = "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format"
HELP = {
    ".mcap": "it is still being written, or its recorder was killed; 'mcap recover' repairs it",
    ".db3": "it is still being written, or its recorder was killed; 'ros2 bag reindex' repairs it",
    ".bag": "it is still being written, or its recorder was killed; 'rosbag reindex' repairs it",
}
Message: TypeAlias = tuple[int, str, bytes]
"""receive time in nanoseconds, topic, data"""


class BagError(Exception):
    """A bag that cannot be read; readers turn it into a problem."""


@dataclass(frozen=True)
class BagTopic:
    """A topic of a bag."""

    type: str
    """like sensor_msgs/msg/Image, also of ROS 1; or a name of another schema, like foxglove.CompressedVideo"""
    encoding: str
    """ros2, ros1 or json; others cannot be read"""
    definition: str
    """empty if the bag has none"""
    is_idl: bool = False


@dataclass(frozen=True)
class _BagPart:
    """An open file of a bag."""

    topics: Mapping[str, BagTopic]
    read: Callable[[Collection[str] | None, int | None, int | None], Iterator[Message]]
    count: int | None
    """messages that it has by its index; None = it does not say"""
    facts: Mapping[str, str]


def list_bag_files(path: Path) -> tuple[list[Path], Mapping[str, Any]]:
    """Return the files of a bag and what its metadata.yaml says; a name in it is followed only within the folder."""
    if path.is_file():
        return [path], {}
    listing = path / FOLDER_FACTS
    if not listing.is_file():
        numbered = re.compile(re.escape(path.name) + r"_(\d+)\.(?:mcap|db3)")
        parts = {int(match[1]): file for file in path.iterdir() if (match := numbered.fullmatch(file.name))}
        return [parts[number] for number in sorted(parts)], {}
    names, facts = _read_facts(listing, *file_state(str(listing)))
    files = [path_inside(path, name) for name in names]
    missing = [name for name, file in zip(names, files, strict=True) if file is None or not file.is_file()]
    if missing:
        raise BagError(f"{FOLDER_FACTS} lists {len(names)} files, and {printable(', '.join(missing))} is not there")
    return [file for file in files if file is not None], facts


@lru_cache(maxsize=256)
def _read_facts(path: Path, _size: int, _mtime_ns: int) -> tuple[list[str], Mapping[str, Any]]:
    """Read the names of a bag's files, and everything else that its recorder says about it."""
    try:
        facts = yaml.safe_load(path.read_text("utf-8"))["rosbag2_bagfile_information"]
        return [PurePath(str(name)).name for name in facts["relative_file_paths"]], facts
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise BagError(f"its {FOLDER_FACTS} cannot be read ({_first_line(error)})") from None


class BagFile:
    """An open bag; use `open_bag`."""

    def __init__(self, path: Path) -> None:
        """Open every file. Raises BagError."""
        self._stack = ExitStack()
        self.close = weakref.finalize(self, self._stack.close)
        """closes every file; called also where nobody did"""
        files, self.facts = list_bag_files(path)
        mode = str(self.facts.get("compression_mode") or "none").lower()
        if mode == "file" or not files:
            reason = "its files are compressed as a whole: 'zstd -d' them, then 'ros2 bag reindex'"
            raise BagError(reason if files else "it has no file with messages")
        self._unpack = zstandard.ZstdDecompressor().decompress if mode == "message" else bytes
        try:
            self._parts = [_open_part(self._stack, file) for file in files]
        except BaseException:
            self.close()
            raise
        self.topics = {name: topic for part in self._parts for name, topic in part.topics.items()}
        counts = [part.count for part in self._parts]
        self.count = self.facts.get("message_count", None if None in counts else sum(filter(None, counts)))
        """messages that it has by its index; None = it does not say"""
        own = self.facts.get("custom_data")
        texts = {str(name): str(text) for name, text in own.items()} if isinstance(own, dict) else {}
        self.texts = {name: text for part in self._parts for name, text in part.facts.items()} | texts
        """what the recorder noted about the recording"""

    def messages(
        self, topics: Collection[str] | None = None, start: int | None = None, stop: int | None = None
    ) -> Iterator[Message]:
        """Stream the messages received from `start` to before `stop`, oldest first. Raises BagError."""
        try:
            for at, topic, data in heapq.merge(
                *(part.read(topics, start, stop) for part in self._parts), key=itemgetter(0)
            ):
                yield at, topic, self._unpack(data)
        except BagError:
            raise
        except Exception as error:  # the parsers raise anything on damaged bytes
            raise BagError(f"a part of it is damaged ({_first_line(error)})") from error

    def decode(self, name: str, data: bytes) -> Any:
        """Decode a message; its fields are attributes. Raises BagError."""
        topic = self.topics[name]
        try:
            if topic.encoding == "json":
                return json.loads(data, object_hook=lambda fields: SimpleNamespace(**fields))
            store = _load_types(topic)
            return (
                store.deserialize_ros1(data, topic.type)
                if topic.encoding == "ros1"
                else (store.deserialize_cdr(data, topic.type))
            )
        except BagError:
            raise
        except Exception as error:  # code that was generated from the definition, on damaged bytes
            raise BagError(f"a message of {name} cannot be decoded ({_first_line(error)})") from error


@lru_cache(maxsize=256)
def _load_types(topic: BagTopic) -> Any:
    if topic.encoding not in DEFAULT_TYPES:
        raise BagError(f"messages encoded as {printable(topic.encoding)!r} are not read")
    if not topic.definition:
        types = _default_types(topic.encoding)
        if topic.type not in types.fielddefs:
            raise BagError(f"{topic.type} is unknown: the bag has no definition of it")
        return types
    parse = get_types_from_idl if topic.is_idl else partial(get_types_from_msg, name=topic.type)
    store = get_typestore(Stores.EMPTY)
    store.register(parse(topic.definition))
    return store


@lru_cache
def _default_types(encoding: str) -> Any:
    store = get_typestore(DEFAULT_TYPES[encoding])
    store.register(get_types_from_msg(VIDEO_DEFINITION, "foxglove_msgs/msg/CompressedVideo"))
    return store


def _open_part(stack: ExitStack, path: Path) -> _BagPart:
    try:
        return (_open_mcap if path.suffix.lower() == ".mcap" else _open_rosbag)(stack, path)
    except Exception as error:  # the parsers raise anything on damaged bytes
        hint = HELP[path.suffix.lower()]
        raise BagError(f"{path.name} has no readable index ({_first_line(error)}): {hint}") from error


def _open_mcap(stack: ExitStack, path: Path) -> _BagPart:
    file = stack.enter_context(path.open("rb"))
    file.seek(-len(MCAP0_MAGIC), os.SEEK_END)
    if file.read() != MCAP0_MAGIC:
        raise McapError("its end is missing")
    file.seek(0)
    reader = SeekingReader(file, validate_crcs=True, record_size_limit=LARGEST_RECORD)
    summary = reader.get_summary()
    if summary is None or (not summary.channels and summary.chunk_indexes):
        raise McapError("it has no summary")
    topics = {}
    for channel in summary.channels.values():
        schema = summary.schemas.get(channel.schema_id)
        encoding = ENCODINGS.get(channel.message_encoding, channel.message_encoding)
        text = schema.data.decode("utf-8", "replace") if schema is not None and encoding in DEFAULT_TYPES else ""
        name = _full_name(schema.name) if schema is not None else ""
        topics[channel.topic] = BagTopic(name, encoding, text, schema is not None and "idl" in schema.encoding)
    in_order = bool(summary.chunk_indexes)  # otherwise the library would read all messages in order to sort them

    def read(names: Collection[str] | None, start: int | None, stop: int | None) -> Iterator[Message]:
        before = 0
        for _, channel, message in reader.iter_messages(
            names, log_time_order=in_order, starting_at=start, ending_before=stop
        ):
            if message.log_time < before:
                raise BagError(
                    "it has no index of chunks, and its messages are not in order: 'mcap recover' repairs it"
                )
            before = message.log_time
            yield before, channel.topic, message.data

    facts = {name: text for record in reader.iter_metadata() for name, text in record.metadata.items()}
    return _BagPart(topics, read, summary.statistics.message_count if summary.statistics else None, facts)


def _open_rosbag(stack: ExitStack, path: Path) -> _BagPart:
    kind = "ros1" if path.suffix.lower() == ".bag" else "ros2"
    reader: Any = stack.enter_context(rosbag1.Reader(path) if kind == "ros1" else rosbag2.Reader(path))
    topics = {
        connection.topic: BagTopic(
            connection.msgtype, kind, connection.msgdef.data, connection.msgdef.format == MessageDefinitionFormat.IDL
        )
        for connection in reader.connections
    }

    def read(names: Collection[str] | None, start: int | None, stop: int | None) -> Iterator[Message]:
        connections = [connection for connection in reader.connections if names is None or connection.topic in names]
        for connection, at, data in reader.messages(connections, start, stop) if connections else ():
            yield at, connection.topic, data

    return _BagPart(topics, read, reader.message_count, {})


def _full_name(name: str) -> str:
    """Name a type of ROS 1 as ROS 2 does.

    >>> _full_name("sensor_msgs/Image")
    'sensor_msgs/msg/Image'
    """
    return re.sub(r"^(\w+)/(\w+)$", r"\1/msg/\2", name)


def _first_line(error: BaseException) -> str:
    return printable((str(error) or type(error).__name__).splitlines()[0][:200])


_last_opened = threading.local()
"""the bag that this thread used last, still open: reading the index of a large one again takes long"""


def bag_state(path: str) -> tuple[tuple[str, int, int], ...]:
    """Name, size and modification time of each file of a bag. Raises BagError."""
    try:
        files, _ = list_bag_files(Path(path))
        return tuple((str(file), *file_state(str(file))) for file in files)
    except UnreadableVideo as error:  # missing, or not a regular file
        raise BagError(f"{error.path}: {error.reason}") from error
    except OSError as error:
        raise BagError(f"it cannot be read ({error.strerror})") from error


@contextmanager
def open_bag(path: str) -> Iterator[BagFile]:
    """Open a bag, or take the one that this thread opened before. Raises BagError."""
    key = (path, bag_state(path))
    bag: BagFile | None = getattr(_last_opened, "bag", None)
    _last_opened.bag = None
    if bag is not None and _last_opened.key != key:
        bag.close()
        bag = None
    bag = bag or BagFile(Path(path))
    try:
        yield bag
    except BaseException:
        bag.close()
        raise
    _last_opened.key, _last_opened.bag = key, bag
