"""Numbers within limits and dates, as states of an automaton over digits."""

from collections.abc import Callable
from datetime import date as calendar_date
from decimal import Decimal
from math import ceil, floor
from typing import Protocol

#: Significant digits of a number: every such decimal is another double, so limits hold after reading as they do before.
DIGITS = 15
_SCALE = 10**DIGITS

Edges = dict[int, int]
Limit = int | float | None


class States(Protocol):
    """What numerals are built with."""

    def state(self, edges: Edges, *, numeric: bool = False) -> int: ...

    def edges(self, state: int) -> Edges: ...


def integer(states: States, minimum: Limit, over: Limit, maximum: Limit, under: Limit, after: int) -> int:
    """The state before a whole number within its limits, each of them None if there is none.

    :raises ValueError: without limits to both sides.
    """
    lows = [ceil(minimum)] if minimum is not None else []
    lows += [floor(over) + 1] if over is not None else []
    highs = [floor(maximum)] if maximum is not None else []
    highs += [ceil(under) - 1] if under is not None else []
    if not lows or not highs:
        raise ValueError("an integer without limits")
    low, high = max(lows), min(highs)
    edges: Edges = {}
    if high >= 0:
        edges |= _Whole(states, max(low, 0), high, after).start()
    if low < 0:
        edges[ord("-")] = states.state(_Whole(states, max(-high, 1), -low, after).start(), numeric=True)
    if not edges:
        raise ValueError("no number lies within the limits")
    return states.state(edges, numeric=True)


class _Whole:
    """Whole numbers from ``low`` to ``high``, neither negative."""

    def __init__(self, states: States, low: int, high: int, after: int) -> None:
        self._states, self._low, self._high, self._after = states, low, high, after
        self._known: dict[object, int] = {}

    def start(self) -> Edges:
        zero = {ord("0"): self._after} if self._low == 0 else {}
        return zero | self._digits(0)

    def _digits(self, prefix: int) -> Edges:
        edges = {}
        for digit in range(10):
            longer = 10 * prefix + digit
            if longer and any(self._spans(longer)):
                edges[ord("0") + digit] = self._rest(longer)
        return edges

    def _spans(self, prefix: int) -> list[str]:
        """For each number of further digits, whether all, some or none (empty) of them stay within."""
        spans = []
        first, size = prefix, 1
        while first <= self._high:
            last = first + size - 1
            inside = self._low <= first and last <= self._high
            spans.append("all" if inside else "" if last < self._low else "some")
            first, size = 10 * first, 10 * size
        return spans

    def _rest(self, prefix: int) -> int:
        spans = self._spans(prefix)
        key: object = prefix if "some" in spans else tuple(spans)
        if key not in self._known:
            ended = self._states.edges(self._after) if self._low <= prefix <= self._high else {}
            self._known[key] = self._states.state(ended | self._digits(prefix), numeric=True)
        return self._known[key]


def number(states: States, minimum: Limit, over: Limit, maximum: Limit, under: Limit, after: int) -> int:
    """The state before a number within its limits: a decimal of at most :data:`DIGITS` significant digits.

    With an exponent where it can't lead out of the limits: a negative one where 0 lies within or at the limit, a
    positive one where there is no limit on that side.

    :raises ValueError: for a limit of more digits than that.
    """
    low, low_open = _tightest(minimum, over, max)
    high, high_open = _tightest(maximum, under, min)
    edges: Edges = {}
    if high is None or high > 0 or (high == 0 and not high_open):
        side = _Decimals(
            states,
            low=_inner(low, low_open, 1) if low is not None and low > 0 else int(low == 0 and low_open),
            high=None if high is None else -_inner(-high, high_open, 1),
            shrinks=low is None or low <= 0,
            after=after,
        )
        edges |= side.start()
    if low is None or low < 0:
        side = _Decimals(
            states,
            low=_inner(-high, high_open, 1) if high is not None and high < 0 else 1,
            high=None if low is None else -_inner(low, low_open, 1),
            shrinks=high is None or high >= 0,
            after=after,
        )
        negative = side.start()
        if negative:
            edges[ord("-")] = states.state(negative, numeric=True)
    if not edges:
        raise ValueError(f"no number of {DIGITS} digits lies within the limits")
    return states.state(edges, numeric=True)


def _tightest(closed: Limit, opened: Limit, choose: Callable[..., Decimal]) -> tuple[Decimal | None, bool]:
    limits = [Decimal(repr(limit)) for limit in (closed, opened) if limit is not None]
    if any(len(limit.normalize().as_tuple().digits) > DIGITS for limit in limits):
        raise ValueError(f"a limit of more than {DIGITS} digits")
    if not limits:
        return None, False
    limit = choose(limits)
    return limit, opened is not None and Decimal(repr(opened)) == limit


def _inner(limit: Decimal, is_open: bool, step: int) -> int:
    """The first multiple of the smallest decimal at or above a limit; beyond it when the limit itself is out."""
    scaled = limit * _SCALE
    whole = int(scaled.to_integral_value(rounding="ROUND_CEILING"))
    return whole + step if is_open and whole == scaled else whole


