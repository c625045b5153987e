"""Keeps the rewards of a run between the calls of verl's functions, and records its rollouts."""

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from gdpo.diagnostics import Watch
from gdpo.errors import ConfigError
from gdpo.integrations._harmless import Harmless
from gdpo.integrations._turns import messages_of, on_tokens, spans_of
from gdpo.integrations.rows import Columns, Computed, Settings, compute
from gdpo.integrations.verl._carried import Carried
from gdpo.integrations.verl.scores import declared_by
from gdpo.integrations.verl.settings import ROLLOUTS, read_settings
from gdpo.rollouts import Rollout, StepWriter
from gdpo.rollouts.record import recorded
from gdpo.rollouts.writing import set_aside


def rollouts_of(computed: Computed, trainer: Any, batch: Any, queue: Any) -> list[Rollout]:
    table, config = computed.record(), trainer.config
    keys = [batch.keys[row] for row in table.row.tolist()]
    fields = ["prompts", "responses", "reward_model", "loss_mask"]
    data = queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    judged, masks = (data.get(name, [None] * len(keys)) for name in fields[2:])
    decode = partial(trainer.tokenizer.decode, skip_special_tokens=True)
    return [
        Rollout(
            run=str(config.trainer.experiment_name),
            step=int(trainer.global_steps),
            prompt=decode(prompt),
            completion=decode(response)
            if mask is None or bool(mask.all())
            else messages_of(response, spans_of(mask.tolist()), decode),
            finish_reason="length" if len(response) >= config.data.max_response_length else "stop",
            extra={"uid": key, **_truth(truth)},
            **own,
        )
        for key, prompt, response, truth, mask, own in zip(
            keys, data["prompts"], data["responses"], judged, masks, recorded(table), strict=True
        )
    ]


def _truth(judged: Any) -> dict[str, Any]:
    judged = getattr(judged, "data", judged)  # tensordict wraps values that are not tensors
    has_truth = isinstance(judged, Mapping) and "ground_truth" in judged
    return {"ground_truth": judged["ground_truth"]} if has_truth else {}


logger = logging.getLogger(__name__)


class VerlRun:
    """Stores what gdpo keeps of a run between the calls of verl's functions.

    `install` creates one for each process. verl passes one number per token to an estimator, with
    the rewards already summed: `carrying` makes the separate ones available.
    """

    def __init__(self) -> None:
        self.carried: Carried | None = None
        """The separate rewards of the batch whose advantages verl is computing. Otherwise None."""
        self.latest: Computed | None = None
        """The latest batch with its advantages. It becomes None when its metrics are logged."""
        self.watching = Harmless(
            "gdpo stops watching this run, which continues without gdpo's metrics and record"
        )
        """Runs code that only watches one of verl's own estimators. Its failure does no harm."""
        self.handing_over = Harmless("gdpo cannot pass the rewards to verl's own gdpo")
        self.is_checked = False
        """Whether a made-up batch has shown that this verl returns gdpo's advantages."""
        self._watch = Watch()
        self._settings: dict[str, Settings] = {}
        self._said: set[str] = set()
        self._writers: WeakKeyDictionary[Any, StepWriter] = WeakKeyDictionary()  # by trainer

    def settings(self, algorithm: Any) -> Settings:
        return read_settings(algorithm, self._settings)

    def warn_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            logger.warning(message)

    @contextmanager
    def carrying(self, carried: Carried) -> Generator[None]:
        """Make `carried` available to the estimator inside the `with` block.

        If an enclosing block has already set a value, that value is kept.
        """
        outer = self.carried
        self.carried = outer or carried
        try:
            yield
        finally:
            self.carried = outer

    def compute_advantages(
        self,
        token_level_rewards: Any,
        response_mask: Any,
        config: Any,
        index: Any,
        non_tensor_batch: Columns | None = None,
        batch: Any = None,  # noqa: ARG002  verl passes these two by name
        reward_baselines: Any = None,  # noqa: ARG002
    ) -> tuple[Any, Any]:
        """Compute the advantage of every trained token with the configured estimator.

        The arguments are verl's. Of `token_level_rewards`, only the dtype and device are used: the
        separate rewards come from `carrying` or `non_tensor_batch`. `index` holds the prompt id of
        each row. Advantages and returns are the same array `[row, token]`, 0 for tokens that are
        not trained.
        """
        settings, carried, like = self.settings(config), self.carried, token_level_rewards
        if carried is None and non_tensor_batch is not None:
            carried = Carried(non_tensor_batch)
        if carried is None:
            raise ConfigError(
                "the separate rewards did not reach the estimator, because gdpo does not support "
                "this trainer: use one of verl's own trainers, or pass non_tensor_batch"
            )
        groups = carried.groups(settings, index, response_mask)
        self.latest = computed = compute(groups, settings)
        tokens = like.new_tensor(groups.per_row(computed.of_turns))
        if settings.rule.wants_turns:
            tokens = on_tokens(tokens, carried.written(response_mask))
        else:
            tokens = tokens.unsqueeze(-1)
        tokens = tokens * response_mask
        return tokens, tokens

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the latest batch, once, and log each warning."""
        computed, self.latest = self.latest, None
        if computed is None:
            return {}
        if computed.watched is None:
            return computed.metrics(self._watch)
        return self.watching(computed.metrics, self._watch) or {}

    def record(self, trainer: Any, batch: Any, queue: Any) -> None:
        """Write the rollouts of the latest batch, if there is one and `gdpo_rollouts` is set.

        A folder that is not writable at the first batch raises a ConfigError.
        """
        folder = trainer.config.algorithm.get(ROLLOUTS)
        if folder is None or self.latest is None:
            return
        rollouts = rollouts_of(self.latest, trainer, batch, queue)
        if trainer not in self._writers:
            declared = declared_by(trainer.config.get("reward"))
            writer = StepWriter(Path(str(folder)), declared=declared)
            writer.check_folder()
            if int(trainer.global_steps) == 1:  # a resumed run starts at the step of its checkpoint
                set_aside(Path(str(folder)))
            self._writers[trainer] = writer
        self._writers[trainer].write(int(trainer.global_steps), rollouts)
