"""What addresses, places, moments and accounts look like, as expressions; which word is a name is told in `names`.

A text of any length must not hold up a release: an expression begins only where a word does, or looks ahead no farther
than a given number of characters, so that its work grows with the text and not with its square.
"""

from __future__ import annotations

import re

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()

WORD = re.compile(r"[^\W\d_][^\W_]*(?:['’-][^\W\d_]+)*")
LAST_PART = "com|org|net|edu|gov|io|ai|local|lan|internal|example|test"
COUNTRY = "de|fr|uk|ch|at|nl|be|se|no|fi|dk|pl|cz|it|es|pt|eu|jp|cn|kr|tw|sg|hk|in|au|nz|ca|us|br|mx|il|tr|za"

# Everywhere, also in ids and instructions: nothing else looks like these.
EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+\s?(?:@|[\[(]at[\])])\s?[\w-]+(?:(?:\.|\s?[\[(]dot[\])]\s?)[\w-]+)+", re.I)
LINK = re.compile(r"\b(?:https?|ftp|s3|gs|ssh|rsync|file)://\S+|\bwww\.\S+", re.I)
_ROOTS = (
    "home|users|mnt|media|data|root|scratch|nfs|net|export|volumes|storage|"
    "gpfs|lustre|cluster|projects|workspace|srv|var|tmp"
)
PATH = re.compile(rf"(?:/(?:{_ROOTS})/|[A-Z]:\\|\\\\(?=\w)|(?<![\w/])~[\w.-]*/)[^\s,;]+", re.I)
# Of four single digits it is a version: nobody's network begins with 1.2.
ADDRESS = re.compile(r"\b(?!(?:\d\.){3}\d\b)(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I)
PAIR = re.compile(r"(?<![\d.])(-?\d{1,3}\.\d{4,20})\s{0,3}[,;/ ]\s{0,3}(-?\d{1,3}\.\d{4,20})(?!\d|\.\d)")
_degree = r"(?:g|gitude|itude)?\.?[\"']?\s{0,3}[:=]?\s{0,3}[\"']?-?\d{1,3}\.\d{2,20}"
DEGREES = re.compile(
    r"\d{1,3}\s?°\s?\d{0,2}(?:[.,]\d+)?\s?['′’]?\s?(?:\d{0,2}(?:[.,]\d+)?\s?[\"″”]|'')?\s?[NSEW]\b"
    r"|\b[NS]\s?\d{1,2}\.\d{3,20}[,;]?\s{1,3}[EW]\s?\d{1,3}\.\d{3,20}"
    r"|\b\d{1,2}\.\d{3,20}\s?[NS][,;/]?\s{0,3}\d{1,3}\.\d{3,20}\s?[EW]\b"
    # Also as JSON writes it, and the other way round.
    rf"|\blat{_degree}\W{{1,6}}(?:lon|lng){_degree}|\b(?:lon|lng){_degree}\W{{1,6}}lat{_degree}"
    # ISO 6709, as cameras write it: +48.1373+011.5754/
    r"|(?<![\w.])[+-]\d{2,6}\.\d{1,12}[+-]\d{2,7}\.(?:\d{1,12}(?:[+-]\d{1,6}(?:\.\d{1,9})?)?(?:CRS\w{1,20})?/|\d{3,12})",
    re.I,
)

# In free text alone: a task may well be about "room 2" or "lab-pc-3".
PHONE = re.compile(
    r"(?<![\w.])(?:(?:\+\d|\(\d|0\d)[\d ()/-]{6,24}\d|\d{3}[-.]\d{3}[-.]\d{4}|[2-9]\d{2}-\d{4})(?!\.{0,3}\w)"
)
SPELT_MAIL = re.compile(rf"(?<![\w.+-])([\w.+-]+)\s{{1,3}}at\s{{1,3}}(?:[\w-]+\.)+(?:{LAST_PART}|{COUNTRY})\b")
SITE = re.compile(
    rf"(?<![\w@./-])(?:[a-z0-9_-]+\.)+(?:{LAST_PART})\b(?:[:/][^\s,;]*)?"
    rf"|(?<![\w@./-])(?:[a-z0-9_-]+\.)+(?:{COUNTRY})/[^\s,;]+|(?<![\w@./-])(?:[a-z0-9_-]+\.){{2,}}(?:{COUNTRY})\b"
)
ACCOUNT = re.compile(r"(?<![\w@.+-])[\w.+-]+@[\w-]+(?![\w-]|\.\w)|(?<![\w@])@[A-Za-z][\w.-]*\w")
HOST = re.compile(
    r"\b(?:[a-z0-9]{1,20}[-_]){1,4}(?:pc|nuc|ws|workstation|laptop|desktop|server|box|node|gpu|dgx)[-_]?\d+\b"
    r"|\b(?:desktop|laptop)-[a-z0-9]{5,}\b",
    re.I,
)
_FILES = (
    "mp4|hdf5|h5|zarr|pkl|npz|npy|json|jsonl|csv|txt|bag|mcap|parquet|yaml|yml|"
    "py|avi|mov|mkv|webm|png|jpg|svo|tar|gz|zip|log"
)
FILE = re.compile(rf"(?<![\w/.\\-])\\{{0,2}}(?:[\w.-]+[/\\])+[\w.-]*\.(?:{_FILES})\b", re.I)
ROOM = re.compile(
    r"\b(?:room|rm|office|building|bldg|lab|laboratory|suite|apartment|apt)\.?\s{1,3}(?:no\.?\s{0,3}|nr\.?\s{0,3}|#)?"
    r"(?:[A-Z]{1,2}[-.]?\d[\w.-]{0,20}\b|\d{1,3}\.\d{2,3}\b|\d{3,4}[A-Za-z]?\b|\d{1,2}\b)(?!\.\d)"
    r"(?!\s{0,3}(?:mm|cm|m|s|times|more|or|and|of|%|x)\b)",
    re.I,
)
_KEPT = "the|a|an|of|on|in|at|to|from|with|by|along|down|off|over|into|and|for|its|this|that"
STREET = re.compile(
    rf"\b\d{{1,4}}[a-z]?\s{{1,3}}(?:(?!(?:{_KEPT})\b)[^\W\d_]{{1,40}}\s{{1,3}}){{1,2}}"
    r"(?:street|avenue|road|lane|boulevard|drive|square|st|ave|rd|blvd)\b\.?"
    r"|\b[^\W\d_]{3,40}(?:straße|strasse|str\.|weg|gasse|platz|allee|straat|gatan|vej)\s{1,3}\d{1,3}[a-z]?\b",
    re.I,
)

# Moments.
_clock = (
    r"(?:[T_ -]?[0-2]?\d\s?h(?:[-_: ]?[0-5]?\d\s?m(?:in)?(?:[-_: ]?[0-5]?\d\s?s)?)?(?![^\W_])"  # 12h-01m-10s
    r"|[T_ -]{1,2}[0-2]\d_[0-5]\d_[0-5]\d"
    r"|[T_ -]?[0-2]\d[:.-]?[0-5]\d(?:[:.-]?[0-5]\d(?:[.,]\d{1,12}|\d{3}|\d{6})?)?(?:\s?Z|[+-]\d\d:?\d\d)?)?"
)
_year = r"(?P<year>(?:19|20)\d\d)"
_behind = r"(?:[T_ -]{1,2}[0-2]?\d(?::[0-5]\d(?::[0-5]\d)?|(?P<mark>[-_.])[0-5]\d(?P=mark)[0-5]\d)(?!\d))?"
ISO = re.compile(rf"(?<!\d){_year}[-_/.]?(?P<month>0[1-9]|1[0-2])[-_/.]?(?:0[1-9]|[12]\d|3[01]){_clock}(?!\d)")
SLASHED = re.compile(rf"(?<![\d.])\d{{1,2}}(?P<sign>[/._-])\d{{1,2}}(?P=sign){_year}{_behind}(?!\d)")
_months = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|"
    "dec(?:ember)?"
)
# Without zeros before the digits; with dots it would be a version.
LOOSE = re.compile(
    rf"(?<![\d.]){_year}(?P<sign>[-_/])(?P<month>0?[1-9]|1[0-2])(?P=sign)(?:0[1-9]|[12]\d|3[01]|[1-9])(?!\d)"
    r"(?:[T_ -]{1,2}[0-2]?\d[-_:.h][0-5]\d(?:[-_:.m][0-5]\d)?(?!\d))?"
)
# Two digits of a year: the order is that in which ids are sorted, and the years are those in which there were such ids.
_short = r"(?P<year>1[5-9]|[23]\d)"
SHORT_ISO = re.compile(
    rf"(?<![^\W_])(?<!\d[.-]){_short}-(?P<month>0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?![^\W_]|[-.]\d)"
)
SHORT_SPOKEN = re.compile(rf"(?<![^\W_])\d{{1,2}}[-_]?(?P<month>{_months})[-_]?{_short}(?![^\W_])", re.I)
_weekday = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}[\s_,.-]{1,3})?"
SPOKEN = re.compile(
    rf"(?<![^\W_]){_weekday}(?:\d{{1,2}}(?:st|nd|rd|th)?[\s_./-]{{0,3}}(?:of\s{{1,3}})?)?(?P<month>{_months})[\s_.,/-]{{0,3}}"
    rf"(?:\d{{1,2}}(?:st|nd|rd|th)?[\s_.,/-]{{1,3}})?{_year}{_behind}(?![^\W_])",
    re.I,
)
# What computers call a moment: "Fri Mar  5 14:22:10 CET 2024", and the same as the name of a folder.
STAMPED = re.compile(
    rf"(?<![^\W_]){_weekday}(?P<month>{_months})[\s_.-]{{1,3}}\d{{1,2}}[\s_,-]{{1,3}}\d{{1,2}}[\s_:.-]\d\d(?:[\s_:.-]\d\d)?"
    rf"(?:[\s_-]{{1,2}}[a-z]{{3,4}})?[\s_-]{{1,2}}{_year}(?![^\W_])",
    re.I,
)
# Seconds since 1970, from 2008 to 2033, also in thousandths, millionths and billionths; letters may be glued to them.
EPOCH = re.compile(
    r"(?<![^\W_])(?<!\d\.)(?P<letters>[A-Za-z]{0,20})(?P<seconds>1[2-9]\d{8})(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?"
    r"(?![^\W_]|\.\d)"
)
# "May" and "march" are words: with a day they are months if they have a capital, or the day is a day beyond doubt.
_sure = rf"(?i:(?!mar(?:ch)?\b|may\b)(?:{_months}))|Mar(?:ch)?|May|MAR(?:CH)?|MAY"
DAY = re.compile(
    rf"\b(?:{_sure})\.?\s{{1,3}}\d{{1,2}}(?:st|nd|rd|th)?\b(?!\s{{0,3}}(?:mm|cm|m|s|times|%))"
    rf"|\b(?i:march|may)\s+\d{{1,2}}(?:st|nd|rd|th)\b"
    rf"|\b\d{{1,2}}(?:st|nd|rd|th)?\.?\s+(?:{_sure})\b|\b\d{{1,2}}(?:st|nd|rd|th)?\s+of\s+(?i:{_months})\b"
)
SHORT_YEAR = re.compile(r"(?<![\w./])(?:\d{1,2}/\d{1,2}/\d{2}|\d{2}\.\d{2}\.\d{2})(?![\w/]|\.\d)")
WEEKDAY = re.compile(r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day(?:s\b|\b)", re.I)
HOUR = re.compile(
    r"\b(?:1[0-2]|0?[1-9])(?:[:.][0-5]\d)?\s?[ap]\.?m\b\.?|\b[0-2]?\d:[0-5]\d\s?(?:h|Uhr|o'clock)\b"
    # With an hour and seconds it is a time of day; "00:01:30" is where in a video.
    r"|(?<![\w:.])(?:0?[1-9]|1\d|2[0-3]):[0-5]\d:[0-5]\d(?:[.,]\d{1,9})?(?![\d:])",
    re.I,
)

# Words before or behind which somebody is named; what is no everyday word there is taken for the name.
_who = r"([^\W\d_][\w'’.-]{0,60}[^\W_]|[^\W\d_])"
TITLE = re.compile(rf"\b(?:[Dd]r|[Pp]rof|[Pp]rofessor|[Mm]rs?|Ms|Herr|Frau)\.?\s+{_who}")
NAMED = re.compile(
    r"\b(?:ask(?:ed|ing)?|told|tell|thanks(?:\s+to)?|thank|according\s+to|cc|ping(?:ed)?|dear|(?:recorded|operated|collected|"
    rf"teleoperated|annotated|labell?ed|filmed|supervised|reviewed|checked|done|made|touched|helped|reset)\s+by)\s+{_who}",
    re.I,
)
SPEAKS = re.compile(
    rf"(?<![^\W\d_]){_who}\s{{1,3}}(?:said|says|wrote|told|asked|noticed|thinks|thought|suggested|mentioned|reported|had\s+to|forgot|helped)\b"
)
LOGIN = re.compile(
    rf"\b(?:user(?:\s?name)?|login|account|operator|annotator|teleoperator|student|host(?:name)?)\b\s{{0,3}}[:=]?\s{{0,3}}{_who}",
    re.I,
)
SIGNED = re.compile(r"(?:[-–—]\s*)([A-Z]{2,3})\s*$")
INITIALS = re.compile(r"\b[A-Z]\.\s?[A-Z]\.")