class _Decimals:
    """Decimals of one sign. Limits are counted in units of the last digit after the point that there can be."""

    def __init__(self, states: States, *, low: int, high: int | None, shrinks: bool, after: int) -> None:
        """:param shrinks: whether a number within may be made smaller; it may be made larger without ``high``."""
        self._states, self._low, self._after = states, low, after
        self._high = _SCALE**2 if high is None else high
        self._exponent = _exponent(states, grows=high is None, shrinks=shrinks, after=after)
        self._known: dict[object, int] = {}

    def start(self) -> Edges:
        """The edges before the first digit."""
        return {ord("0") + digit: self._whole(digit, 1) for digit in range(10) if any(self._spans(digit, 1))}

    def _ended(self, units: int) -> Edges:
        """What may follow where a number may end."""
        if not self._low <= units <= self._high:
            return {}
        return self._states.edges(self._after) | self._exponent

    @staticmethod
    def _room(prefix: int, digits: int) -> int:
        """Digits after the point that a whole part leaves; a single 0 counts as none."""
        return DIGITS - digits if prefix else DIGITS

    def _span(self, first: int, size: int, step: int) -> str:
        """Whether all, some or none of ``first``, ``first + step``, ... below ``first + size`` lie within."""
        last = first + size - step
        if self._low <= first and last <= self._high:
            return "all"
        lowest = first + max(0, -(-(self._low - first) // step)) * step
        return "some" if lowest <= min(last, self._high) else ""

    def _spans(self, prefix: int, digits: int) -> list[str]:
        """For each number of further digits before the point, what follows the point counted in."""
        spans = []
        for more in range(DIGITS - digits + 1 if prefix else 1):
            step = 10 ** (DIGITS - self._room(prefix, digits + more))
            spans.append(self._span(prefix * 10**more * _SCALE, 10**more * _SCALE, step))
        return spans

    def _whole(self, prefix: int, digits: int) -> int:
        """The state after a whole part, or the beginning of one."""
        spans = self._spans(prefix, digits)
        key: object = ("whole", prefix) if "some" in spans or not prefix else ("whole", tuple(spans))
        if key not in self._known:
            edges = dict(self._ended(prefix * _SCALE))
            room = self._room(prefix, digits)
            fraction = self._fraction_digits(prefix * _SCALE, room, room)
            if fraction:
                edges[ord(".")] = self._states.state(fraction, numeric=True)
            if prefix and digits < DIGITS:
                for digit in range(10):
                    if any(self._spans(10 * prefix + digit, digits + 1)):
                        edges[ord("0") + digit] = self._whole(10 * prefix + digit, digits + 1)
            self._known[key] = self._states.state(edges, numeric=True)
        return self._known[key]

    def _fraction_digits(self, units: int, left: int, room: int) -> Edges:
        """Edges for the next digit after the point.

        :param left: digits that may follow. :param room: how many may stand after the point in all.
        """
        edges = {}
        size = 10 ** (DIGITS - room + left - 1) if left else 0
        step = 10 ** (DIGITS - room)
        for digit in range(10 if left else 0):
            longer = units + digit * size
            span = self._span(longer, size, step)
            if span:
                edges[ord("0") + digit] = self._fraction(longer, left - 1, room, span)
        return edges

    def _fraction(self, units: int, left: int, room: int, span: str) -> int:
        key: object = ("fraction", left) if span == "all" else ("fraction", left, units)
        if key not in self._known:
            edges = self._ended(units) | self._fraction_digits(units, left, room)
            self._known[key] = self._states.state(edges, numeric=True)
        return self._known[key]


def _exponent(states: States, *, grows: bool, shrinks: bool, after: int) -> Edges:
    """Edges into an exponent; none where it would lead out of the limits.

    It is 290 at most: with 15 digits before and after the point, the number stays a normal double.
    """
    if not grows and not shrinks:
        return {}
    end = states.edges(after)
    digits = range(ord("0"), ord("9") + 1)
    third = states.state(dict(end), numeric=True)
    two = states.state(dict(end), numeric=True)
    any_third = states.state(end | dict.fromkeys(digits, third), numeric=True)
    last = states.state(end | {ord("0"): third}, numeric=True)
    after_low = states.state(end | dict.fromkeys(digits, any_third), numeric=True)
    after_two = states.state(end | dict.fromkeys(digits, any_third) | {ord("9"): last}, numeric=True)
    after_high = states.state(end | dict.fromkeys(digits, two), numeric=True)
    first = dict.fromkeys(digits, after_high)
    first |= {ord("0"): after_low, ord("1"): after_low, ord("2"): after_two}
    signed = states.state(dict(first), numeric=True)
    edges = ({ord("+"): signed} | first if grows else {}) | ({ord("-"): signed} if shrinks else {})
    state = states.state(edges, numeric=True)
    return {ord("e"): state, ord("E"): state}


def date(states: States, after: int) -> int:
    """The state before a date of the years 1 to 9999, as 2024-02-29."""

    def digits(words: dict[str, int]) -> int:
        """The state before one of several words of the same length, each with what follows."""
        if "" in words:
            return words[""]
        first: dict[str, dict[str, int]] = {}
        for word, state in words.items():
            first.setdefault(word[0], {})[word[1:]] = state
        return states.state({ord(byte): digits(rest) for byte, rest in first.items()}, numeric=True)

    def dash(state: int) -> int:
        return states.state({ord("-"): state}, numeric=True)

    days = {count: digits({f"{day:02}": after for day in range(1, count + 1)}) for count in (28, 29, 30, 31)}
    months = {
        leap: digits({f"{month:02}": dash(days[_days(month, leap)]) for month in range(1, 13)})
        for leap in (False, True)
    }
    years = {leap: dash(state) for leap, state in months.items()}
    return digits({f"{year:04}": years[_is_leap(year)] for year in range(1, 10_000)})


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _days(month: int, leap: bool) -> int:
    following = calendar_date(2024 if leap else 2023, month % 12 + 1, 1)
    return (following - calendar_date(2024 if leap else 2023, month, 1)).days if month < 12 else 31
