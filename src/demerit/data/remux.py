"""Copy the pictures of a video, and nothing else of its file, into a new mp4."""

from __future__ import annotations

import os
from pathlib import Path

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.container import Flags

from demerit.data.files import atomic_file
from demerit.data.frames import spread
from demerit.data.video import DECODER_ERRORS, VideoClip
from demerit.errors import BadInput, UnreadableVideo

ALLOWED_UNITS = {"h264": "1-5|7-11|13", "av1": "1-4|6-7"}
"""units of the stream that hold image data; SEI, metadata, padding and unknown units are removed"""
WITHOUT_UNITS = ("vp8", "vp9")
"""codecs whose stream has no place for metadata; all others are not copied"""
AV1_HEADER = 4
COMPARED_IMAGES, SAME_SECONDS = 5, 1e-3
REMUX_ERRORS: tuple[type[Exception], ...] = (UnreadableVideo, *DECODER_ERRORS)
"""what `copy_pictures` raises where only encoding again would do"""


def copy_pictures(source: str, target: Path) -> float:
    """Copy the packets of the first video stream, atomically; return by how many seconds the source begins later.

    Frames and times stay exact; titles, dates, other tracks and metadata between the pictures are left behind.
    Raises one of REMUX_ERRORS, and BadInput for a file that would grow.
    """
    with atomic_file(target) as partial:
        _copy_packets(source, partial)
        return _compare(source, str(partial))


def _copy_packets(source: str, target: Path) -> None:
    first = int(VideoClip(source).scan().pts[0])
    with (
        av.open(source) as input_file,
        av.open(str(target), "w", format="mp4", options={"write_btrt": "0"}) as output_file,
    ):
        stream = input_file.streams.video[0]
        codec = stream.codec_context.codec.canonical_name
        if codec not in (*ALLOWED_UNITS, *WITHOUT_UNITS) or _has_av1_metadata(codec, stream.codec_context.extradata):
            raise ValueError(f"{codec} may hold metadata")
        # Bit-exact: no muxer name and no date.
        output_file.flags = output_file.flags | Flags.bitexact.value  # type: ignore[operator]  # PyAV's annotation is wrong
        out = output_file.add_stream_from_template(stream, opaque=True)
        out.metadata.clear()
        out.time_base = stream.time_base
        rate = stream.average_rate or stream.guessed_rate
        step = max(1, round(1 / (rate * stream.time_base))) if rate and stream.time_base else 1
        # With `out`, the filter also rewrites the header: its packets are Annex B, and the muxer must know.
        allowed = f"filter_units=pass_types={ALLOWED_UNITS.get(codec)}"
        units = BitStreamFilterContext(allowed, stream, out) if codec in ALLOWED_UNITS else None
        left = os.path.getsize(source)
        for packet in input_file.demux(stream):
            if not packet.size:
                continue
            left -= packet.size
            if left < 0:  # a small file that says so would become a huge one
                raise BadInput(source, "a video whose frames share no bytes", "one whose frames do")
            if packet.pts is None or packet.is_discard:  # an edit list hides it, but a player could show it
                raise ValueError("a packet is hidden")
            for kept in units.filter(packet) if units else [packet]:
                kept.pts = None if kept.pts is None else kept.pts - first
                kept.dts = None if kept.dts is None else kept.dts - first
                kept.duration = kept.duration or step  # Matroska omits it, and mp4 drops a last frame without
                kept.stream = out
                output_file.mux(kept)


def _has_av1_metadata(codec: str, header: bytes | None) -> bool:
    """Whether an AV1 header holds anything after its sequence header."""
    units = (header or b"")[AV1_HEADER:] if codec == "av1" else b""
    return len(units) > 1 and not (units[0] >> 3 & 15 == 1 and len(units) == 2 + units[1])


def _compare(source: str, made: str) -> float:
    """Compare all times and some images; return by how many seconds the source begins later."""
    before, after = VideoClip(source), VideoClip(made)
    old, new = (scan.pts * scan.seconds_per_tick for scan in (before.scan(), after.scan()))
    if len(old) != len(new) or not np.allclose(old - old[0], new - new[0], rtol=0, atol=SAME_SECONDS):
        raise ValueError("other times")
    sample = spread(len(old), COMPARED_IMAGES).tolist()
    if not np.array_equal(before.take(sample), after.take(sample)):
        raise ValueError("other images")
    return float(old[0] - new[0])
