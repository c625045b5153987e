"""Teaches a policy to earn some rewards of a task, some of the time. A random one earns none."""

from itertools import cycle, islice

BATCH, STEPS, RATE = 8, 200, 3e-3


def teach(policy, folder, task, rows):
    """Write a policy to a folder that answers the task's problems in one of several ways.

    Args:
        policy: Folder of the policy before.
        folder: Folder for the policy and its tokenizer.
        task: A task of gdpo.
        rows: Rows of its data.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    examples = [encoded(tokenizer, *each) for each in answered(task, rows)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    torch.manual_seed(0)
    order = cycle(torch.randperm(len(examples)).tolist())
    for _ in range(STEPS):
        loss = model(**padded([examples[i] for i in islice(order, BATCH)])).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def answered(task, rows):
    """Yield prompts with completions: correct, wrong, with more thinking, without any."""
    problems = [task.read_row(row) for row in rows]
    completions = [task.gold_completion(problem.reference) for problem in problems]
    for i, (problem, right) in enumerate(zip(problems, completions, strict=True)):
        wrong = completions[i - 1]
        longer = right.replace("</think>", ", then checked</think>")
        for completion in (right, wrong, longer, without_thinking(right), without_thinking(wrong)):
            yield problem.prompt, completion


def without_thinking(completion):
    return completion.partition("</think>")[2].strip()


def encoded(tokenizer, prompt, completion):
    """Return the tokens of a prompt and of its completion."""
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return tokenizer(text)["input_ids"], tokenizer(completion + tokenizer.eos_token)["input_ids"]


def padded(examples):
    """Return a batch of which only the completions are learned. The policy pads with token 0."""
    import torch

    longest = max(len(prompt) + len(completion) for prompt, completion in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, (prompt, completion) in enumerate(examples):
        begin, end = len(prompt), len(prompt) + len(completion)
        ids[row, :end] = torch.tensor(prompt + completion)
        mask[row, :end] = 1
        labels[row, begin:end] = torch.tensor(completion)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
