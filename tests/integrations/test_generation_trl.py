"""Tests fast generation in TRL: same completions, training and logs, or TRL generates."""

import warnings

import pytest
import torch
from datasets import Dataset
from tests.integrations import variants
from tests.integrations.generating import GPT2, SHAPE, TOKENS, model_of, parting, ragged
from tests.integrations.needs import since
from transformers import (
    AutoModelForCausalLM,
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer
from gdpo.integrations.trl.generation import complete, fast_rollouts, model_not_covered
from gdpo.rollouts import read_rollouts


def trainer_of(model, tiny_policy, folder, *, ours=False, **changed):
    """Return TRL's trainer, or ours without its rollout_func."""
    classes = (GDPOTrainer, GDPOConfig) if ours else (GRPOTrainer, GRPOConfig)
    model.train()  # as Trainer.train leaves it while TRL samples
    how = {
        "train_dataset": Dataset.from_dict({"prompt": ["count", "say hi", "what"] * 8}),
        "eval_dataset": Dataset.from_dict({"prompt": ["go", "name a bird"]}),
    }
    trainer = variants.trainer_of(*classes, tiny_policy, folder, model=model, how=how, **changed)
    trainer.rollout_func = None
    return trainer


@pytest.fixture
def trainer(tiny_policy, tmp_path):
    return trainer_of(policy(tiny_policy), tiny_policy, tmp_path)


def policy(tiny_policy, **changed):
    return AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float64, **changed)


def assert_completes_as_trl(batch, trainer):
    """Return the completions, which are TRL's."""
    expected, _ = trainer._generate_single_turn(batch, None, {}, trainer.num_generations)
    assert complete(batch, trainer) == expected
    return expected


@since("1.14", "ends a completion at every end token of the model")
def test_completions_are_those_of_trl_in_the_order_of_the_prompts(place):
    greedy = {"generation_kwargs": {"do_sample": False}, "max_completion_length": 20}
    trainer = trainer_of(model_of("qwen2"), *place, **greedy)
    prompts = [[5, 6], [0, 0, 9], [5, 6, 7], [0, 9], [9]]  # padding is 0, and so is an end
    batch = [prompts[i] for i in (3, 0, 1, 1, 4, 0, 2, 3, 4, 4)]
    expected = assert_completes_as_trl(batch, trainer)
    assert len({len(ids) for ids in expected}) > 1


@pytest.mark.parametrize("own", [{"eos_token_id": [5]}, {"eos_token_id": [5], "pad_token_id": 3}])
def test_completions_are_truncated_where_trl_truncates_them(place, own):
    """An end token that TRL does not know leaves padding in the completion, as with TRL."""
    kwargs = {"generation_kwargs": {"do_sample": False, **own}, "max_completion_length": 20}
    trainer = trainer_of(parting(model_of("llama")), *place, **kwargs)
    batch = ragged(12)
    assert_completes_as_trl(batch, trainer)


@pytest.mark.parametrize("multiple", [None, 8])
def test_prompts_are_read_once_and_padded_as_trl_pads_them(place, multiple):
    greedy = {"generation_kwargs": {"do_sample": False}, "pad_to_multiple_of": multiple}
    trainer = trainer_of(model_of("llama"), *place, **greedy)
    passed = []
    hook = trainer.model.model.embed_tokens.register_forward_pre_hook
    hook(lambda _, given: passed.append(tuple(given[0].shape)))
    complete([[5, 6, 7], [5], [5, 6, 7]], trainer)
    assert passed[0] == (2, multiple or 3)  # two distinct prompts


CONVERSATION = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]


@pytest.mark.parametrize("prompt", ["hi", CONVERSATION])
def test_prompts_are_tokenized_by_trl(trainer, prompt):
    """Plain texts are used unchanged, conversations with the trainer's template and arguments."""
    trainer.chat_template = "{{ tone }}{{ messages[1]['content'] }}"
    trainer.chat_template_kwargs = {"tone": "softly "}
    found = fast_rollouts(trainer)([prompt] * 4, trainer)
    assert set(found) == {"prompt_ids", "completion_ids", "logprobs"}
    text = "hi" if prompt == "hi" else "softly hi"
    assert found["prompt_ids"] == [trainer.processing_class(text)["input_ids"]] * 4
    assert len(found["completion_ids"]) == 4
    assert all(1 <= len(ids) <= 12 for ids in found["completion_ids"])
    assert found["logprobs"] is None


def trained(tiny_policy, folder, *, fast, **changed):
    """Train with greedy rows that differ, so that both ways must give the same training."""
    model = parting(policy(tiny_policy))
    model.generation_config.eos_token_id = list(range(0, 260, 7))
    changed = {"generation_kwargs": {"do_sample": False}, "learning_rate": 1e-3, **changed}
    rollouts_dir = str(folder / f"rollouts-{fast}")
    trainer = trainer_of(
        model, tiny_policy, folder, ours=True, rollouts_dir=rollouts_dir, **changed
    )
    if fast:
        trainer.rollout_func = fast_rollouts(trainer)
        assert trainer.rollout_func is not None
    trainer.train()
    return trainer


