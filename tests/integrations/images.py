"""Trains a tiny LLaVA, which is built here, on prompts with images, and stores the gradients."""

import torch
from datasets import Dataset
from PIL import Image
from tests.integrations.variants import settings
from transformers import (
    AutoTokenizer,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    TrainerCallback,
)
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

SAMPLES = 4
SIDE, PATCH = 4, 2
COLOURS = ["red", "green", "blue", "white"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def processor_of(policy):
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    size = {"height": SIDE, "width": SIDE}
    return LlavaProcessor(
        LlavaImageProcessorPil(size=size, crop_size=size),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # the token of the class, which "default" removes
        chat_template=TEMPLATE,
    )


def llava(tokenizer):
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            **shape, num_attention_heads=2, image_size=SIDE, patch_size=PATCH
        ),
        text_config=LlamaConfig(
            **shape,
            num_attention_heads=2,
            vocab_size=len(tokenizer),
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def data():
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": f"colour {i}?"}] for i in range(4)],
            "image": [Image.new("RGB", (SIDE, SIDE), colour) for colour in COLOURS],
        }
    )


def upper(completions, **columns):
    return [sum(c.isupper() for c in text_of(each)) / 8 for each in completions]


def even(completion_ids, **columns):
    return [float(sum(ids) % 2) for ids in completion_ids]


def text_of(completion):
    return completion[0]["content"]


class Gradients(TrainerCallback):
    """Stores the gradient of every optimizer step, and that of the image part by itself."""

    def __init__(self):
        self.all, self.of_images = [], []

    def on_pre_optimizer_step(self, *args, model, **kwargs):
        named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
        self.all.append(torch.cat([grad.flatten() for _, grad in named]))
        seen = [grad.flatten() for name, grad in named if "vision" in name or "projector" in name]
        self.of_images.append(torch.cat(seen))


def trained(trainer_class, config_class, policy, folder, *, before=None, **changed):
    """Train three steps. `before` is called with the trainer first."""
    processor = processor_of(policy)
    gradients = Gradients()
    wanted = {
        "per_device_train_batch_size": SAMPLES,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.05,
        "optim": "sgd",
        "reward_weights": None,
        **changed,
    }
    trainer = trainer_class(
        llava(processor.tokenizer),
        [upper, even],
        config_class(**settings(folder, **wanted)),
        train_dataset=data(),
        processing_class=processor,
        callbacks=[gradients],
    )
    if before is not None:
        before(trainer)
    trainer.train()
    return trainer, gradients
