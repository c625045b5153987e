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
from collections import defaultdict
from collections.abc import Generator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only


@dataclass
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
            if (
                torch.is_tensor(out)
                and out.requires_grad
                and out.ndim > 2
                and len(out) == self.rollouts
                and not options
            ):
                # The graph's hooks refer to the inputs. If these referred to the graph, too, they
                # would never be freed for some models: Python's collector does not see the graph.
                inputs = tree_map_only(Tensor, Tensor.detach, arguments)
                for own in module.parameters(recurse=False):
                    if own.requires_grad:
                        # The edge stays where it is, also if the output is overwritten later.
                        edges.append(torch.autograd.graph.get_gradient_edge(out))
                        add = self._calls[own].append
                        out.register_hook(lambda slope, add=add: add((module, inputs, slope)))

        watched = torch.nn.modules.module.register_module_forward_hook(keep, with_kwargs=True)
        with torch.enable_grad(), watched:
            total = self._log_probabilities().sum()
        grad(total, [total, *edges], allow_unused=True)
        self._uses = _uses_below(total.grad_fn)
        self.by_autograd = {
            name: own
            for name, own in self.model.named_parameters()
            if self._uses[own] not in (0, len(self._calls[own]))
        }

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
        for scores, leaves in self._parts():
            sums = [
                grad(scores, list(leaves.values()), each, retain_graph=True)
                for each in torch.as_tensor(coefficients).to(scores)
            ]
            for name, *of_each in zip(leaves, *sums, strict=True):
                yield name, _wide(torch.stack(of_each))

    def along(self, directions: Any) -> Tensor:
        r"""Return the product of each rollout's gradient with each direction.

        The gradient of $\sum_i u_i \ell_i$ with respect to the parameters is linear in $u$. The
        gradient of its product with a direction $D$ with respect to $u_i$ is
        $\langle s_i, D \rangle$.

        The parameters in `by_autograd` cost a forward pass, a backward pass, and one more for each
        direction. Attention then uses its plain formula, because the fast ones have no second
        derivative: it keeps [token, token] numbers per head and row.

        Args:
            directions: Returns a tensor [d, *parameter] for `directions[name]`, for each name that
                `weighted` yields.

        Returns:
            Products [rollout, d].
        """
        products: Any = 0
        for scores, leaves in self._parts():
            each = torch.ones_like(scores, requires_grad=True)
            slopes = grad(scores, list(leaves.values()), each, create_graph=True)
            ways = zip(*(directions[name] for name in leaves), strict=True)
            found = [grad(slopes, each, way, retain_graph=True)[0] for way in ways]
            products += torch.stack(found, 1)
        return products

    @torch.enable_grad()
    def _parts(self) -> Any:
        """Yield scores[rollout] with gradients $s_i$, and the parameters by name."""
        for name, parameter in self.model.named_parameters():
            calls = self._calls[parameter]
            if 0 < self._uses[parameter] == len(calls):
                leaf = _wide(parameter).detach().requires_grad_()
                scores: Any = 0
                for module, arguments, slope in calls:
                    out = torch.func.functional_call(
                        deepcopy(module).eval().to(leaf.dtype),
                        {at: leaf for at, own in module.named_parameters() if own is parameter},
                        tuple(map(_wide, arguments)),
                    )
                    scores += (out * slope).flatten(1).sum(1)
                yield scores, {name: leaf}
        if self.by_autograd:
            with sdpa_kernel(SDPBackend.MATH):
                scores = self._log_probabilities()
            yield scores, self.by_autograd

    def _log_probabilities(self) -> Tensor:
        """Return the log-probability of each rollout."""
        columns = self.scored[:, 1:].any(0)
        keep = len(columns) + 1 - int(columns.int().argmax())
        options = {
            "position_ids": self.attention_mask.cumsum(1) - self.attention_mask,
            "logits_to_keep": keep,
        }
        policy = getattr(self.model, "get_base_model", lambda: self.model)()
        accepted = options.keys() & inspect.signature(policy.forward).parameters
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            logits = self.model(
                input_ids=self.input_ids,
                attention_mask=self.attention_mask,
                **{name: options[name] for name in accepted},
            ).logits[:, -keep:-1]
        finally:
            for module in training:
                module.training = True
        mask = self.scored[:, 1 - keep :]
        losses = torch.nn.functional.cross_entropy(
            _wide(logits[mask]) / self.temperature,
            self.input_ids[:, 1 - keep :][mask],
            reduction="none",
        )
        return -losses.new_zeros(mask.shape).masked_scatter(mask, losses).sum(1)


def _uses_below(root: Any) -> Any:
    """Count the edges that lead to each parameter in the graph below a node."""
    seen, uses, waiting = set(), defaultdict(int), [root]
    while waiting:
        node = waiting.pop()
        uses[getattr(node, "variable", None)] += 1
        if node not in seen:
            seen.add(node)
            waiting += [below for below, _ in node.next_functions if below]
    return uses


def _wide(value: Any) -> Any:
    """Return a tensor of real numbers in at least float32, and anything else as it is."""
    if torch.is_tensor(value) and value.is_floating_point():
        return value.to(torch.promote_types(value.dtype, torch.float32))
    return value
