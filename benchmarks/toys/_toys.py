r"""Defines the toys: policies whose expected rewards and gradients are known exactly.

A rollout consists of a few independent choices. A *binary* choice is 0 or 1, and a *graded* choice
is a number from -1 to 1. Both kinds of choices are exponential families with one natural parameter
$\eta$ per choice. The natural parameters of all choices depend on one shared parameter vector:
$\eta = \eta_0 + F\theta$. A reward is an affine function of the choices plus noise that the policy
cannot influence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gdpo.lab.experiments.reading import Measured

_NEARLY_EVEN = 1e-2
"""If the natural parameter is closer to 0 than this, the moments of a graded choice are computed
from their series."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Describes one of the choices in a rollout."""

    start: float = 0.0
    """Initial natural parameter: the log-odds of a binary choice, or the tilt of a graded
    choice."""
    graded: bool = False


def earned_by(share: float) -> Choice:
    """Return a binary choice that is 1 in this share of the initial rollouts."""
    return Choice(math.log(share / (1 - share)))


@dataclass(frozen=True, slots=True)
class Reward:
    """Describes a reward: a base value, plus a contribution of each choice, plus noise."""

    measured: Measured
    choices: Mapping[int, float]
    """Contribution of one unit of each choice, by index of the choice, in the unit of the
    reward."""
    base: float = 0.0
    jitter: float = 0.0
    """Width of uniform noise, centred at 0 and independent of the choices."""


@dataclass(frozen=True, slots=True)
class Toy:
    """Describes a small problem on which estimators differ, and the expected result."""

    name: str
    question: str
    """The question that the toy answers."""
    expected: str
    """The expected result."""
    source: str
    """Source of the expected result."""
    failure: str
    """How a failure appears in the results."""
    choices: tuple[Choice, ...]
    rewards: tuple[Reward, ...]
    steps: int = 100
    prompts: int = 32
    """Number of groups per step."""
    samples: int = 4
    """Number of rollouts per group."""
    learning_rate: float = 0.03
    width: int = 32
    """Number of parameters that all choices share."""
    cosine: float = 0.0
    """Cosine between the directions of any two choices in parameter space."""
    reach: float = 0.8
    """Threshold for every reward, as a share of its range."""
    constraint: Mapping[str, float] = field(default_factory=dict[str, float])
    """Targets for `constrained_grpo`, keyed by reward."""

    @property
    def names(self):
        """Names of the rewards."""
        return tuple(reward.measured.name for reward in self.rewards)

    @property
    def measured(self):
        """The rewards with their ranges and weights."""
        return tuple(reward.measured for reward in self.rewards)

    @property
    def weights(self):
        """Weights of the rewards, `[reward]`."""
        return np.array([measured.weight for measured in self.measured])

    @property
    def effects(self):
        """Contribution of one unit of each choice to each reward, `[reward, choice]`."""
        table = np.zeros((len(self.rewards), len(self.choices)))
        for row, reward in zip(table, self.rewards, strict=True):
            row[list(reward.choices)] = list(reward.choices.values())
        return table

    @property
    def start(self):
        """Initial natural parameters of the policy, `[choice]`."""
        return np.array([choice.start for choice in self.choices])

    @property
    def graded(self):
        """For each choice, whether it is graded."""
        return np.array([choice.graded for choice in self.choices])

    @property
    def gram(self):
        """Inner products of the directions of the choices. All directions have length 1."""
        count = len(self.choices)
        return np.full((count, count), self.cosine) + (1 - self.cosine) * np.eye(count)

    def directions(self, rng):
        """Return the direction of each choice in parameter space: random, with fixed angles."""
        orthonormal = np.linalg.qr(rng.normal(size=(self.width, len(self.choices))))[0]
        return np.ascontiguousarray(np.linalg.cholesky(self.gram) @ orthonormal.T)

    def expected_rewards(self, eta):
        """Return the exact expected value of each reward, `[..., reward]`, under a policy."""
        bases = np.array([reward.base for reward in self.rewards])
        return moments(eta, self.graded)[0] @ self.effects.T + bases

    def gradient(self, eta):
        """Return the derivative of each expected reward with respect to each natural parameter."""
        return self.effects * moments(eta, self.graded)[1]

    def sample(self, eta, uniform):
        """Return the choices and the rewards, `[..., prompt, sample, reward]`, of rollouts.

        `uniform[..., prompt, sample, draw]` are random numbers from 0 to 1. The first determine the
        choices, one per choice, and the others the noise, one per reward.
        """
        count = len(self.choices)
        chosen = draw(eta[..., None, None, :], uniform[..., :count], self.graded)
        bases, jitter = np.array([(reward.base, reward.jitter) for reward in self.rewards]).T
        noise = jitter * (uniform[..., count:] - 0.5)
        return chosen, chosen @ self.effects.T + bases + noise


