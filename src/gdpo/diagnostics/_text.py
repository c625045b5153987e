"""How the numbers of findings and summaries are written."""

_SMALL, _EXACT = 0.02, 5e-4
"""Shares that are given as an upper bound, and margins that are left out."""


def percent(share: float) -> str:
    """A share in percent; what is neither nothing nor everything is not rounded to it.

    >>> percent(0.5), percent(0.004), percent(0.00029), percent(0.0), percent(0.9996), percent(1.0)
    ('50 %', '0.4 %', '0.029 %', '0 %', '99.9 %', '100 %')
    """
    hundredths = 100 * share
    if 0 < hundredths < 1:
        return f"{hundredths:.2g} %"
    if 99 < hundredths < 100:
        return f"{min(hundredths, 99.9):.1f} %"
    return f"{hundredths:.0f} %"


def times(ratio: float) -> str:
    """A ratio for a sentence.

    >>> times(8.3), times(1.62), times(1234.0), times(123456.0)
    ('8 times', '1.6 times', '1234 times', '1.2e+05 times')
    """
    digits = f"{ratio:.1f}" if ratio < 3 else f"{ratio:.0f}" if ratio < 1e4 else f"{ratio:.1e}"
    return f"{digits} times"


def interval(share: float, margin: float) -> str:
    """Return a share with the half-width of its interval; what is nearly 0 is an upper bound.

    >>> interval(0.4812, 0.031), interval(-0.12, 0.03), interval(0.0025, 0.02), interval(1.0, 0.0)
    ('48 % ± 3', '−12 % ± 3', 'under 2 %', '100 %')

    Without a margin (NaN) there is nothing to compute it from.

    >>> interval(0.4812, float("nan")), interval(0.005, 0.08), interval(float("nan"), 0.1)
    ('48 %', 'under 8 %', '–')
    """
    if share != share:
        return "–"
    if abs(share) < _SMALL and margin == margin:
        return f"under {max(100 * _SMALL, 100 * (abs(share) + margin)):.0f} %"
    sign = "−" if share < 0 else ""
    if margin != margin or margin < _EXACT:
        return f"{sign}{percent(abs(share))}"
    digits = 0 if margin >= 0.01 else 1
    return f"{sign}{100 * abs(share):.{digits}f} % ± {100 * margin:.{digits}f}"
