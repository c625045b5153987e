"""The recipe's `trainer:` is checked against TRL's configuration before anything is loaded."""

from importlib.util import find_spec
from unittest.mock import Mock

import pytest
from tests.refusals import config_error, refusal

from gdpo.lab.recipes.batches import Split, plan_batches, split_batch
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.recipes.trainer_fields import build_config
from gdpo.lab.tasks import Problem
from gdpo.lab.training.preflight import quiet


@pytest.fixture
def build(load):
    def build_with(*overrides: str):
        with quiet():
            return build_config(resolve(load(*overrides)))

    return build_with


def test_gdpo_sets_what_a_run_needs_and_leaves_the_rest_to_trl(build):
    from trl import GRPOConfig

    config = build()
    assert (config.logging_steps, config.save_total_limit, config.report_to) == (1, 2, [])
    assert (config.use_cpu, config.bf16) == (True, False)
    assert config.reward_weights == [1.0, 0.5, 1.0]
    assert config.output_dir.endswith("runs/tiny/checkpoints")
    assert config.run_name == "tiny"
    with quiet():
        defaults = GRPOConfig("x", use_cpu=True)
    for untouched in ("beta", "loss_type", "temperature", "epsilon", "seed", "max_grad_norm"):
        assert getattr(config, untouched) == getattr(defaults, untouched)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learning_rat=1", "did you mean 'learning_rate'"),
        ("qqqq=1", "GRPOConfig"),
        ("learning_rate=fast", "is 'fast': input should be a valid number"),
        ("learning_rate=-1", "greater than or equal to 0"),
        ("learning_rate=2e4", "less than or equal to 1"),
        ("num_generations=4", "`batch.samples`"),
        ("max_steps=1.5", "is 1.5: input should be a valid integer"),
        ("max_steps=true", "is True: input should be a valid integer"),
        ("bf16=1", "is 1: input should be a valid boolean"),
        ("report_to=[1]", "is [1]: "),
        ("gradient_accumulation_steps=2", "cannot be set here"),
        ("temperature=0", "greater than 0"),
        ("max_completion_length=0", "greater than 0"),
        ("num_iterations=0", "greater than 0"),
        ("save_steps=0", "greater than 0"),
        ("loss_type=dapoo", "'dapo'"),
        ("importance_sampling_level=word", "'token' or 'sequence'"),
        ("vllm_mode=colocated", "'colocate' or 'server'"),
        ("vllm_importance_sampling_mode=mask", "'token_mask'"),
        ("save_only_model=true", "cannot be set here"),
        ("scale_rewards=none", "`advantage:`"),
        ("advantage=grpo", "cannot be set here"),
        ("reward_weights=[1, 1, 1]", "`rewards:`"),
        ("output_dir=x", "cannot be set here"),
        ("hub_token=secret", "HF_TOKEN"),
        ("weights_column=w", "`data.weights_column`"),
    ],
)
def test_a_field_that_trl_would_refuse_names_itself(build, override, message):
    text = refusal(build, f"trainer.{override}")
    assert message in text
    assert text.startswith(f"--set trainer.{override}: trainer.{override.split('=')[0]}")


def test_every_wrong_field_is_reported_with_its_line(build, recipe_file):
    text = recipe_file.read_text().replace("max_steps: 4", "max_step: 4").replace("1e-2", "quick")
    recipe_file.write_text(text)
    said = refusal(build)
    numbered = {line.strip(): i for i, line in enumerate(text.splitlines(), 1)}
    assert f"recipe.yaml:{numbered['max_step: 4']}: trainer.max_step is no" in said
    assert f"recipe.yaml:{numbered['learning_rate: quick']}: trainer.lea" in said


@pytest.mark.parametrize("samples", [3, 4, 16])
def test_an_evaluation_holds_whole_groups_where_nothing_is_said(build, rows, samples):
    data = f"eval_data={{source: {rows}}}"
    config = build(data, f"batch.samples={samples}")
    assert config.per_device_eval_batch_size % samples == 0


def test_a_forward_pass_is_as_large_as_allowed_and_divides_the_share(load):
    def split(micro, processes):
        recipe = load("batch.prompts=9", f"batch.micro_batch={micro}")
        return split_batch(recipe, processes)

    assert split(5, 1) == Split(micro_batch=4, per_step=9, per_generation=9)
    assert split(100, 1).micro_batch == 36
    assert split(5, 4) == Split(micro_batch=3, per_step=3, per_generation=3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lr_scheduler_type: cosin", "cosin is not a valid SchedulerType.*'cosine'"),
        ("optim: adamx", "adamx is not a valid OptimizerNames.*'adamw_torch'"),
        ("filter_groups: none", "unknown filter_groups.*any_reward_varies"),
        ("logging_steps: 0", "requires either non-zero --eval_steps or --logging_steps"),
        ("bf16: true\n  fp16: true", "At most one of fp16 and bf16"),
        ("use_cpu: false", "You need to assign use_cpu"),
        ("per_device_eval_batch_size: 3", "must be divisible by the number of generations"),
    ],
)
def test_what_trl_refuses_is_shown_in_its_own_words_with_the_place_in_the_recipe(
    build, recipe_file, rows, line, message, monkeypatch
):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    text = f"{recipe_file.read_text()}  {line}\neval_data: {{source: {rows}}}\n"
    recipe_file.write_text(text)
    number = 1 + text.splitlines().index("trainer:")
    told = rf"recipe\.yaml:{number}: TRL rejects the fields of trainer: .*{message}"
    with config_error(told):
        build()


