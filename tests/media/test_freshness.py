"""How long an answer may be used again."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from epd_router.media.freshness import FIELDS, LONGEST, confirmed, delta_seconds, http_date, parse_directives, relevant, validity
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_700_000_000.0
DAY = 86400


def at(seconds: float) -> str:
    return formatdate(NOW + seconds, usegmt=True)


def fields(**given: str) -> dict[str, str]:
    return {"date": at(0), **{name.replace("_", "-"): value for name, value in given.items()}}


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        (fields(), 0),
        (fields(cache_control="max-age=60"), 60),
        (fields(cache_control="MAX-AGE=60"), 60),
        (fields(cache_control='public, max-age="60"'), 60),
        (fields(cache_control="max-age=60", age="20"), 40),
        (fields(cache_control="max-age=60", age="60"), 0),
        (fields(cache_control="max-age=60", age="900"), 0),
        (fields(cache_control="max-age=60", age="20, 50"), 40),
        (fields(cache_control="max-age=60", age="soon"), 60),
        (fields(cache_control="max-age=60, s-maxage=5"), 5),
        (fields(cache_control="max-age=0, s-maxage=5"), 5),
        (fields(cache_control="s-maxage=0, max-age=60"), 0),
        (fields(cache_control="max-age=60, max-age=900"), 60),
        (fields(cache_control="max-age=99999999999999999999"), LONGEST),
        (fields(cache_control="max-age=-1"), 0),
        (fields(cache_control="max-age=1.5"), 0),
        (fields(cache_control="max-age"), 0),
        (fields(cache_control="max-age = 60"), 0),
        (fields(cache_control='max-age="60'), 0),
        (fields(cache_control="max-age=٦٠"), 0),
        (fields(cache_control="no-cache, max-age=60"), 0),
        (fields(cache_control='no-cache="set-cookie", max-age=60'), 0),
        (fields(cache_control='x="a, no-cache", max-age=60'), 60),
        (fields(cache_control="max-age=60", expires=at(-5)), 60),
        (fields(cache_control="max-age=oops", expires=at(60)), 0),
        (fields(expires=at(60)), 60),
        (fields(expires=at(60), age="10"), 50),
        (fields(expires=at(-60)), 0),
        (fields(expires="0", last_modified=at(-1000)), 0),
        (fields(expires="-1"), 0),
        ({"expires": at(60)}, 60),
        ({"expires": at(60), "date": at(30)}, 30),
        ({"expires": at(60), "date": "today"}, 60),
        (fields(last_modified=at(-1000)), 100),
        (fields(last_modified=at(-1000), age="30"), 70),
        (fields(last_modified=at(-1000 * DAY)), DAY),
        (fields(last_modified=at(1000)), 0),
        (fields(last_modified="long ago"), 0),
        (fields(last_modified=at(-1000), cache_control="max-age=0"), 0),
    ],
)
def test_lifetime(told: dict[str, str], seconds: float) -> None:
    found = validity(told, NOW)
    assert found.lifetime == pytest.approx(seconds)
    assert found.keep == (seconds > 0 or "last-modified" in told)


@pytest.mark.parametrize("control", ["no-store", "No-Store", "private", 'private="x, y"', "max-age=60,no-store", "x=1;no-store"])
def test_what_must_not_be_kept(control: str) -> None:
    assert not validity(fields(cache_control=f"max-age=60, {control}", etag='"a"'), NOW).keep


@pytest.mark.parametrize(("vary", "keep"), [("*", False), ("Accept, *", False), ("Accept-Encoding", True), ("", True)])
def test_vary(vary: str, keep: bool) -> None:
    assert validity(fields(cache_control="max-age=60", vary=vary), NOW).keep is keep


def test_what_may_be_asked() -> None:
    assert validity(fields(), NOW).questions == {}
    found = validity(fields(etag='W/"a"', last_modified=at(0), cache_control="no-cache"), NOW)
    assert (found.keep, found.questions) == (True, {"If-None-Match": 'W/"a"', "If-Modified-Since": at(0)})


def test_lines_of_a_list_are_one_list_and_of_others_the_first_counts() -> None:
    given = [("Cache-Control", "max-age=60"), ("cache-control", "no-store"), ("Expires", "0"), ("EXPIRES", at(60)), ("Server", "x")]
    assert relevant(given) == {"cache-control": "max-age=60, no-store", "expires": "0"}


def test_a_304_renews_what_it_names_and_nothing_of_the_time() -> None:
    stored = fields(etag='"a"', cache_control="max-age=60", age="50", vary="Accept")
    assert confirmed(stored, {"etag": '"a"', "date": at(99)}) == fields(
        etag='"a"', cache_control="max-age=60", vary="Accept", date=at(99)
    )
    assert confirmed(stored, {"cache-control": "no-store"}) == {"etag": '"a"', "cache-control": "no-store", "vary": "Accept"}


@pytest.mark.parametrize(
    ("stored", "told", "same"),
    [('"a"', '"a"', True), ('W/"a"', '"a"', True), ('"a"', 'W/"a"', True), ('"a"', '"b"', False), ('"a"', "", False)],
)
def test_a_304_about_another_file(stored: str, told: str, same: bool) -> None:
    assert (confirmed({"etag": stored}, {"etag": told}) is not None) is same


@pytest.mark.parametrize("text", ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"])
def test_the_three_spellings_of_a_date(text: str) -> None:
    assert http_date(text) == 784111777


# Properties

SECONDS = st.integers(0, 1 << 40)
TEXT = st.text(max_size=60) | st.from_regex(r"\A(max-age|s-maxage|no-cache|private|[a-z]+)=?\"?[0-9a-z, \\\"]{0,9}\Z")


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), TEXT))
def test_any_field_can_be_read(told: dict[str, str]) -> None:
    found = validity(told, NOW)
    assert 0 <= found.lifetime <= 2**40
    assert not found.keep or found.lifetime > 0 or found.questions


@given(SECONDS, SECONDS)
def test_lifetime_and_age_add_up(seconds: int, age: int) -> None:
    found = validity(fields(cache_control=f"max-age={seconds}", age=str(age)), NOW)
    assert found.lifetime == max(0, min(seconds, LONGEST) - min(age, LONGEST))


@given(st.integers(-(10**9), 10**9), st.integers(-(10**6), 10**6), st.integers(-(10**9), 10**9))
def test_a_wrong_clock_of_ours_changes_nothing_where_there_is_a_date(error: int, life: int, made: int) -> None:
    told = {"date": at(made), "expires": at(made + life)}
    assert validity(told, NOW + error).lifetime == max(0, life)


@given(st.lists(st.sampled_from(["no-store", "private", "max-age=60", "public", "no-cache", 'x="no-store"']), max_size=6))
def test_the_order_of_directives_does_not_matter_to_what_is_forbidden(given_directives: list[str]) -> None:
    keep = not {"no-store", "private"} & set(given_directives) and "max-age=60" in given_directives
    keep = keep and "no-cache" not in given_directives
    assert validity(fields(cache_control=", ".join(given_directives)), NOW).keep is keep


@given(TEXT)
def test_directives_have_names_in_lower_case(text: str) -> None:
    assert all(name and name == name.lower() for name in parse_directives(text))


@given(st.text(max_size=20))
def test_delta_seconds_takes_digits_only(text: str) -> None:
    found = delta_seconds(text)
    assert (found is not None) == (text.isascii() and text.isdigit())


@given(st.integers(0, 10**5000))
def test_large_numbers_are_the_largest(number: int) -> None:
    assert delta_seconds("0" * 20 + (str(number) if number < LONGEST else "9" * 5000)) == min(number, LONGEST)
