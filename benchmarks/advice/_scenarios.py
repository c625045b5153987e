"""The scripts of the bench: natural rewards, and a declared purpose that no analyzer sees.

Every script asks for the next number, as in `case 417: after 11?`. The policy answers with texts
such as `well, it is [12] ok.`
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from benchmarks.tool_policy._texts import Example as Text

Feature = Callable[[str, str], float]
"""Function of a completion and the right answer."""

_OPENERS = ("well", "so", "hm", "right", "okay", "now", "then", "yes")


@dataclass(frozen=True, slots=True)
class Careless:
    """Draws careless answers, for the warm start of a policy. Fields are shares."""

    right: float = 0.45
    tagged: float = 0.3
    half: float = 0.2
    """Of the answers without both brackets, those with one."""
    ok: float = 0.3
    openers: float = 1.5
    """Mean number of words before the answer."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Source files that define the texts."""
        return (__file__,)

    def draw(self, rng: np.random.Generator, count: int) -> list[Text]:
        """Return `count` questions with careless answers."""
        rows = question_rows(rng, count)
        return [Text(row["prompt"], self._answer(row["answer"], rng)) for row in rows]

    def _answer(self, right: str, rng: np.random.Generator) -> str:
        number = int(right)
        if rng.random() > self.right:
            number = max(0, number + int(rng.choice([-3, -2, -1, 1, 2, 3])))
        said = f"{number}"
        if rng.random() < self.tagged:
            said = f"[{number}]"
        elif rng.random() < self.half:
            said = str(rng.choice([f"[{number}", f"{number}]"]))
        opened = "".join(f"{word}, " for word in rng.choice(_OPENERS, rng.poisson(self.openers)))
        it_is = "it is " if opened or rng.random() < 0.7 else ""
        return f"{opened}{it_is}{said}{' ok.' if rng.random() < self.ok else '.'}"


def question_rows(rng: np.random.Generator, count: int) -> list[dict[str, object]]:
    """Return rows with a prompt and its answer. The case makes nearly every prompt unique."""
    drawn = zip(rng.integers(100, 1000, count), rng.integers(5, 15, count), strict=True)
    return [
        {"prompt": [{"role": "user", "content": f"case {case}: after {n}?"}], "answer": f"{n + 1}"}
        for case, n in drawn
    ]


def _words(text: str, _: str) -> float:
    return float(len(text.split()))


