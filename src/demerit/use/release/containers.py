"""What a video file holds besides its pictures: sound, tags, clocks, other streams, bytes that nobody plays.

A file that holds nothing else is copied as it is, so that its fingerprint stays. To be sure of that, an mp4 is walked
box by box: everything in it must be of a known kind, and every byte of its media data must belong to a picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from demerit.data.video import decoder_errors
from demerit.errors import UnreadableVideo
from demerit.use.release.encoder_marks import is_own

if TYPE_CHECKING:
    from av.container import InputContainer

# Tags that a muxer writes by itself and that say nothing about a place, a person or a moment.
HARMLESS = {
    "major_brand": r"[\w ]{4}",
    "minor_version": r"\d+",
    "compatible_brands": r"[\w ]*",
    "encoder": r"(Lav[fc][\d.]*( lib[\w-]+)?)?",
    "handler_name": r"VideoHandler",
    "vendor_id": r"\[0\]\[0\]\[0\]\[0\]|FFMP",
    "language": r"und|eng",
    "duration": r"[\d:.]+",
    "rotate": r"\d+",
}
INNER = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"dinf", b"udta", b"ilst", b"\xa9too"}
LEAVES = {
    *(b"ftyp", b"mdat", b"mvhd", b"tkhd", b"mdhd", b"hdlr", b"vmhd", b"dref", b"elst", b"data"),
    *(b"stts", b"stss", b"ctts", b"stsc", b"stsz", b"stz2", b"stco", b"co64", b"sdtp", b"sbgp", b"sgpd"),
}
DESCRIPTIONS = {b"avcC", b"hvcC", b"av1C", b"vpcC", b"colr", b"pasp", b"btrt", b"fiel", b"clap"}
"""of pictures: their codec, colours, shape and rate"""
BEFORE_COUNT, ENTRY, COMPRESSOR = 4, 86, slice(50, 82)
"""bytes before the number of entries in stsd, of an entry before its boxes, and where in it the encoder's name is"""
CLOCKS = {b"mvhd", b"tkhd", b"mdhd"}
SEI = {"h264": {6}, "hevc": {39, 40}}
USER_DATA = {4, 5}
"""kinds of supplemental information that hold whatever somebody put there: captions, positions, clocks"""
TIMES_OF_DAY = {"h264": frozenset[int](), "hevc": frozenset({136})}
"""kinds in which a camera says what time of day it is; H.264 has no kind for that alone"""
OBU_METADATA = 5
WITHOUT_USER_DATA = {"vp8", "vp9"}


@dataclass(frozen=True)
class Extras:
    """What is in a file besides pictures."""

    codec: str
    sounds: int = 0
    others: int = 0
    """streams of subtitles, positions and the like, further cameras"""
    tags: tuple[str, ...] = ()
    """names of tags that say something; their values are nobody's business"""
    user_data: bool = False
    """whether the pictures' own stream carries data of somebody's"""
    cut_off: int = 0
    """pictures in the file that it never shows, as an edit list cuts them off: whoever asks for them gets them"""
    unknown: tuple[str, ...] = ()
    """other reasons not to copy the file as it is"""

    @property
    def clean(self) -> bool:
        """Whether there is nothing."""
        return not (self.sounds or self.others or self.tags or self.user_data or self.cut_off or self.unknown)


def extras(path: str) -> Extras:
    """Look for everything but pictures; no picture is decoded."""
    import av  # noqa: PLC0415

    try:
        with av.open(path) as container:
            return _extras(path, container)
    except decoder_errors() as error:
        raise UnreadableVideo(path, f"it cannot be opened as a video ({error})") from error


def _extras(path: str, container: InputContainer) -> Extras:
    streams = container.streams
    if not streams.video:
        raise UnreadableVideo(path, "it has no video in it")
    stream = streams.video[0]
    codec = stream.codec_context.codec.canonical_name
    # Apart: a tag of the stream and one of the container may have the same name, and only one of them be harmless.
    said = (*stream.metadata.items(), *container.metadata.items())
    tags = [name for name, value in said if not _is_harmless(name, value)]
    tags += [f"chapter {name}" for chapter in container.chapters() for name in chapter.get("metadata", {})]
    size, found, shown = 0, False, set()
    lengths = _length_bytes(codec, stream.codec_context.extradata)
    for packet in container.demux(stream):
        size += packet.size
        if not packet.is_discard:
            shown.add(packet.pos)
        found = found or (packet.size > 0 and has_user_data(codec, bytes(packet), lengths))
    return Extras(
        codec=codec,
        sounds=len(streams.audio),
        others=len(streams) - len(streams.audio) - 1,
        tags=tuple(sorted(set(tags))),
        user_data=found,
        cut_off=len(_all_pictures(path) - shown) if "mov" in container.format.name else 0,
        unknown=tuple(sorted(set(_not_plain(path, size)))),
    )


def _all_pictures(path: str) -> set[int | None]:
    """Where in the file pictures lie, whether they are shown or not."""
    import av  # noqa: PLC0415

    with av.open(path, options={"ignore_editlist": "1"}) as container:
        return {packet.pos for packet in container.demux(container.streams.video[0]) if packet.size}


def _is_harmless(name: str, value: str) -> bool:
    pattern = HARMLESS.get(name.lower())
    return pattern is not None and re.fullmatch(pattern, value) is not None


