r"""Computes many weighted sums of the gradients of rollouts from one backward pass.

Let $s_i = \nabla \log \pi(o_i)$ be the gradient of the log-probability of rollout $i$, summed over
its scored tokens. A `RolloutPass` computes $\sum_i c_i s_i$ for any coefficients $c$, and the
products $\langle s_i, D \rangle$ with any directions $D$, without the gradient of any single
rollout.

The pass keeps the input $x$ of every trained module, and the gradient $e$ of
$\sum_i \log \pi(o_i)$ with respect to the module's output. Each row of the batch depends only on
its own activations. The part of $s_i$ that belongs to the module's parameters is therefore the
gradient of

$$ \ell_i = \sum_{\text{tokens of } i} \langle e, \text{module}(x) \rangle, $$

for which the module is run again, alone, on the kept inputs. This holds for every kind of module:
nothing here depends on the name or formula of a layer.
"""

import inspect
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass(eq=False)
class RolloutPass:
    """Runs one forward and one backward pass of a policy over padded rows.

    The model is in evaluation mode meanwhile. Afterwards it is as before: training flags, hooks,
    `.grad` and `requires_grad`. Only parameters with `requires_grad` count. A parameter on which no
    log-probability depends is left out, as an optimizer leaves it out.

    A parameter is computed by autograd if it is used outside the calls of its own module, or if the
    result of a call is not a tensor `[rollout, token, ...]` or `[rollout, head, token, ...]`.
    Examples are a position embedding that all rows share, and experts of flattened tokens. These
    parameters are found by counting: those whose uses in autograd's graph are as many as the calls
    of their modules need no autograd.

    The object is valid until the weights of the model change. Memory while it exists: inputs and
    output gradients of all trained modules, in the precision of the model. During the pass also
    autograd's own activations, and the logits of the scored tokens in float32.

    Attributes:
        model: A causal language model, whose result has `logits`.
        input_ids: Tokens [rollout, token], padded on either side.
        attention_mask: 1 at tokens and 0 at padding. If the model accepts positions, each row
            counts them from its first token, as in generation. TRL's training counts padding on the
            left, which makes a difference only for absolute positions.
        scored: True at each token whose log-probability counts. The first column never counts,
            because nothing comes before it. Logits are computed from the first column in which a
            token of any row is scored.
        temperature: Divides the logits.
        rollouts: Number of rows.
        by_autograd: The parameters that are computed by autograd, by name. They are summed in their
            own precision. Each method says what they cost.
    """

    model: torch.nn.Module
    input_ids: Tensor
    attention_mask: Tensor
    scored: Tensor
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Run the two passes."""
        self.rollouts = len(self.input_ids)
        self._calls, edges = defaultdict(list), []

        def keep(module: Any, arguments: Any, options: Any, out: Any) -> None:
            trained = [own for own in module.parameters(recurse=False) if own.requires_grad]
            is_tensor = torch.is_tensor(out) and out.ndim > 2 and out.requires_grad
            if trained and is_tensor and len(out) == self.rollouts and not options:
                edges.append(
                    torch.autograd.graph.get_gradient_edge(out)
                )  # not `out`, which may be overwritten later
                for own in trained:
                    add = self._calls[own].append
                    out.register_hook(lambda slope, add=add: add((module, arguments, slope)))

        watched = torch.nn.modules.module.register_module_forward_hook(keep, with_kwargs=True)
        with torch.enable_grad(), watched:
            total = self._log_probabilities().sum()
        grad(total, [total, *edges], allow_unused=True)
        uses = _uses_below(total.grad_fn)
        self._used = {name: own for name, own in self.model.named_parameters() if uses[own]}
        self.by_autograd = {
            name: own for name, own in self._used.items() if uses[own] != len(self._calls[own])
        }

    @torch.enable_grad()
    def weighted(self, coefficients: Any) -> Generator[tuple[str, Tensor]]:
        """Yield each parameter's name and its part of the weighted sums of gradients.

        A tied parameter comes once, under its first name, with the contributions of all its uses.
        Sums are in float32, or float64 for a model in float64. All parameters in `by_autograd`
        together cost one more forward pass, and a backward pass for each set of coefficients.

        Memory: the sums of one parameter, or those of all that are computed by autograd.

        Args:
            coefficients: Numbers [c, rollout].

        Yields:
            Name, and the sum over rollouts of coefficient times $s_i$, of shape [c, *parameter].
        """
        for scores, names, leaves in self._parts():
            each_set = torch.as_tensor(coefficients).to(scores)
            sums = [grad(scores, leaves, each, retain_graph=True) for each in each_set]
            for name, *of_each in zip(names, *sums, strict=True):
                yield name, _wide(torch.stack(of_each))

    @torch.enable_grad()
    def along(self, directions: Mapping[str, Tensor]) -> Tensor:
        r"""Return the product of each rollout's gradient with each direction.

        The gradient of $\sum_i u_i \ell_i$ with respect to the parameters is linear in $u$. The
        gradient of its product with a direction $D$ with respect to $u_i$ is
        $\langle s_i, D \rangle$.

        The parameters in `by_autograd` cost a forward pass, a backward pass, and one more for each
        direction. Attention then uses its plain formula, because the fast ones have no second
        derivative: it keeps [token, token] numbers per head and row.

        Args:
            directions: For each parameter that `weighted` yields, a tensor [d, *parameter].

        Returns:
            Products [rollout, d].
        """
        products: Any = 0
        for scores, names, leaves in self._parts():
            each = torch.ones_like(scores, requires_grad=True)
            slopes = grad(scores, leaves, each, create_graph=True)
            ways = zip(*(directions[name].to(slopes[0]) for name in names), strict=True)
            found = [grad(slopes, each, way, retain_graph=True)[0] for way in ways]
            products += torch.stack(found, dim=1)
        return products

    def _parts(self) -> Generator[Any]:
        """Yield scores[rollout] with gradients $s_i$, and the names and values of parameters."""
        for name, parameter in self._used.items():
            if name in self.by_autograd:
                continue
            leaf = _wide(parameter).detach().requires_grad_()
            scores: Any = 0
            for module, arguments, slope in self._calls[parameter]:
                tensors = (*module.named_parameters(), *module.named_buffers())
                values = {at: leaf if own is parameter else _wide(own) for at, own in tensors}
                with _evaluating(module):
                    out = torch.func.functional_call(module, values, tuple(map(_wide, arguments)))
                scores += (out * slope).flatten(1).sum(1)
            yield scores, [name], [leaf]
        if self.by_autograd:
            with sdpa_kernel(SDPBackend.MATH):
                scores = self._log_probabilities()
            yield scores, *zip(*self.by_autograd.items(), strict=True)

    def _log_probabilities(self) -> Tensor:
        """Return the log-probability of each rollout."""
        first = int(self.scored[:, 1:].any(0).int().argmax())
        keep = self.input_ids.shape[1] - first
        options = {
            "position_ids": (self.attention_mask.cumsum(1) - 1).clamp(min=0),
            "logits_to_keep": keep,
        }
        policy = getattr(self.model, "get_base_model", lambda: self.model)()
        accepted = options.keys() & inspect.signature(policy.forward).parameters
        with _evaluating(self.model):
            logits = self.model(
                input_ids=self.input_ids,
                attention_mask=self.attention_mask,
                **{name: options[name] for name in accepted},
            ).logits[:, -keep:-1]
        log_p = (_wide(logits) / self.temperature).log_softmax(-1)
        found = log_p.gather(-1, self.input_ids[:, 1 - keep :, None])[..., 0]
        return torch.where(self.scored[:, 1 - keep :], found, 0).sum(1)


def _evaluating(model: torch.nn.Module) -> ExitStack:
    """Set a model to evaluation mode until the result is left."""
    after = ExitStack()
    for module in model.modules():
        after.callback(setattr, module, "training", module.training)
    model.eval()
    return after


def _uses_below(root: Any) -> Counter[Any]:
    """Count the edges that lead to each parameter in the graph below a node."""
    seen, uses, waiting = {root}, Counter(), [root]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            uses[getattr(node, "variable", None)] += 1
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return uses


def _wide(value: Any) -> Any:
    """Return a tensor of real numbers in at least float32, and anything else as it is."""
    if torch.is_tensor(value) and value.is_floating_point():
        return value.to(torch.promote_types(value.dtype, torch.float32))
    return value