def _noise(text: str, answer: str) -> float:
    """Return a number from 0 to 1 that no policy can raise: a hash."""
    digest = hashlib.sha256(f"{answer}\n{text}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


FEATURES: Mapping[str, Feature] = {
    "correct": lambda text, answer: float(re.findall(r"\d+", text) == [answer]),
    "parsed": lambda text, answer: float(re.findall(r"\[(\d+)\]", text) == [answer]),
    "lenient": lambda text, answer: float(answer in re.findall(r"\d+", text)),
    "format": lambda text, _: float(bool(re.search(r"\[\d+\]", text))),
    "sentence": lambda text, _: float(bool(re.search(r"it is \[?\d+\]? ok\.", text))),
    "soft": lambda text, _: float(bool(re.search(r"\[\s*\d*\s*\]", text))),
    "opened": lambda text, _: float("[" in text),
    "closed": lambda text, _: float("]" in text),
    "ok": lambda text, _: float("ok" in text.split("]")[-1]),
    "one digit": lambda text, _: float(bool(re.search(r"\[\d\]", text))),
    "brief": lambda text, answer: float(_words(text, answer) <= 2),
    "explained": lambda text, answer: float(_words(text, answer) >= 5),
    "words": lambda text, answer: _words(text, answer) / 10,
    "noise": _noise,
    "judge": lambda text, a: min(1.0, 0.08 * _words(text, a) + 0.3 * _noise(text, a) + 0.1),
}
"""What is measured of a completion, from 0 to 1 (`words` in tens)."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """Describes a reward of a script: a feature times a size, and where it counts."""

    feature: str
    size: float = 1.0
    base: float = 0.0
    """Added to every value."""
    gate: str = ""
    """Feature without which the reward is 0."""
    missing: str = ""
    """Feature without which the reward does not apply."""

    def __call__(self, text: str, answer: str) -> float | None:
        """Return the value of the reward for a completion."""
        if self.missing and not FEATURES[self.missing](text, answer):
            return None
        if self.gate and not FEATURES[self.gate](text, answer):
            return self.base
        return self.base + self.size * FEATURES[self.feature](text, answer)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Describes a script, and what its author wants."""

    kind: str
    rewards: Mapping[str, Scripted]
    purpose: Mapping[str, float]
    """Importance of each feature that the author wants. The first one is the point."""
    sort: str
    """`healthy`, `fault` (one is planted), or `open`."""
    weights: Mapping[str, float] | None = None
    sizes_mean: bool = True
    """Whether the author says with the sizes of the rewards what matters."""
    start: Careless = field(default_factory=Careless)

    @property
    def point(self) -> str:
        """The feature that is the point of the training."""
        return next(iter(self.purpose))


_S = Scripted
_RARE = Careless(tagged=0.05, half=0.02)
_NEAR = Careless(tagged=0.85)
_SELDOM = Careless(right=0.25)
_RIGHT = {"correctness": _S("correct")}
_BOTH = {**_RIGHT, "format": _S("format")}

SCENARIOS: Mapping[str, Scenario] = {
    "penalty of 0.1": Scenario(
        "small dense penalty",
        {
            "correctness": _S("correct", 2.0),
            "format": _S("format", 0.5),
            "length": _S("words", -0.1),
        },
        {"correct": 2.0, "format": 0.5},
        "open",
    ),
    "penalty beside a sentence": Scenario(
        "small dense penalty",
        {
            "correctness": _S("correct", 2.0),
            "sentence": _S("sentence", 0.5),
            "length": _S("words", -0.1),
        },
        {"correct": 2.0, "sentence": 0.5},
        "open",
    ),
    "judge to 10": Scenario(
        "judge",
        {**_RIGHT, "judge": _S("judge", 10.0)},
        {"correct": 1.0, "judge": 0.5},
        "fault",
        sizes_mean=False,
    ),
    "judge to 100": Scenario(
        "judge",
        {**_BOTH, "judge": _S("judge", 100.0)},
        {"correct": 1.0, "format": 1.0, "judge": 0.5},
        "fault",
        sizes_mean=False,
    ),
    "format nearly learned": Scenario(
        "format nearly learned", _BOTH, {"correct": 1.0, "format": 1.0}, "healthy", start=_NEAR
    ),
    "format of 0.5 nearly learned": Scenario(
        "format nearly learned",
        {"correctness": _S("correct", 2.0), "format": _S("format", 0.5)},
        {"correct": 2.0, "format": 0.5},
        "healthy",
        start=_NEAR,
    ),
    "rare format": Scenario(
        "rare format",
        {"correctness": _S("correct", 6.0, base=-3.0), "format": _S("format")},
        {"parsed": 1.0},
        "fault",
        sizes_mean=False,
        start=_RARE,
    ),
    "rare format of 0.2": Scenario(
        "rare format",
        {**_RIGHT, "format": _S("format", 0.2)},
        {"parsed": 1.0},
        "fault",
        sizes_mean=False,
        start=_RARE,
    ),
    "parts of 0.1": Scenario(
        "partial formats",
        {**_RIGHT, "opened": _S("opened", 0.1), "closed": _S("closed", 0.1), "ok": _S("ok", 0.1)},
        {"correct": 1.0, "format": 0.2, "ok": 0.1},
        "healthy",
    ),
    "parts of 0.5": Scenario(
        "partial formats",
        {
            "correctness": _S("correct", 2.0),
            "opened": _S("opened", 0.5),
            "closed": _S("closed", 0.5),
            "ok": _S("ok", 0.5),
        },
        {"correct": 2.0, "format": 1.0, "ok": 0.5},
        "open",
    ),
    "correctness twice": Scenario(
        "duplicate",
        {**_BOTH, "lenient": _S("lenient")},
        {"correct": 1.0, "format": 1.0},
        "open",
        sizes_mean=False,
    ),
    "format twice": Scenario(
        "duplicate",
        {**_BOTH, "soft_format": _S("soft")},
        {"correct": 1.0, "format": 1.0},
        "open",
        sizes_mean=False,
        start=_SELDOM,
    ),
    "noise to 1": Scenario(
        "noise", {**_RIGHT, "quality": _S("noise")}, {"correct": 1.0}, "open", start=_SELDOM
    ),
    "noise to 10": Scenario(
        "noise",
        {**_BOTH, "quality": _S("noise", 10.0)},
        {"correct": 1.0, "format": 1.0},
        "fault",
        sizes_mean=False,
    ),
    "small length bonus": Scenario(
        "length bonus", {**_RIGHT, "length": _S("words", 0.3)}, {"correct": 1.0}, "healthy"
    ),
    "large length bonus": Scenario(
        "length bonus",
        {**_RIGHT, "length": _S("words", 10.0)},
        {"correct": 1.0, "words": 0.1},
        "fault",
        sizes_mean=False,
    ),
    "brief and explained": Scenario(
        "exclude each other",
        {**_RIGHT, "brief": _S("brief"), "explained": _S("explained")},
        {"correct": 1.0},
        "fault",
    ),
    "brief above explained": Scenario(
        "exclude each other",
        {
            "correctness": _S("correct", 2.0),
            "brief": _S("brief"),
            "explained": _S("explained", 0.5),
        },
        {"correct": 2.0, "brief": 1.0},
        "open",
    ),
    "format where correct": Scenario(
        "gate in place",
        {**_RIGHT, "format": _S("format", gate="correct")},
        {"correct": 1.0, "format": 0.5},
        "healthy",
    ),
    "brief where correct": Scenario(
        "gate in place",
        {**_RIGHT, "brief": _S("brief", missing="correct")},
        {"correct": 1.0, "brief": 0.5},
        "healthy",
    ),
    "two equal": Scenario("healthy", _BOTH, {"correct": 1.0, "format": 1.0}, "healthy"),
    "three equal": Scenario(
        "healthy", {**_BOTH, "ok": _S("ok")}, {"correct": 1.0, "format": 1.0, "ok": 1.0}, "healthy"
    ),
    "weights 1 and 0.3": Scenario(
        "declared weights",
        _BOTH,
        {"correct": 1.0, "format": 0.3},
        "healthy",
        weights={"correctness": 1.0, "format": 0.3},
    ),
    "weights 1, 1 and 0.5": Scenario(
        "declared weights",
        {**_RIGHT, "format": _S("format", 0.2), "ok": _S("ok")},
        {"parsed": 1.0, "ok": 0.2},
        "fault",
        weights={"correctness": 1.0, "format": 1.0, "ok": 0.5},
        start=_RARE,
    ),
    "heavy penalty": Scenario(
        "the point falls",
        {**_RIGHT, "length": _S("words", -10.0)},
        {"correct": 1.0},
        "fault",
        sizes_mean=False,
    ),
    "format of one digit": Scenario(
        "the point falls",
        {**_RIGHT, "format": _S("one digit", 5.0)},
        {"correct": 1.0, "format": 0.5},
        "open",
        sizes_mean=False,
    ),
}
"""Two or more scripts of each kind."""
