"""A game of one to four turns, which a tiny policy plays through TRL's `rollout_func`.

In each turn, the game writes `? a` or `? b`, and the policy writes one or two letters. A turn ends
after two letters, or after a dot. The rollout ends after a dot, or after four turns. A turn earns 1
if its first letter is the one that the game asked for.
"""

import torch
from datasets import Dataset
from tests.integrations.variants import settings
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer

LETTERS = {letter: i for i, letter in enumerate("#ab.?")}
END, DOT = LETTERS["#"], LETTERS["."]
SAMPLES, LONGEST = 4, 4


def tokenizer():
    """Return a tokenizer with one token per letter."""
    letters = Tokenizer(models.WordLevel(LETTERS, unk_token="?"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    letters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=letters, eos_token="#", pad_token="#", padding_side="left"
    )


def policy():
    """Return a tiny policy that has learned nothing."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(LETTERS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=END,
    )
    return LlamaForCausalLM(config)


def by_policy(trainer, generator):
    """Return a function that samples the next letter of texts from the trainer's policy."""

    def sample(texts):
        longest = max(map(len, texts))
        ids = torch.tensor([[END] * (longest - len(text)) + text for text in texts])
        mask = torch.tensor([[0] * (longest - len(t)) + [1] * len(t) for t in texts])
        with torch.no_grad():
            logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, -1]
        return torch.multinomial(logits.softmax(-1), 1)[:, 0].tolist()

    return sample


def at_random(trainer, generator):
    """Return a function that samples the next letter without the policy."""

    def sample(texts):
        return torch.randint(1, len(LETTERS), [len(texts)], generator=generator).tolist()

    return sample


class Game:
    """Plays the game, and stores what was played in the latest batch."""

    def __init__(self, how=by_policy):
        self.how, self.calls, self.played = how, 0, []

    def __call__(self, prompts, trainer):
        self.calls += 1
        seed = 100 * self.calls + trainer.accelerator.process_index
        generator = torch.Generator().manual_seed(seed)
        sample = self.how(trainer, generator)
        asked = trainer.processing_class(list(prompts))["input_ids"]
        plays = [_Play(i, torch.Generator().manual_seed(i)) for i in range(len(prompts))]
        for _ in range(LONGEST):
            for _ in range(2):
                active = [play for play in plays if play.is_writing]
                if active:
                    written = sample([asked[play.row] + play.ids for play in active])
                    for play, letter in zip(active, written, strict=True):
                        play.write(letter)
            for play in plays:
                play.end_turn()
        self.played = plays
        return {
            "prompt_ids": asked,
            "completion_ids": [play.ids for play in plays],
            "env_mask": [play.mask for play in plays],
            "logprobs": None,
            "earned": [play.earned for play in plays],
        }


class _Play:
    """Stores a rollout: its tokens, which of them the policy wrote, and what each turn earned."""

    def __init__(self, row, generator):
        self.row, self.generator = row, generator
        self.ids, self.mask, self.earned = [], [], []
        self.is_over = False
        self._ask()

    @property
    def is_writing(self):
        return not self.is_over and self.mask[-2:] != [1, 1] and self.ids[-1] != DOT

    def write(self, letter):
        if self.mask[-1] == 0:
            self.earned.append(float(letter == self.ids[-1]))
        self.ids.append(letter)
        self.mask.append(1)

    def end_turn(self):
        if not self.is_over:
            self.is_over = self.ids[-1] == DOT or len(self.earned) == LONGEST
            if not self.is_over:
                self._ask()

    def _ask(self):
        asked = 1 + int(torch.randint(2, [1], generator=self.generator))
        self.ids += [LETTERS["?"], asked]
        self.mask += [0, 0]

    def runs(self):
        """Return the tokens of each turn, as lists of their places."""
        runs, before = [], 0
        for place, written in enumerate(self.mask):
            if written:
                if not before:
                    runs.append([])
                runs[-1].append(place)
            before = written
        return runs


def echo(completions, earned, **columns):
    """Return what each turn earned."""
    return earned


def dots(completion_ids, **columns):
    """Return an outcome: 1 if the completion ends with a dot."""
    return [float(ids[-1] == DOT) for ids in completion_ids]


class Kept(GDPOTrainer):
    """Stores the latest batch before TRL shuffles it, and the number of times of each mode."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.kept = {k: v.clone() for k, v in output.items()}
        return output


def trainer_of(folder, *, how=by_policy, rewards=(echo, dots), columns=None, cls=Kept, **changed):
    """Return a trainer on the game."""
    wanted = {
        "per_device_train_batch_size": 4 * SAMPLES,
        "num_generations": SAMPLES,
        "max_completion_length": 32,
        "advantage": "turn_gdpo",
        "reward_weights": None,
        "rollouts_dir": str(folder / "rollouts"),
        "max_steps": 1,
        **changed,
    }
    data = Dataset.from_dict({"prompt": ["a", "b"] * 8, **(columns or {})})
    return cls(
        policy(),
        list(rewards),
        GDPOConfig(**settings(folder, **wanted)),
        train_dataset=data,
        eval_dataset=data,
        processing_class=tokenizer(),
        rollout_func=Game(how),
    )
