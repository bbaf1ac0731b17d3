"""What x264 and x265 write into a stream about themselves, told from what somebody else wrote under their mark.

Both put a sentence and their settings behind a mark of 16 bytes. The mark proves nothing: anybody can use it. So the
sentence has to be theirs, every setting one that they have, and every value a number or one of their words.
"""

from __future__ import annotations

import re

X264, X265 = (bytes.fromhex(mark) for mark in ("dc45e9bde6d948b7962cd820d923eeef", "2ca2de09b51747dbbb55a4fe7fc2fc4e"))
HEADS = {
    X264: re.compile(
        r"x264 - core \d{1,4}(?: r\d{1,5}M?(?: [0-9a-f]{7,10})?)? - H\.264/MPEG-4 AVC codec - "
        r"Copy(?:left|right) 2003-20\d\d - http://www\.videolan\.org/x264\.html - options:"
    ),
    X265: re.compile(
        r"x265 \(build \d{1,4}\) - [\d.]+(?:\+\d+)?(?:-[0-9a-f]{7,10})?(?:\+\d+)?:"
        r"\[(?:Linux|Windows|Mac OS X|FreeBSD)\]\[(?:GCC|clang|MSVC|ICC) [\d.]+\]\[(?:32|64) bit\]"
        r"(?: \d+bit(?:\+\d+bit)*)? - H\.265/HEVC codec - Copyright 2013-20\d\d "
        r"\(c\) Multicoreware, Inc - http://x265\.org - options:"
    ),
}
SETTINGS = {
    X264: frozenset(
        """
        cabac ref deblock analyse me subme psy psy_rd fade_compensate mixed_ref me_range chroma_me trellis 8x8dct cqm
        deadzone fast_pskip chroma_qp_offset threads lookahead_threads sliced_threads slices slice_max_size
        slice_max_mbs slice_min_mbs nr decimate interlaced bluray_compat stitchable constrained_intra bframes b_pyramid
        b_adapt b_bias direct weightb open_gop weightp keyint keyint_min scenecut intra_refresh rc_lookahead rc mbtree
        bitrate ratetol vbv_maxrate vbv_bufsize crf_max crf qp qcomp qpmin qpmax qpstep cplxblur qblur nal_hrd filler
        ip_ratio pb_ratio aq opencl bitdepth frame-packing
        """.split()
    ),
    X265: frozenset(
        """
        cpuid frame-threads numa-pools wpp pmode pme psnr ssim log-level bitdepth input-csp fps input-res interlace
        total-frames level-idc high-tier uhd-bd ref allow-non-conformance repeat-headers annexb aud eob eos hrd info
        hash temporal-layers open-gop min-keyint keyint gop-lookahead bframes b-adapt b-pyramid bframe-bias
        rc-lookahead lookahead-slices scenecut hist-scenecut radl splice intra-refresh ctu min-cu-size rect amp
        max-tu-size tu-inter-depth tu-intra-depth limit-tu rdoq-level dynamic-rd ssim-rd signhide tskip nr-intra
        nr-inter constrained-intra strong-intra-smoothing max-merge limit-refs limit-modes me subme merange
        temporal-mvp frame-dup hme weightp weightb analyze-src-pics deblock sao sao-non-deblock rd selective-sao
        early-skip rskip fast-intra tskip-fast cu-lossless b-intra splitrd-skip rdpenalty psy-rd psy-rdoq rd-refine
        lossless cbqpoffs crqpoffs rc crf qcomp qpstep stats-write stats-read ipratio pbratio aq-mode aq-strength
        cutree zone-count strict-cbr qg-size rc-grain qpmax qpmin const-vbv sar overscan videoformat range colorprim
        transfer colormatrix chromaloc display-window cll min-luma max-luma log2-max-poc-lsb vui-timing-info
        vui-hrd-info slices opt-qp-pps opt-ref-list-length-pps multi-pass-opt-rps scenecut-bias opt-cu-delta-qp
        aq-motion hdr10 hdr10-opt dhdr10-opt idr-recovery-sei analysis-reuse-level analysis-save-reuse-level
        analysis-load-reuse-level scale-factor refine-intra refine-inter refine-mv refine-ctu-distortion limit-sao
        ctu-info lowpass-dct refine-analysis-type copy-pic max-ausize-factor dynamic-refine single-sei hevc-aq svt field
        qp-adaptation-range scenecut-aware-qp conformance-window-offsets right bottom decoder-max-rate
        vbv-live-multi-pass mcstf sbrc frame-rc bitrate qp vbv-maxrate vbv-bufsize vbv-init crf-max crf-min
        """.split()
    ),
}
WORDS = frozenset("hex umh dia esa tesa crf abr cbr cqp 2pass none vbr tff bff infinite auto".split())
_value = re.compile(r"[-+\d.:,/]{1,16}|0x[0-9a-f]{1,4}:0x[0-9a-f]{1,4}|\d{1,5}x\d{1,5}")


def is_own(payload: bytes) -> bool:
    """Whether a piece of user data holds nothing but what one of the two encoders writes about itself."""
    mark, words = payload[:16], payload[16:].rstrip(b"\0")
    if mark not in HEADS:
        return False
    if not words:
        return True
    text = words.decode("latin-1")
    head = HEADS[mark].match(text)
    if head is None:
        return False
    # One release of x265 forgets a space.
    settings = text[head.end() :].replace("0conformance-window", "0 conformance-window").split()
    return all(_is_known(setting, SETTINGS[mark]) for setting in settings)


def _is_known(setting: str, names: frozenset[str]) -> bool:
    name, equals, value = setting.partition("=")
    known = name in names or name.removeprefix("no-") in names
    return known and (not equals or value in WORDS or _value.fullmatch(value) is not None)
