"""Scores NeMo-RL's message logs with gdpo's rewards, tasks and gates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdpo.errors import DataError
from gdpo.integrations._scoring import as_reference
from gdpo.integrations.nemo_rl._estimator import COMPONENT
from gdpo.integrations.nemo_rl._settings import judge_of
from gdpo.rewards.text import completion_text

_PLACE = "extra_env_info['ground_truth']"


class Rewarder:
    """Scores the last response of each conversation.

    Args:
        env: The `env.gdpo` section of NeMo-RL's configuration. `task`, `rewards`, `gates` and the
            options of `gdpo.rewards.Scorer` have the same format as in
            `gdpo.integrations.verl.compute_score`. `ground_truth` is the name of the reference
            field that receives a plain-text ground truth, for example `answer`. `tokenizer` is the
            name of the tokenizer that counts tokens, and is required if a reward depends on the
            length.

    Raises:
        ConfigError: If an option is unknown or invalid.
    """

    def __init__(self, env: Mapping[str, Any]) -> None:
        self._judge = judge_of(env)
        self._field = env.get("ground_truth")
        self._count = _counter(env.get("tokenizer")) if self._judge.of_tokens else None

    def score(
        self,
        message_logs: Sequence[Sequence[Mapping[str, Any]]],
        metadata: Sequence[Mapping[str, Any]],
    ) -> dict[str, np.ndarray]:
        """Return an array `[conversation]` for each reward, under the key `reward/<name>`.

        NaN means that the reward does not apply or failed.

        Args:
            message_logs: For each conversation, messages with `role` and `content`. The last one is
                the completion: the episode ends with the response, and earlier messages of the
                assistant belong to the prompt.
            metadata: For each conversation, `extra_env_info` with the reference in `ground_truth`.

        Raises:
            DataError: If a ground truth is missing or has the wrong type. The ground truth must be
                text if `env.gdpo.ground_truth` is set, otherwise a dict or a JSON object as text.
        """
        answers = [completion_text(messages[-1:]) for messages in message_logs]
        references = [self._reference(info) for info in metadata]
        tokens = None if self._count is None else [self._count(answer) for answer in answers]
        rewards = self._judge.score(answers, references, num_tokens=tokens)
        return {COMPONENT + name: rewards[:, k] for k, name in enumerate(self._judge.names)}

    def _reference(self, info: Mapping[str, Any]) -> dict[str, Any]:
        truth = info.get("ground_truth")
        if self._field is None:
            return as_reference(truth, place=_PLACE)
        if not isinstance(truth, str):
            raise DataError(
                f"{_PLACE} is {truth!r:.80}, but env.gdpo.ground_truth requires text: write text, "
                "or remove env.gdpo.ground_truth"
            )
        return {self._field: truth}


def _counter(name: Any) -> Any:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(name))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))