def moments(eta, graded):
    r"""Return the mean and the variance of choices with these natural parameters.

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


def draw(eta, uniform, graded):
    """Turn random numbers from 0 to 1 into choices, by inverting the distribution function."""
    size = np.maximum(np.abs(eta), 1e-9)
    above = np.where(eta < 0, 1 - uniform, uniform)
    with np.errstate(divide="ignore"):  # log of 0 if a choice is certain
        tilted = 1 + np.log1p((1 - above) * np.expm1(-2 * size)) / size
    tilted = np.clip(tilted, -1, 1)
    binary = uniform < _probability(eta)
    return np.where(graded, np.where(eta < 0, -tilted, tilted), binary)


def _probability(log_odds):
    return (1 + np.tanh(log_odds / 2)) / 2


def _plain(name: str, choice: int, *, unit: float = 1.0, weight: float = 1.0) -> Reward:
    """Return a reward that is `unit` if the choice is 1, and 0 otherwise."""
    return Reward(Measured(name, 0.0, unit, weight), {choice: unit})


_ESCAPE = Toy(
    name="escape",
    question="Is a rare reward learned alongside a dense one with six times its range?",
    expected=(
        "With Adam, a factor common to all advantages changes nothing, so rloo equals "
        "grpo_no_std. Estimators that divide each reward by its batch standard deviation, or give "
        "more weight to rewards that vary in few groups, learn the format first. A raw sum learns "
        "it late."
    ),
    source="rloo is grpo_no_std times 4/3 in groups of 4; the order was measured, not derived",
    failure="The format is below 80 % after 300 steps.",
    choices=(earned_by(0.006), Choice(graded=True)),
    rewards=(_plain("format", 0), Reward(Measured("correctness", -3.0, 3.0, 1.0), {1: 3.0})),
    steps=300,
    constraint={"format": 0.8},
)

_DUPLICATED = Toy(
    name="duplicated",
    question="Does a reward that is listed twice count twice?",
    expected=(
        "The influence of reward k on a sum of normalized rewards is (Cw)_k: 2 : 2 : 1 for two "
        "copies and an independent reward. With the weights C^(-1/2) w it is 1.45 : 1.45 : 1 at a "
        "shrinkage of 0.1, with C^-1 w 1.05 : 1.05 : 1."
    ),
    source="Covariance of a weighted sum; the eigenvalues of the shrunk C are 1.9, 0.1 and 1",
    failure="The copied reward is learned much sooner than the single one, with an equal start.",
    choices=(earned_by(0.1), earned_by(0.1)),
    rewards=(_plain("copied", 0), _plain("copy", 0), _plain("single", 1)),
    constraint={"single": 0.8},
)

_JUNK = Toy(
    name="junk",
    question="Does a reward that is constant except for 0.1 % of noise slow the other one down?",
    expected=(
        "If each reward is normalized within its group, the noise gets the full share of its "
        "weight. In a raw sum without a standard deviation it gets almost none. GRPO amplifies it "
        "in the groups where nothing else varies: 66 % at the start."
    ),
    source="Corr(A, z_k)^2 = pi_k / sum of pi, pi_k being the share of groups where k varies",
    failure="Correctness takes longer than without that reward.",
    # No reward depends on these choices, so advantages only add noise to them.
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
    question="Does a nearly saturated reward stay high while another one works against it?",
    expected=(
        "The gradient of the expected sum lowers the saturated reward if the cosine times the "
        "slope p (1 - p) of the other reward is larger than its own slope."
    ),
    source="Both slopes are exact; at the start they are 0.048 and 0.16, the cosine is -0.5",
    failure="The saturated reward falls, or the other one is not learned.",
    choices=(earned_by(0.95), earned_by(0.2)),
    rewards=(_plain("saturated", 0), _plain("other", 1)),
    cosine=-0.5,
    constraint={"saturated": 0.95},
)

_OPPOSED = Toy(
    name="opposed",
    question="Two rewards are exact opposites: does the weight or the unit decide which one wins?",
    expected=(
        "If each reward is normalized, the advantage is (1 - 0.5) z: the reward with the larger "
        "weight wins. In raw units it is (1 - 0.5 * 10) c: the reward with the larger unit wins. "
        "Equal weights would give exactly 0."
    ),
    source="z of 1 - r is minus z of r",
    failure="The reward with half the weight wins.",
    choices=(earned_by(0.5),),
    rewards=(
        _plain("heavier", 0),
        Reward(Measured("larger", 0.0, 10.0, 0.5), {0: -10.0}, base=10.0),
    ),
    constraint={"heavier": 0.8},
)

_SPARSE = Toy(
    name="sparse",
    question="How much does a rare reward count compared with a frequent one of the same unit?",
    expected=(
        "A reward earned by 2 % varies in 7.8 % of the groups of 4, one earned by 50 % in 87.5 %. "
        "Estimators that scale by the square root of that ratio scale it by 3.35 in a large batch. "
        "A batch of 32 groups has 2.5 such groups on average; the factor is about 3.0 there."
    ),
    source="pi = 1 - p^4 - (1 - p)^4",
    failure="The sparse reward is learned late.",
    choices=(earned_by(0.02), earned_by(0.5)),
    rewards=(_plain("sparse", 0), _plain("dense", 1)),
    constraint={"sparse": 0.8},
)

_TEN = Toy(
    name="ten_rewards",
    question="Ten independent rewards, one with ten times the unit: are the other nine ignored?",
    expected=(
        "If each reward is normalized, all ten have the same influence. In a raw sum the large "
        "one has ten times the influence of another."
    ),
    source="Independent rewards: C is the identity, so (Cw)_k = w_k",
    failure="The nine lag behind the large one.",
    choices=tuple(earned_by(0.2) for _ in range(10)),
    rewards=(_plain("large", 0, unit=10.0), *(_plain(f"plain_{k}", k) for k in range(1, 10))),
    learning_rate=0.05,
    constraint={"plain_1": 0.8},
)

TOYS = {
    toy.name: toy for toy in (_ESCAPE, _DUPLICATED, _JUNK, _SATURATING, _OPPOSED, _SPARSE, _TEN)
}
