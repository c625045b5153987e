"""Tests verl's configuration of a recipe, and the errors for fields without a counterpart."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml
from tests.checkout import python
from tests.refusals import config_error
from trl import GRPOConfig

from gdpo.integrations.verl.settings import read_settings
from gdpo.lab.launch.launch import plan_verl
from gdpo.lab.launch.verl import DEFAULTS, Machines
from gdpo.lab.recipes.yaml import read_yaml

ONE = Machines(1, 1)


@pytest.fixture
def planned(load):
    def plan(*changes, machines=ONE, **more):
        changes = ("trainer.lr_scheduler_type=constant", "data.max_prompt_length=99", *changes)
        return plan_verl(load(*changes), machines, **more)

    return plan


def at(config, path):
    for key in path.split("."):
        config = config[key]
    return config


def test_the_copied_defaults_are_trls_defaults():
    theirs = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    assert {name: theirs[name] for name in DEFAULTS} == dict(DEFAULTS)


@pytest.mark.parametrize("name", ["gdpo", "grpo", "gdpo.advantages:mo_grpo"])
def test_the_estimator_is_gdpos_and_never_one_of_verls_names(planned, name):
    assert planned(f"advantage={name}").config["algorithm"]["adv_estimator"] == f"gdpo/{name}"


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("learning_rate=0.5", f"{ACTOR}.optim.lr", 0.5),
        ("lr_scheduler_type=cosine", f"{ACTOR}.optim.lr_scheduler_type", "cosine"),
        ("warmup_steps=3", f"{ACTOR}.optim.lr_warmup_steps", 3),
        ("warmup_steps=0.25", f"{ACTOR}.optim.lr_warmup_steps_ratio", 0.25),
        ("weight_decay=0.5", f"{ACTOR}.optim.weight_decay", 0.5),
        ("adam_beta2=0.95", f"{ACTOR}.optim.betas", [0.9, 0.95]),
        ("max_grad_norm=0.5", f"{ACTOR}.optim.clip_grad", 0.5),
        ("epsilon=0.1", f"{ACTOR}.clip_ratio_low", 0.1),
        ("epsilon=0.1", f"{ACTOR}.clip_ratio_high", 0.1),
        ("epsilon_high=0.3", f"{ACTOR}.clip_ratio_high", 0.3),
        ("delta=4.0", f"{ACTOR}.clip_ratio_c", 4.0),
        ("beta=0.04", f"{ACTOR}.kl_loss_coef", 0.04),
        ("beta=0.04", f"{ACTOR}.use_kl_loss", True),
        ("beta=0.0", f"{ACTOR}.use_kl_loss", False),
        ("entropy_coef=0.1", f"{ACTOR}.entropy_coeff", 0.1),
        ("loss_type=grpo", f"{ACTOR}.loss_agg_mode", "seq-mean-token-mean"),
        ("loss_type=bnpo", f"{ACTOR}.loss_agg_mode", "token-mean"),
        ("loss_type=dr_grpo", f"{ACTOR}.loss_scale_factor", 8),
        ("num_iterations=2", f"{ACTOR}.ppo_epochs", 2),
        ("seed=7", "data.seed", 7),
        ("seed=7", f"{ROLLOUT}.seed", 7),
        ("max_completion_length=9", "data.max_response_length", 9),
        ("temperature=0.7", f"{ROLLOUT}.temperature", 0.7),
        ("top_p=0.9", f"{ROLLOUT}.top_p", 0.9),
        ("top_k=0", f"{ROLLOUT}.top_k", -1),
        ("top_k=20", f"{ROLLOUT}.top_k", 20),
        ("vllm_tensor_parallel_size=2", f"{ROLLOUT}.tensor_model_parallel_size", 2),
        (
            "gradient_checkpointing=true",
            "actor_rollout_ref.model.enable_gradient_checkpointing",
            True,
        ),
        ("save_steps=3", "trainer.save_freq", 3),
        ("save_steps=0.5", "trainer.save_freq", 2),
        ("save_strategy=no", "trainer.save_freq", -1),
        ("report_to=null", "trainer.logger", ["console", "file"]),
        ("report_to=wandb", "trainer.logger", ["console", "file", "wandb"]),
    ],
)
def test_a_field_of_trl_becomes_verls(planned, change, path, value):
    assert at(planned(f"trainer.{change}").config, path) == value


def test_the_ratio_of_a_negative_advantage_is_unbounded_as_in_trl(planned):
    assert at(planned().config, f"{ACTOR}.clip_ratio_c") > 1e8


def test_machines_share_the_batch_and_do_not_change_it(planned):
    config = planned(machines=Machines(2, 2)).config
    assert at(config, "data.train_batch_size") == 2
    assert at(config, f"{ACTOR}.ppo_mini_batch_size") == 2
    assert at(config, "trainer.nnodes") == 2
    assert at(config, "trainer.n_gpus_per_node") == 2
    with config_error(r"6 processes .* 8 rollouts"):
        planned(machines=Machines(2, 3))


def test_a_generation_that_is_learned_from_in_several_steps(planned):
    config = planned("batch.prompts=8", "batch.rollouts_per_step=8", "trainer.max_steps=10").config
    assert at(config, "data.train_batch_size") == 8
    assert at(config, f"{ACTOR}.ppo_mini_batch_size") == 2
    # 10 optimizer steps, 4 of them on each generation.
    assert at(config, "trainer.total_training_steps") == 3


def test_a_run_by_epochs(planned):
    config = planned("trainer.max_steps=-1", "trainer.num_train_epochs=3").config
    assert at(config, "trainer.total_epochs") == 3
    assert "total_training_steps" not in config["trainer"]


def test_rewards_weights_gates_and_options_go_by_name(planned, own_rewards):
    gated = f"{{name: '{own_rewards}:vowels', weight: 2, gate: {{on: format, at_least: 1}}}}"
    entries = f"[{gated}, {{name: format}}]"
    config = planned(
        f"rewards={entries}", "advantage=dara_symmetric", "scorer.on_error=worst"
    ).config
    kwargs = at(config, "reward.custom_reward_function.reward_kwargs")
    assert kwargs["rewards"] == [f"{own_rewards}:vowels", "format"]
    gate = {"on": "format", "at_least": 1, "otherwise": "zero", "of": "rollout"}
    assert kwargs["gates"] == {"vowels": gate}
    assert kwargs["on_error"] == "worst"
    settings = read_settings(config["algorithm"])
    assert settings.names == ("vowels", "format")
    assert settings.weights == (2.0, 1.0)
    assert settings.rule.name == "dara_symmetric"


def test_the_ranges_that_an_estimator_needs_are_those_that_the_rewards_declare(planned):
    options = planned("advantage=saw").config["algorithm"]["gdpo_options"]
    ends = {key: values for key, values in options.items() if key in ("low", "high")}
    assert ends
    for values in ends.values():
        assert set(values) == {"vowels", "brief", "format"}


def test_workers_find_the_users_modules_in_the_working_directory(planned):
    found = planned().config["ray_kwargs"]["ray_init"]["runtime_env"]["env_vars"]["PYTHONPATH"]
    assert found.split(":")[0] == str(Path.cwd())
    assert "ray_kwargs" not in planned("rewards=[{name: format}]").config


def test_lora(planned):
    model = planned("lora={r: 4, alpha: 8}").config["actor_rollout_ref"]["model"]
    assert (model["lora_rank"], model["lora_alpha"], model["target_modules"]) == (
        4,
        8,
        "all-linear",
    )


def test_groups_are_filtered_by_the_sum_of_the_rewards_and_a_note_says_so(planned):
    launch = planned("trainer.filter_groups=advantage_nonzero")
    assert at(launch.config, "algorithm.filter_groups") == {"enable": True, "metric": "score"}
    (note,) = launch.notes
    assert "trainer.filter_groups" in note
    assert planned().notes == ()
    assert "filter_groups" not in planned().config["algorithm"]


def test_vllm_keeps_room_for_the_longest_rollout_and_not_for_the_models_context(planned):
    config = planned("data.max_prompt_length=92").config
    assert at(config, "data.max_prompt_length") == 92
    assert at(config, "data.filter_overlong_prompts") is True
    assert at(config, f"{ROLLOUT}.max_model_len") == 92 + 8
    assert at(config, f"{ACTOR}.ppo_max_token_len_per_gpu") == 4 * (92 + 8)


def test_a_field_of_verl_in_the_recipe_goes_where_it_says(planned):
    changes = (f"verl={{{ACTOR}.kl_loss_type: mse, trainer.v1.mode: x}}", "trainer.beta=0.1")
    config = planned(*changes).config
    assert at(config, f"{ACTOR}.kl_loss_type") == "mse"
    assert at(config, f"{ACTOR}.use_kl_loss") is True
    assert at(config, "trainer.v1.mode") == "x"


def test_a_nested_field_of_verl_leaves_its_neighbours_as_they_are(planned):
    before = planned().config
    after = planned(f"verl.{ROLLOUT}.gpu_memory_utilization=0.4").config
    at(before, ROLLOUT)["gpu_memory_utilization"] = 0.4
    assert after == before


def test_a_note_names_a_field_of_verl_that_contradicts_the_recipe(planned):
    (note,) = planned("verl={data.train_batch_size: 8}").notes
    assert "data.train_batch_size=8" in note
    assert planned(f"verl={{{ACTOR}.kl_loss_type: mse}}").notes == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("trainer.loss_type=cispo", "--set trainer.loss_type=cispo: .*verl"),
        ("trainer.mask_truncated_completions=true", "mask_truncated_completions = True"),
        ("trainer.importance_sampling_level=sequence", "sampling_level = sequence .*token"),
        ("trainer.use_cpu=true", "use_cpu = True .*False"),
        ("trainer.lr_scheduler_kwargs={}", "lr_scheduler_kwargs"),
        ("batch.rollouts_per_step=2", "2 rollouts per step"),
        ("trainer.num_generations=4", "`batch.samples`"),
        ("data.max_prompt_length=null", "data.max_prompt_length"),
        ("trainer={num_train_epochs: 1.5, lr_scheduler_type: constant}", "train_epochs.* 1.5"),
        ("trainer={max_steps: 5}", "lr_scheduler_type = linear"),
        ("trainer.learning_rate=abc", "trainer.learning_rate .*'abc'"),
        ("trainer.learning_rate=-1", "trainer.learning_rate"),
        ("trainer.num_iterations=0", "trainer.num_iterations .*0"),
        ("trainer.max_completion_length=null", "trainer.max_completion_length .*None"),
        ("trainer.beta=null", "trainer.beta .*None"),
        ("trainer.save_strategy=epoch", "save_strategy = epoch .*steps or no"),
        ("trainer.report_to=all", "'all'"),
        ("lora={r: 4, dropout: 0.1}", r"lora\.dropout"),
        ("verl={trainer.logger.x: 1}", "'logger'"),
        ("verl={trainer: 1}", "'trainer'"),
        (
            "rewards=[format, {name: integer, gate: {on: format, at_least: 0.5, of: group}}]",
            "'integer' .* `of: group`",
        ),
    ],
)
def test_an_error_names_the_field_that_verl_does_not_have(planned, change, message):
    with config_error(message):
        planned(change)


@pytest.mark.parametrize("override", ["strategy", "a=\x1b]0;x"])
def test_overrides_on_the_command_line_are_checked(planned, override):
    with config_error(re.escape(f"{override!r} ")):
        planned(overrides=(override,))


@pytest.mark.parametrize("machines", [(0, 8), (1, 0)])
def test_a_cluster_of_nothing_is_refused(machines):
    with config_error(r"--(nodes|gpus)=0"):
        Machines(*machines)


def test_several_nodes_go_to_the_cluster_that_runs(planned, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "RAY_ADDRESS" not in planned().environment
    assert planned(machines=Machines(2, 1)).environment["RAY_ADDRESS"] == "auto"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert planned(machines=Machines(2, 1)).environment["RAY_ADDRESS"] == "10.0.0.1:6379"


def test_the_configuration_file_reads_back_as_the_planned_configuration(planned, saved):
    launch = planned()
    file = saved("config.yaml", launch.config_text)
    assert yaml.safe_load(launch.config_text) == launch.config
    assert read_yaml(file).data == launch.config


def test_a_dry_run_imports_nothing_heavy_and_writes_nothing(recipe_file, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    command = (
        "import sys\n"
        "from gdpo.cli import main\n"
        "try:\n"
        f"    main(['launch', 'verl', {str(recipe_file)!r}, '--dry-run', '--gpus', '1', '--set', "
        "'trainer.lr_scheduler_type=constant', '--set', 'data.max_prompt_length=9', '--set', "
        "'rewards=[{name: format}]'])\n"
        "except SystemExit as end:\n"
        "    heavy = {'torch', 'trl', 'transformers', 'datasets', 'verl'} & set(sys.modules)\n"
        "    print('heavy:', sorted(heavy), end.code)\n"
    )
    done = python("-c", command, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: [] 0"
    assert "verl.trainer.main_ppo" in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_a_note_names_each_override_of_the_recipe(planned):
    overrides = ("trainer.val_only=True", "algorithm.adv_estimator=grpo", "data.seed=1")
    notes = planned(overrides=overrides).notes
    assert len(notes) == 2
    for note, override in zip(notes, overrides[1:], strict=True):
        assert override in note


def test_text_in_braces_is_escaped_for_omegaconf(planned, tmp_path):
    launch = planned(f"runs_dir={tmp_path}/${{oc.env:HOME}}")
    written = yaml.safe_load(launch.config_text)["data"]["train_files"]
    assert "/\\${oc.env:HOME}/" in written


def test_verl_does_not_filter_groups_by_a_sum_that_ignores_the_weights_of_the_prompt(planned):
    column, filtered = "data.weights_column=w", "trainer.filter_groups=any_reward_varies"
    assert planned(column, "trainer.filter_groups=off").config["algorithm"]["gdpo_weights_column"]
    assert "gdpo_weights_column" not in planned(filtered).config["algorithm"]
    with config_error(r"trainer\.filter_groups.*data\.weights_column"):
        planned(column, filtered)