@pytest.mark.parametrize(
    ("overrides", "groups", "per_epoch", "total", "per_round"),
    [
        ((), 2, 5, 4, 1),
        (("trainer.max_steps=-1",), 2, 5, 15, 1),
        (("trainer.max_steps=-1", "trainer.num_train_epochs=0.5"), 2, 5, 3, 1),
        (("batch.prompts=4", "batch.rollouts_per_step=8"), 4, 4, 4, 2),
        (("trainer.num_iterations=3",), 2, 15, 4, 3),
        (("batch.rollouts_per_step=4", "trainer.max_steps=-1"), 2, 10, 30, 2),
    ],
)
def test_the_arithmetic_of_the_batches(build, overrides, groups, per_epoch, total, per_round):
    plan = plan_batches(build(*overrides), rows=10)
    assert (plan.groups, plan.steps_per_epoch, plan.total_steps) == (groups, per_epoch, total)
    assert plan.steps_per_round == per_round


def test_the_arithmetic_is_that_of_the_trainer(load, tiny_policy):
    """Against the Trainer's own numbers, where accumulation and generation differ."""
    from gdpo.lab.training.preflight import prepare

    recipe = load(
        "batch.prompts=3", "batch.rollouts_per_step=4", "trainer.max_steps=-1", "data.limit=8"
    )
    with quiet():
        from gdpo.integrations.trl import GDPOTrainer
        from gdpo.lab.training._loop import _dataset

        job = prepare(resolve(recipe))
        trainer = GDPOTrainer(
            model=str(tiny_policy),
            reward_funcs=list(job.resolved.rewards),
            args=job.config,
            train_dataset=_dataset(job.problems, column=None),
            processing_class=job.tokenizer,
        )
        values = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    _, steps_per_epoch, *_, total_steps = values
    assert (job.batches.steps_per_epoch, job.batches.total_steps) == (steps_per_epoch, total_steps)


def test_a_dataset_is_made_without_pickling_its_problems_and_keeps_their_references():
    """Arrow would give every reference the keys of all others."""
    from gdpo.lab.training._loop import _dataset

    pickled = Mock(return_value=(str, ()))
    reference = type("Reference", (), {"__reduce__": pickled})()
    problems = [Problem([], each) for each in (reference, {"a": 1}, {"b": 2})]
    made = _dataset(problems, column=None)
    assert not pickled.called
    assert made[1:]["reference"] == [{"a": 1}, {"b": 2}]


LATE = {
    "eval_strategy=steps": "`eval_data:`",
    "use_cpu=false": "no accelerator",
    "fp16=true": "no effect on the CPU",
    "lr_scheduler_type=cosine_with_min_lr": "cannot create a learning rate scheduler",
    "lr_scheduler_kwargs={nonsense: 1}": "cannot create a learning rate scheduler",
    "use_vllm=true": "use_vllm=false",
    "use_liger_kernel=true": "liger-kernel",
}


@pytest.mark.parametrize("change", LATE)
def test_what_trl_would_report_after_it_has_loaded_the_model_is_reported_before(
    build, monkeypatch, change
):
    package = {"use_vllm=true": "vllm", "use_liger_kernel=true": "liger_kernel"}.get(change)
    if package is not None and find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    with config_error(rf"^--set trainer.{change.split('=')[0]}=.*{LATE[change]}"):
        build("trainer.bf16=false", f"trainer.{change}")


@pytest.mark.parametrize(
    ("changes", "processes", "message"),
    [
        ([], 3, r"recipe.yaml:\d+: 3 processes .*: 1, 2, 4, 8"),
        (["trainer.filter_groups=advantage_nonzero"], 4, r"4 processes .* 2 prompts .*: 1, 2"),
        (["trainer.loss_type=bnpo"], 4, r"passes of 4 .*bnpo.*: 1, 2"),
    ],
)
def test_processes_that_cannot_share_a_batch_are_told_which_can(load, changes, processes, message):
    recipe = load(*changes)
    assert split_batch(recipe, 2).micro_batch == split_batch(recipe, 1).micro_batch == 4
    with config_error(message):
        split_batch(recipe, processes)


def test_a_checkpoint_is_saved_at_each_tenth_of_a_run_and_every_100_steps(build):
    for steps, every in ((92, 10), (5, 1), (90_000, 100)):
        plan = plan_batches(build(f"trainer.max_steps={steps}"), rows=10)
        assert plan.save_steps == every
    with config_error(r"1 rows.* 2 prompts"):
        plan_batches(build(), rows=1)


def test_preparing_a_recipe_shows_no_warning_of_a_library(load, recwarn):
    import warnings

    from gdpo.lab.training.preflight import prepare

    warnings.simplefilter("always", FutureWarning)
    prepare(resolve(load("trainer.gradient_checkpointing=false")))
    assert [str(each.message) for each in recwarn if each.category is FutureWarning] == []