@since("1.14", "ends a completion at every end token of the model")
@pytest.mark.parametrize(
    "changed",
    [
        {"eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 2},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "num_iterations": 2},
        {"gradient_checkpointing": True, "beta": 0.1, "log_completions": True},
    ],
    ids=["eval", "accumulation", "checkpointing"],
)
def test_training_logs_and_records_are_those_with_trls_generation(place, tmp_path, changed):
    fast = trained(*place, fast=True, **changed)
    plain = trained(*place, fast=False, **changed)
    timed = ("runtime", "per_second", "step_time")
    for ours, theirs in zip(fast.state.log_history, plain.state.log_history, strict=True):
        assert set(ours) == set(theirs)
        for key in [key for key in ours if not key.endswith(timed)]:
            assert ours[key] == pytest.approx(theirs[key], rel=1e-6, nan_ok=True), key
    lengths_logged = [entry.get("completions/mean_length", 12) for entry in fast.state.log_history]
    assert min(lengths_logged) < 12
    for column in ("prompt", "completion"):
        assert list(fast._logs[column]) == list(plain._logs[column])
    ours, theirs = (recorded(tmp_path / f"rollouts-{way}") for way in (True, False))
    assert ours
    assert ours == theirs


def recorded(folder):
    return {
        file.relative_to(folder): [
            (r.prompt, r.completion, r.num_tokens, r.finish_reason) for r in read_rollouts(file)
        ]
        for file in folder.rglob("*.parquet")
    }


def test_sampled_training_takes_steps_and_evaluates(tiny_policy, tmp_path):
    """No warning about an experimental feature is given."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = policy(tiny_policy)
        trainer = trainer_of(model, tiny_policy, tmp_path, ours=True, num_generations_eval=2)
        trainer.rollout_func = fast_rollouts(trainer)
        trainer.train()
        metrics = trainer.evaluate()
    assert not [w for w in caught if "rollout_func" in str(w.message)]
    assert len([entry for entry in trainer.state.log_history if "loss" in entry]) == 3
    assert 1 <= metrics["eval_completions/mean_length"] <= 12


@since("1.16", "keeps the arguments of gradient checkpointing")
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(tiny_policy, tmp_path, training):
    """The mode is TRL's, and gradient checkpointing is off only during generation."""
    model = policy(tiny_policy)
    kwargs = {"use_reentrant": True}
    trainer = trainer_of(model, tiny_policy, tmp_path, gradient_checkpointing_kwargs=kwargs)
    model.gradient_checkpointing_enable(kwargs)
    model.train(training)
    seen = set()
    model.model.embed_tokens.register_forward_pre_hook(
        lambda *_: seen.add((model.training, model.is_gradient_checkpointing))
    )
    complete([[5, 6], [7]], trainer)
    assert seen == {(training, False)}
    assert model.training == training
    assert model.is_gradient_checkpointing
    assert model.model._gradient_checkpointing_func.keywords == kwargs
    assert model.generation_config.do_sample is not True


def warning_of(trainer, caplog, wanted=None):
    assert fast_rollouts(trainer, wanted=wanted) is None
    (record,) = [r for r in caplog.records if r.name.startswith("gdpo.")]
    return record.getMessage()


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"num_beams": 2}, "the generation setting num_beams=2"),
        ({"penalty_alpha": 0.6, "do_sample": False}, "the generation setting penalty_alpha=0.6"),
        ({"prompt_lookup_num_tokens": 3}, "the generation setting prompt_lookup_num_tokens=3"),
        ({"use_mtp": True}, "the generation setting use_mtp=True"),
        ({"max_time": 3.0}, "the generation setting max_time=3.0"),
        ({"stop_strings": ["x"]}, "the generation setting stop_strings=['x']"),
        ({"encoder_repetition_penalty": 1.5}, "setting encoder_repetition_penalty=1.5"),
        ({"guidance_scale": 2.0}, "the generation setting guidance_scale=2.0"),
        ({"use_cache": False}, "generation without a cache (use_cache=False)"),
        ({"cache_implementation": "static"}, "setting cache_implementation='static'"),
    ],
)
def test_a_setting_that_is_not_covered_is_left_to_trl(
    tiny_policy, tmp_path, caplog, setting, named
):
    trainer = trainer_of(policy(tiny_policy), tiny_policy, tmp_path, generation_kwargs=setting)
    message = warning_of(trainer, caplog)
    assert message.startswith("fast_generation")
    assert message.endswith(named)


