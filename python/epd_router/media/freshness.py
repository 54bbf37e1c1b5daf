"""How long an answer may be used again: RFC 9111 as a shared cache reads it.

Pure functions of header fields. Lifetimes are differences between the origin's own times, so a wrong clock on this
machine makes nothing fresh. What the standard leaves open is decided for asking the origin once more.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from datetime import timezone
from email.utils import parsedate_to_datetime

LISTS = frozenset({"cache-control", "vary"})  # fields whose lines are one list; of others the first line counts
OF_THE_ANSWER = frozenset({"age", "date"})  # say when an answer was made, so those of a 304 never mix with older ones
FIELDS = LISTS | OF_THE_ANSWER | {"etag", "expires", "last-modified"}
DIRECTIVE = re.compile(r"""([\w!#$%&'*+.^`|~-]+)(?:=(?:"((?:[^"\\]|\\.)*)"|([^,;\s]*)))?""", re.ASCII | re.DOTALL)
LONGEST = 1 << 31  # RFC 9111 1.2.2: seconds that stand for any larger number
HEURISTIC_SHARE, HEURISTIC_MOST = 0.1, 86400.0  # RFC 9111 4.2.2: a tenth of the age; not more than a day


@dataclasses.dataclass(frozen=True, slots=True)
class Validity:
    """`keep`: it may be stored. `lifetime`: seconds, from the moment of the request, in which the origin need not be asked
    again. `questions`: request fields that ask whether it has changed."""

    keep: bool
    lifetime: float
    questions: dict[str, str]


def relevant(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The fields that `validity` reads, by lower-case name."""
    found: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        if name in LISTS and name in found:
            found[name] += ", " + value
        elif name in FIELDS:
            found.setdefault(name, value)
    return found


def confirmed(stored: Mapping[str, str], answer: Mapping[str, str]) -> dict[str, str] | None:
    """The fields of a stored answer after a 304 (RFC 9111 4.3.4); None when the 304 is about another one."""
    if "etag" in stored and "etag" in answer and opaque(stored["etag"]) != opaque(answer["etag"]):
        return None
    return {name: value for name, value in stored.items() if name not in OF_THE_ANSWER} | dict(answer)


def validity(fields: Mapping[str, str], now: float) -> Validity:
    """What an answer with these fields, received at the Unix time `now`, is good for."""
    directives = parse_directives(fields.get("cache-control", ""))
    questions = {
        ask: fields[name] for ask, name in (("If-None-Match", "etag"), ("If-Modified-Since", "last-modified")) if name in fields
    }
    remaining = 0.0 if "no-cache" in directives else lifetime(fields, directives, now) - age(fields)
    # Requests differ in nothing that an origin could choose by, so of all Vary only `*` matters.
    forbidden = {"no-store", "private"} & directives.keys() or "*" in fields.get("vary", "")
    return Validity(not forbidden and (remaining > 0 or bool(questions)), max(0.0, remaining), questions)


def lifetime(fields: Mapping[str, str], directives: Mapping[str, str], now: float) -> float:
    """Seconds from the making of an answer to its end (RFC 9111 4.2.1)."""
    for name in ("s-maxage", "max-age"):
        if name in directives:
            return delta_seconds(directives[name]) or 0
    made = http_date(fields.get("date", ""))
    if made is None:
        made = now
    if "expires" in fields:
        end = http_date(fields["expires"])
        return 0 if end is None else end - made
    modified = http_date(fields.get("last-modified", ""))
    return 0 if modified is None else min((made - modified) * HEURISTIC_SHARE, HEURISTIC_MOST)


def age(fields: Mapping[str, str]) -> int:
    """Seconds an answer had spent in other caches; 0 if the field says nothing (RFC 9111 5.1)."""
    return delta_seconds(fields.get("age", "").partition(",")[0].strip()) or 0


def parse_directives(text: str) -> dict[str, str]:
    """Cache-Control by lower-case name, '' without an argument; the first of a name counts."""
    found: dict[str, str] = {}
    for name, quoted, plain in DIRECTIVE.findall(text):
        found.setdefault(name.lower(), quoted or plain)
    return found


def delta_seconds(text: str) -> int | None:
    """A whole number of seconds, None for anything else."""
    if not (text.isascii() and text.isdigit()):
        return None
    return min(int(text.lstrip("0")[:11] or "0"), LONGEST)


def http_date(text: str) -> float | None:
    """Unix time of a date in any of HTTP's spellings, None for anything else."""
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def opaque(etag: str) -> str:
    """An entity tag for weak comparison (RFC 9110 8.8.3.2)."""
    return etag.removeprefix("W/")
