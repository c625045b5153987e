"""How the numbers of findings and summaries are written."""


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
