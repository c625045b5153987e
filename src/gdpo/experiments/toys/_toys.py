r"""What a toy is: a policy whose expected rewards and gradients are known exactly.

A rollout is a few independent choices. A *binary* choice is 0 or 1, a *graded* one a number from -1
to 1; both are exponential families with one natural parameter $\eta$ each, and the parameters of
all choices are made of one vector that they share: $\eta = \eta_0 + F\theta$. A reward is an
affine function of the choices, plus a jitter that the policy cannot move.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from gdpo.experiments.reading import Measured

Array: TypeAlias = np.ndarray

_NEARLY_EVEN = 1e-2
"""Natural parameters below which the moments of a graded choice are taken from their series."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the choices that make a rollout."""

    start: float = 0.0
    """Its natural parameter at the start: log-odds of a binary choice, tilt of a graded one."""
    graded: bool = False


def earned_by(share: float) -> Choice:
    """A binary choice that is 1 in this share of the rollouts at the start."""
    return Choice(math.log(share / (1 - share)))


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward: `base`, what its choices add to it, and jitter."""

    measured: Measured
    choices: Mapping[int, float]
    """What one unit of a choice adds, by the place of the choice; in the unit of the reward."""
    base: float = 0.0
    jitter: float = 0.0
    """Width of an even noise around it, which depends on nothing."""


@dataclass(frozen=True, slots=True)
class Toy:
    """A small problem that tells estimators apart, with what is expected and from where."""

    name: str
    question: str
    """What it tests."""
    expected: str
    """What comes out in closed form."""
    source: str
    """Where that is known from."""
    failure: str
    """What an estimator does that fails."""
    choices: tuple[Choice, ...]
    rewards: tuple[Reward, ...]
    steps: int = 100
    prompts: int = 32
    """Groups per step."""
    samples: int = 4
    """Rollouts per group."""
    learning_rate: float = 0.03
    width: int = 32
    """Parameters that all choices share."""
    cosine: float = 0.0
    """Between the directions of any two choices in the space of parameters."""
    reach: float = 0.8
    """Share of a reward's range whose first crossing is timed."""
    constraint: Mapping[str, float] = field(default_factory=dict[str, float])
    """Target of `constrained_grpo`, by reward."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the rewards."""
        return tuple(reward.measured.name for reward in self.rewards)

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The rewards, with ranges and weights."""
        return tuple(reward.measured for reward in self.rewards)

    @property
    def weights(self) -> Float[Array, " reward"]:
        """Of the rewards."""
        return np.array([measured.weight for measured in self.measured])

    @property
    def effects(self) -> Float[Array, "reward choice"]:
        """What one unit of each choice adds to each reward."""
        table = np.zeros((len(self.rewards), len(self.choices)))
        for row, reward in zip(table, self.rewards, strict=True):
            row[list(reward.choices)] = list(reward.choices.values())
        return table

    @property
    def bases(self) -> Float[Array, " reward"]:
        """The rewards of a rollout whose choices are all 0."""
        return np.array([reward.base for reward in self.rewards])

    @property
    def start(self) -> Float[Array, " choice"]:
        """Natural parameters of the policy at the start."""
        return np.array([choice.start for choice in self.choices])

    @property
    def graded(self) -> Bool[Array, " choice"]:
        """Which choices are graded."""
        return np.array([choice.graded for choice in self.choices])

    @property
    def gram(self) -> Float[Array, "choice choice"]:
        """Products of the directions of the choices, which have length 1."""
        count = len(self.choices)
        return np.full((count, count), self.cosine) + (1 - self.cosine) * np.eye(count)

    def directions(self, rng: np.random.Generator) -> Float[Array, "choice parameter"]:
        """How the parameters move each choice: random, but for their lengths and angles."""
        orthonormal = np.linalg.qr(rng.normal(size=(self.width, len(self.choices))))[0]
        return np.ascontiguousarray(np.linalg.cholesky(self.gram) @ orthonormal.T)

    def expected_rewards(self, eta: Float[Array, "*seed choice"]) -> Float[Array, "*seed reward"]:
        """The mean of each reward over all rollouts of this policy, without sampling."""
        return moments(eta, self.graded)[0] @ self.effects.T + self.bases

    def gradient(self, eta: Float[Array, " choice"]) -> Float[Array, "reward choice"]:
        """Derivative of each expected reward by each natural parameter."""
        return self.effects * moments(eta, self.graded)[1]

    def sample(
        self, eta: Float[Array, "*seed choice"], uniform: Float[Array, "*seed prompt sample draw"]
    ) -> tuple[Float[Array, "*seed prompt sample choice"], Float[Array, "..."]]:
        """Choices and rewards `[..., prompt, sample, reward]` of rollouts.

        Args:
            eta: Natural parameters.
            uniform: From 0 to 1, one per choice and then one per reward, for its jitter.
        """
        count = len(self.choices)
        chosen = draw(eta[..., None, None, :], uniform[..., :count], self.graded)
        jitter = np.array([reward.jitter for reward in self.rewards])
        noise = jitter * (uniform[..., count:] - 0.5)
        return chosen, chosen @ self.effects.T + self.bases + noise


def moments(
    eta: Float[Array, "*seed choice"], graded: Bool[Array, " choice"]
) -> tuple[Float[Array, "*seed choice"], Float[Array, "*seed choice"]]:
    r"""Mean and variance of choices with these natural parameters.

    Binary: $p = 1 / (1 + e^{-\eta})$ and $p (1 - p)$. Graded, with density $\propto e^{\eta a}$ on
    $[-1, 1]$: $\coth\eta - 1/\eta$ and $1/\eta^2 - 1/\sinh^2\eta$.
    """
    p = _probability(eta)
    large = np.where(np.abs(eta) < _NEARLY_EVEN, 1.0, eta)
    sinh = np.sinh(np.clip(large, -300, 300))
    mean = np.where(large == eta, 1 / np.tanh(large) - 1 / large, eta / 3 - eta**3 / 45)
    series = 1 / 3 - eta**2 / 15 + 2 * eta**4 / 189
    variance = np.where(large == eta, 1 / large**2 - 1 / sinh**2, series)
    return np.where(graded, mean, p), np.where(graded, variance, p * (1 - p))


def draw(
    eta: Float[Array, "..."], uniform: Float[Array, "..."], graded: Bool[Array, " choice"]
) -> Float[Array, "..."]:
    """Choices by the inverse of their distribution function; `uniform` is from 0 to 1."""
    size = np.maximum(np.abs(eta), 1e-9)
    above = np.where(eta < 0, 1 - uniform, uniform)
    with np.errstate(divide="ignore"):  # the lowest number there is, of a choice that is certain
        tilted = 1 + np.log1p((1 - above) * np.expm1(-2 * size)) / size
    tilted = np.clip(tilted, -1, 1)
    binary = uniform < _probability(eta)
    return np.where(graded, np.where(eta < 0, -tilted, tilted), binary)


def _probability(log_odds: Float[Array, "..."]) -> Float[Array, "..."]:
    return (1 + np.tanh(log_odds / 2)) / 2


def _plain(name: str, choice: int, *, unit: float = 1.0, weight: float = 1.0) -> Reward:
    """A reward that is the unit if the choice is 1, and 0 otherwise."""
    return Reward(Measured(name, 0.0, unit, weight), {choice: unit})


_ESCAPE = Toy(
    name="escape",
    question="Is a rare reward learnt beside a dense one of six times its range?",
    expected=(
        "Under Adam a factor common to all advantages changes nothing, so that rloo is "
        "grpo_no_std. What divides each reward by its spread over the batch, or lifts what varies "
        "in few groups, has the format first; a raw sum has it late."
    ),
    source="rloo is grpo_no_std times 4/3 in groups of 4; the order was measured, not derived",
    failure="The format is not at 80 % after 300 steps.",
    choices=(earned_by(0.006), Choice(graded=True)),
    rewards=(
        _plain("format", 0),
        Reward(Measured("correctness", -3.0, 3.0, 1.0), {1: 3.0}),
    ),
    steps=300,
    constraint={"format": 0.8},
)

_DUPLICATED = Toy(
    name="duplicated",
    question="Does a reward that is given twice count twice?",
    expected=(
        "The influence of reward k on a sum of normalized rewards is (Cw)_k: 2 : 2 : 1 for two "
        "copies and an independent one. With the weights C^(-1/2) w it is 1.45 : 1.45 : 1 at a "
        "shrinkage of 0.1, with C^-1 w 1.05 : 1.05 : 1."
    ),
    source="Covariance of a weighted sum; the eigenvalues of the shrunk C are 1.9, 0.1 and 1",
    failure="The copied reward is learnt much sooner than the single one, which started alike.",
    choices=(earned_by(0.1), earned_by(0.1)),
    rewards=(_plain("copied", 0), _plain("copy", 0), _plain("single", 1)),
    constraint={"single": 0.8},
)

_JUNK = Toy(
    name="junk",
    question="Does a reward that is constant but for 0.1 % of jitter slow the other one down?",
    expected=(
        "Normalized in its group, jitter gets the share of the advantages that its weight asks "
        "for; in a raw sum without a standard deviation it has none. GRPO blows it up as well, in "
        "the groups where nothing else varies: 66 % at the start."
    ),
    source="Corr(A, z_k)^2 = pi_k / sum of pi, pi_k being the share of groups where k varies",
    failure="Correctness takes longer than with that reward left out.",
    # What no reward depends on: there, whatever the advantages say is noise.
    choices=(earned_by(0.1), *[Choice(graded=True)] * 30),
    rewards=(
        _plain("correctness", 0),
        Reward(Measured("junk", 0.0, 1.0, 1.0), {}, base=0.5, jitter=0.001),
    ),
    prompts=4,
    constraint={"correctness": 0.8},
)

_SATURATING = Toy(
    name="saturating",
    question="Is a reward that is nearly always earned kept while another one pulls against it?",
    expected=(
        "The gradient of the expected sum turns against the saturated reward where the cosine "
        "times the slope of the other one, p (1 - p), outweighs its own."
    ),
    source="Both slopes are exact; at the start they are 0.048 and 0.16, the cosine is -0.5",
    failure="The saturated reward falls, or the other one is not learnt.",
    choices=(earned_by(0.95), earned_by(0.2)),
    rewards=(_plain("saturated", 0), _plain("other", 1)),
    cosine=-0.5,
    constraint={"saturated": 0.95},
)

_OPPOSED = Toy(
    name="opposed",
    question="Two rewards want the opposite of one choice: does the weight decide, or the unit?",
    expected=(
        "Normalized, the advantage is (1 - 0.5) z: the heavier one wins. In raw units it is "
        "(1 - 0.5 * 10) c: the one of the larger unit wins. Equal weights would give exactly 0."
    ),
    source="z of 1 - r is minus z of r",
    failure="The reward of half the weight wins.",
    choices=(earned_by(0.5),),
    rewards=(
        _plain("heavier", 0),
        Reward(Measured("larger", 0.0, 10.0, 0.5), {0: -10.0}, base=10.0),
    ),
    constraint={"heavier": 0.8},
)

_SPARSE = Toy(
    name="sparse",
    question="What does a reward that few groups earn count beside one of the same unit?",
    expected=(
        "At a rate of 2 % it varies in 7.8 % of the groups of 4, at 50 % in 87.5 %: what lifts it "
        "by the root of that ratio lifts it 3.35 times in a large batch. One of 32 groups holds "
        "2.5 of them, more where the lift is smaller: there it comes to about 3.0."
    ),
    source="pi = 1 - p^4 - (1 - p)^4",
    failure="The sparse reward is learnt late.",
    choices=(earned_by(0.02), earned_by(0.5)),
    rewards=(_plain("sparse", 0), _plain("dense", 1)),
    constraint={"sparse": 0.8},
)

_TEN = Toy(
    name="ten_rewards",
    question="Ten independent rewards, one of them in a unit ten times as large: are nine lost?",
    expected=(
        "Normalized, all ten have the same influence, whatever the unit. In a raw sum the large "
        "one has ten times that of another."
    ),
    source="Independent rewards: C is the identity, so that (Cw)_k = w_k",
    failure="The nine lag behind the large one.",
    choices=tuple(earned_by(0.2) for _ in range(10)),
    rewards=(
        _plain("large", 0, unit=10.0),
        *(_plain(f"plain_{k}", k) for k in range(1, 10)),
    ),
    learning_rate=0.05,
    constraint={"plain_1": 0.8},
)

TOYS: Mapping[str, Toy] = {
    toy.name: toy for toy in (_ESCAPE, _DUPLICATED, _JUNK, _SATURATING, _OPPOSED, _SPARSE, _TEN)
}
