"""Trains a tiny policy in an environment of two turns: a tool call, its result, and a conclusion.

Nothing is prepared: the policy generates both turns, TRL parses and executes the call, and the
environment rewards it. The policy first learns the two turns from texts with random guesses.
"""

import functools
import itertools

import pytest
import torch
from datasets import Dataset
from tests.integrations.variants import logged, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.chat_template_utils import get_training_chat_template, qwen3_chat_template

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer

pytestmark = pytest.mark.slow

SAMPLES = 8
PROMPT = [{"role": "user", "content": "Guess."}]
NUMBERS = (1, 2, 3, 4)
END, START = "<|im_end|>", "<|im_start|>"


class Box:
    """Hides a number. One guess is allowed."""

    reward_range = (0, 1)

    def reset(self, hidden, **columns):
        self.hidden, self.guessed = hidden, None

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: The guess.

        Returns:
            Whether the guess is right.
        """
        self.guessed = number
        return "right" if number == self.hidden else "wrong"

    def get_reward(self) -> float:
        return float(self.guessed == self.hidden)


def honest(completions, **columns):
    """Return 1 if the last message is what the tool returned."""
    return [float(len(c) == 3 and c[1]["content"] == c[2].get("content")) for c in completions]


def rendered(tokenizer, number, conclusion):
    """Return a conversation as text in four parts: prompt, tool call, result, conclusion."""
    call = {"name": "guess", "arguments": {"number": number}}
    turns = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "name": "guess", "content": "right" if number == 3 else "wrong"},
    ]
    render = functools.partial(
        tokenizer.apply_chat_template,
        tools=[Box().guess],
        chat_template=get_training_chat_template(tokenizer),
        add_generation_prompt=True,
        tokenize=False,
    )
    before, whole = render(PROMPT), render(PROMPT + turns)
    written = f'<tool_call>\n{{"name": "guess", "arguments": {{"number": {number}}}}}\n</tool_call>'
    result = whole[whole.rindex("</tool_call>" + END) + len("</tool_call>" + END) :]
    return before, written + END, result, conclusion + END


def conversations(tokenizer):
    return [
        rendered(tokenizer, number, conclusion)
        for number in NUMBERS
        for conclusion in ("right", "wrong")
    ]


def tokenizer_of(vocabulary):
    return PreTrainedTokenizerFast(
        tokenizer_object=vocabulary,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[START],
        chat_template=qwen3_chat_template,
    )


@pytest.fixture(scope="module")
def tokenizer():
    """Return a tokenizer that writes each constant part of the conversations in few tokens."""
    vocabulary = Tokenizer(models.BPE())
    vocabulary.decoder = decoders.ByteLevel()
    vocabulary.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        min_frequency=1,
        special_tokens=[END, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    vocabulary.train_from_iterator([], trainer)
    texts = [part for parts in conversations(tokenizer_of(vocabulary)) for part in parts]
    pieces = [piece for text in texts for part in text.split(END) for piece in part.split(START)]
    vocabulary.train_from_iterator(pieces, trainer)
    return tokenizer_of(vocabulary)


@pytest.fixture(scope="module")
def warm_start(tokenizer, tmp_path_factory):
    """Return a folder with a policy that guesses and concludes at random, in the right form."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=256,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    parts = [tokenizer(list(texts))["input_ids"] for texts in conversations(tokenizer)]
    ids = torch.tensor([list(itertools.chain(*each)) for each in parts])  # equal lengths
    labels = ids.clone()
    labels[:, : len(parts[0][0])] = -100  # the prompt
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(120):
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("warm_start")
    model.save_pretrained(folder)
    return folder


class Turns(GDPOTrainer):
    """Stores the latest batch's turns (runs of tokens that the model wrote) and tool results."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        written = output["completion_mask"] * output["tool_mask"]
        begins = written.clone()
        begins[:, 1:] *= 1 - written[:, :-1]
        self.turns = begins.sum(1).tolist()
        self.results = [
            self.processing_class.decode(ids[(mask == 1) & (own == 0)])
            for ids, mask, own in zip(
                output["completion_ids"],
                output["completion_mask"],
                output["tool_mask"],
                strict=True,
            )
        ]
        return output


def trained(warm_start, tokenizer, folder, *, rewards=(honest,), environment=Box, **changed):
    torch.manual_seed(0)
    config = GDPOConfig(
        **settings(
            folder,
            **{
                "per_device_train_batch_size": 4 * SAMPLES,
                "num_generations": SAMPLES,
                "max_completion_length": 60,
                "max_tool_calling_iterations": 1,
                "max_steps": 20,
                "learning_rate": 1e-3,
                "lr_scheduler_type": "constant",
                "reward_weights": {"Box": 1.0, "honest": 0.5},
                **changed,
            },
        )
    )
    trainer = Turns(
        LlamaForCausalLM.from_pretrained(warm_start),
        list(rewards),
        config,
        train_dataset=Dataset.from_dict({"prompt": [PROMPT] * 16, "hidden": [3] * 16}),
        processing_class=tokenizer,
        environment_factory=environment,
    )
    trainer.train()
    return trainer


def test_groups_of_two_turns_are_in_the_batch_filtered_and_replaced(
    warm_start, tokenizer, tmp_path
):
    """In groups of two, both guesses are often equally good."""
    changed = {"num_generations": 2, "max_steps": 2, "filter_groups": "any_reward_varies"}
    trainer = trained(warm_start, tokenizer, tmp_path, **changed)
    assert max(logged(trainer, "filter/rounds")) > 0
    two = [text for text, turns in zip(trainer.results, trainer.turns, strict=True) if turns == 2]
    assert len(two) > len(trainer.turns) / 2
    assert all("\nright\n" in text or "\nwrong\n" in text for text in two)
    assert all(text.count("<tool_response>") == 1 and "guess" not in text for text in two)