def _not_plain(path: str, pictures: int) -> Iterator[str]:
    """Walk an mp4's boxes and name what is not known to be harmless; other containers are not walked."""
    with open(path, "rb") as file:
        end = file.seek(0, 2)
        file.seek(0)
        if file.read(8)[4:8] != b"ftyp":
            yield "a container whose every byte is not known"
            return
        media = 0
        for kind, start, stop in _boxes(file, 0, end):
            if kind == b"mdat":
                media += stop - start
            elif kind in CLOCKS:
                file.seek(start)
                version = file.read(4)[0]
                if any(file.read(16 if version else 8)):
                    yield "creation time"
            elif kind in (b"free", b"skip", b"wide"):
                file.seek(start)
                if any(any(block) for block in iter(partial(file.read, min(1 << 16, max(0, stop - file.tell()))), b"")):
                    yield "bytes in unused room"
            elif kind == b"stsd":
                yield from _in_descriptions(file, start, stop)
            elif kind not in LEAVES:
                yield f"box {kind.decode('latin-1')!r}"
        if media != pictures:
            yield "bytes that no picture uses"


def _in_descriptions(file: BinaryIO, start: int, stop: int) -> Iterator[str]:
    """Look into what a track says of its pictures' format: an encoder's name, and boxes that could hold anything."""
    file.seek(start + BEFORE_COUNT)
    count = int.from_bytes(file.read(4), "big")
    at = start + BEFORE_COUNT + 4
    for _ in range(count):
        file.seek(at)
        entry = file.read(ENTRY)
        size = int.from_bytes(entry[:4], "big")
        if len(entry) < ENTRY or size < ENTRY or at + size > stop:
            break
        name = entry[COMPRESSOR]
        if any(name[1 + name[0] :]) or not _is_harmless("encoder", name[1 : 1 + name[0]].decode("latin-1")):
            yield "name of an encoder"
        yield from (
            f"box {kind.decode('latin-1')!r}"
            for kind, _, _ in _boxes(file, at + ENTRY, at + size)
            if kind not in DESCRIPTIONS
        )
        at += size
    if at != stop:
        yield "bytes in the pictures' description"


def _boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the boxes that hold no boxes: kind, first byte and the byte after the last of their content."""
    while start < end:
        file.seek(start)
        head = file.read(16)
        size, kind, skip = int.from_bytes(head[:4], "big"), head[4:8], 8
        if size == 1:
            size, skip = int.from_bytes(head[8:16], "big"), 16
        size = size or end - start
        if size < skip or start + size > end:
            yield b"????", start, end
            return
        if kind in INNER:
            yield from _boxes(file, start + skip, start + size)
        elif kind == b"meta":
            yield from _boxes(file, start + skip + 4, start + size)
        else:
            yield kind, start + skip, start + size
        start += size


def has_user_data(codec: str, packet: bytes, lengths: int) -> bool:
    """Whether a packet carries somebody's own data; `lengths` is how many bytes give a unit's length, 0 = start codes.

    Codecs that are not looked into (MJPEG, MPEG-4 ...) are said to carry some: their pictures are written anew.
    """
    if codec in SEI:
        return any(_is_foreign(unit, codec) for unit in _units(packet, lengths))
    if codec == "av1":
        return OBU_METADATA in _obu_kinds(packet)
    return codec not in WITHOUT_USER_DATA


def _is_foreign(unit: bytes, codec: str) -> bool:
    header = 1 if codec == "h264" else 2
    kind = unit[0] & 0x1F if codec == "h264" else (unit[0] >> 1) & 0x3F
    if kind not in SEI[codec]:
        return False
    body, at = unit[header:], 0
    while at + 2 <= len(body) and body[at] != 0x80:  # noqa: PLR2004
        numbers = []
        for _ in range(2):
            number = 0
            while at < len(body) and body[at] == 0xFF:  # noqa: PLR2004
                number, at = number + 255, at + 1
            numbers.append(number + (body[at] if at < len(body) else 0))
            at += 1
        payload = body[at : at + numbers[1]]
        if numbers[0] in USER_DATA and not is_own(payload):
            return True
        if numbers[0] in TIMES_OF_DAY[codec]:
            return True
        at += numbers[1]
    return False


def _units(packet: bytes, lengths: int) -> Iterator[bytes]:
    if not lengths:
        yield from (unit for unit in re.split(rb"\x00\x00\x01", packet)[1:] if len(unit) > 1)
        return
    at = 0
    while at + lengths < len(packet):
        size = int.from_bytes(packet[at : at + lengths], "big")
        unit = packet[at + lengths : at + lengths + size]
        if len(unit) > 1:
            yield unit
        at += lengths + size


def _length_bytes(codec: str, extradata: bytes | None) -> int:
    """Read from the codec's own header how units are told apart."""
    place = {"h264": 4, "hevc": 21}.get(codec)
    if place is None or not extradata or len(extradata) <= place or extradata[0] != 1:
        return 0
    return (extradata[place] & 3) + 1


def _obu_kinds(packet: bytes) -> set[int]:
    kinds, at = set(), 0
    while at < len(packet):
        head = packet[at]
        kinds.add((head >> 3) & 15)
        at += 2 if head & 4 else 1
        if not head & 2:
            break
        size = shift = 0
        while at < len(packet):
            byte = packet[at]
            size, shift, at = size | (byte & 0x7F) << shift, shift + 7, at + 1
            if not byte & 0x80:
                break
        at += size
    return kinds