def test_a_setting_of_the_model_is_a_default_as_in_generate(tiny_policy, tmp_path, caplog):
    model = policy(tiny_policy)
    model.generation_config.num_beams = 2
    trainer = trainer_of(model, tiny_policy, tmp_path)
    assert warning_of(trainer, caplog).endswith("the generation setting num_beams=2")


NEUTRAL = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "use_cache": True,
    "cache_implementation": None,
    "return_dict_in_generate": False,
}


def test_settings_that_change_nothing_are_no_obstacle(tiny_policy, tmp_path):
    model = policy(tiny_policy)
    model.generation_config.num_beams = 2  # the trainer's goes before
    trainer = trainer_of(model, tiny_policy, tmp_path, generation_kwargs=NEUTRAL)
    assert fast_rollouts(trainer) is not None


def dropout_gpt2(_):
    return GPT2LMHeadModel(GPT2Config(**{**GPT2, "attn_pdrop": 0.1}))


def dropout_llama(_):
    return LlamaForCausalLM(LlamaConfig(**SHAPE, attention_dropout=0.2))


def mamba(_):
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    return MambaForCausalLM(MambaConfig(vocab_size=TOKENS, pad_token_id=0, eos_token_id=0, **shape))


def more_than_ids(trainer):
    trainer.processing_class.model_input_names = ["input_ids", "token_type_ids"]


def having(**changed):
    return lambda trainer: vars(trainer).update(changed)


@pytest.mark.parametrize(
    ("make", "options", "change", "named"),
    [
        (dropout_gpt2, {}, having(), "transformer.h.0.attn.attn_dropout.p is 0.1"),
        (dropout_llama, {}, having(), "config.attention_dropout is 0.2"),
        (mamba, {}, having(), "LinearAttentionLayer"),
        (policy, {"neftune_noise_alpha": 5.0}, having(), "neftune_noise_alpha is set"),
        (policy, {}, having(is_deepspeed_enabled=True), "DeepSpeed and FSDP"),
        (policy, {}, having(is_fsdp_enabled=True), "DeepSpeed and FSDP"),
        (policy, {}, having(_is_vlm=True), "images"),
        (policy, {}, more_than_ids, "token_type_ids"),
    ],
)
def test_a_trainer_that_is_not_covered_is_left_to_trl(
    tiny_policy, tmp_path, caplog, make, options, change, named
):
    trainer = trainer_of(make(tiny_policy), tiny_policy, tmp_path, **options)
    change(trainer)
    assert named in warning_of(trainer, caplog)


def t5():
    shape = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=TOKENS, **shape))


def llava():
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    vision = CLIPVisionConfig(**shape, num_attention_heads=2, image_size=4, patch_size=2)
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=LlamaConfig(**SHAPE))
    )


def with_own_generate():
    model = model_of("llama")
    model.__class__ = type("Own", (LlamaForCausalLM,), {"generate": lambda self: None})
    return model


def on_two_devices():
    model = model_of("llama")
    model.lm_head.to("meta")
    return model


def from_elsewhere():
    model = model_of("llama")
    model.__class__ = type(
        "Elsewhere", (LlamaForCausalLM,), {"_auto_class": "AutoModelForCausalLM"}
    )
    return model


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (t5, "T5ForConditionalGeneration is an encoder-decoder"),
        (llava, "LlavaForConditionalGeneration is multimodal"),
        (with_own_generate, "Own has"),
        (from_elsewhere, "Elsewhere has"),
        (on_two_devices, "devices"),
    ],
)
def test_a_model_that_reads_or_generates_differently_is_not_covered(make, named):
    reason = model_not_covered(make())
    assert reason is not None
    assert named in reason


def own_generation(trainer):
    trainer.__class__ = type("Own", (GRPOTrainer,), {"_generate_single_turn": lambda *_: None})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (having(rollout_func=print), "the trainer has a rollout_func"),
        (having(use_vllm=True), "use_vllm is set"),
        (having(use_transformers_continuous_batching=True), "continuous_batching is set"),
        (having(tools=[print]), "completions call tools"),
        (having(environment_factories={}), "completions call tools"),
        (own_generation, "Own overrides _generate_single_turn"),
    ],
)
def test_another_generator_stays_and_is_named_only_if_this_one_was_asked_for(
    trainer, caplog, change, named
):
    change(trainer)
    assert fast_rollouts(trainer) is None
    assert not caplog.records
    assert named in warning_of(trainer, caplog, wanted=True)


def test_it_can_be_switched_off(trainer, caplog):
    assert fast_rollouts(trainer, wanted=False) is None
    assert fast_rollouts(trainer, wanted=True) is fast_rollouts(trainer) is not None
    assert not caplog.records


def test_dropout_that_trl_switches_off_is_no_obstacle(place):
    trainer = trainer_of(dropout_gpt2(None), *place, disable_dropout=True)
    assert fast_rollouts(trainer) is not None
