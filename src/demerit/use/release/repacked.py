"""The same pictures in a new container: the packets as they are, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from demerit.data.frames import spread
from demerit.data.video import VideoClip, decoder_errors
from demerit.errors import UnreadableVideo
from demerit.use.release.containers import Extras, extras

if TYPE_CHECKING:
    from av.bitstream import BitStreamFilterContext
    from av.container import InputContainer, OutputContainer

WITHOUT_UNITS = {"h264": "filter_units=remove_types=6", "hevc": "filter_units=remove_types=39|40"}
WITHOUT_UNITS["av1"] = "filter_units=remove_types=5"
LOOKED_AT = 5
"""pictures of a repacked file that are compared with the original's"""
SAME_MOMENT = 1e-3
"""seconds"""


def repack(source: str, target: Path, found: Extras) -> bool:
    """Write the pictures' packets alone, atomically. False: that cannot be done without changing what is seen."""
    import av  # noqa: PLC0415

    if found.cut_off:
        return False  # those that are shown need some of them to be decoded
    if found.user_data and found.codec not in WITHOUT_UNITS:
        return False
    refused: tuple[type[Exception], ...] = (UnreadableVideo, *decoder_errors())
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with av.open(source) as given, av.open(str(partial), "w", format="mp4") as made:
            _copy_packets(given, made, WITHOUT_UNITS[found.codec] if found.user_data else "")
        if not _same_pictures(source, str(partial)) or extras(str(partial)).cut_off:
            return False
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    except refused:
        return False  # a codec that mp4 does not take, packets without times: written anew instead
    finally:
        partial.unlink(missing_ok=True)
    return True


def _copy_packets(given: InputContainer, made: OutputContainer, cleaner: str) -> None:
    from av.bitstream import BitStreamFilterContext  # noqa: PLC0415
    from av.container import Flags  # noqa: PLC0415

    # No name of a muxer, no date.
    made.flags = made.flags | Flags.bitexact.value  # type: ignore[operator]  # its type is said wrong
    stream = given.streams.video[0]
    # Opaque: the parameters as they are, also where the decoder (dav1d) is no encoder.
    out = made.add_stream_from_template(stream, opaque=True)
    out.metadata.clear()
    out.time_base = stream.time_base
    rate = stream.average_rate or stream.guessed_rate
    step = max(1, round(1 / (rate * stream.time_base))) if rate and stream.time_base else 1
    sieve: BitStreamFilterContext | None = BitStreamFilterContext(cleaner, stream) if cleaner else None
    for packet in given.demux(stream):
        if not packet.size:
            continue
        for kept in sieve.filter(packet) if sieve is not None else [packet]:
            # Matroska leaves durations out, and mp4 would cut a last frame that lasts no time.
            kept.duration = kept.duration or step
            kept.stream = out
            made.mux(kept)


def _same_pictures(source: str, made: str) -> bool:
    """Compare every moment, and some pictures."""
    before, after = VideoClip(source), VideoClip(made)
    old, new = before.scan(), after.scan()
    moments = [index.pts * index.seconds_per_tick for index in (old, new)]
    if len(old.pts) != len(new.pts) or not np.allclose(moments[0], moments[1], rtol=0, atol=SAME_MOMENT):
        return False
    some = spread(len(old.pts), LOOKED_AT).tolist()
    return bool(np.array_equal(before.take(some), after.take(some)))
