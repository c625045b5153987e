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
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.autograd import grad
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel


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
        rollouts: Number of rows.
        by_autograd: The parameters that are computed by autograd, by name. They are summed in their
            own precision. Each method says what they cost.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        scored: torch.Tensor,
        *,
        temperature: float = 1.0,
    ) -> None:
        """Run the two passes.

        Args:
            model: A causal language model, whose result has `logits`.
            input_ids: Tokens [rollout, token], padded on either side.
            attention_mask: 1 at tokens and 0 at padding. If the model accepts positions, each row
                counts them from its first token, as in generation. TRL's training counts padding on
                the left, which makes a difference only for absolute positions.
            scored: True at each token whose log-probability counts. The first column never counts,
                because nothing comes before it.
            temperature: Divides the logits.
        """
        self.rollouts, self._model, self._temperature = len(input_ids), model, temperature
        self._ids, self._mask, self._scored = input_ids, attention_mask, scored[:, 1:]
        calls: list[Any] = []

        def keep(module: Any, arguments: Any, options: Any, out: Any) -> None:
            is_tensor = isinstance(out, torch.Tensor) and out.ndim > 2 and out.requires_grad
            if is_tensor and len(out) == self.rollouts and not options:
                calls.append((get_gradient_edge(out), module, arguments))

        with torch.enable_grad(), ExitStack() as hooks:
            for module in model.modules():
                if any(own.requires_grad for own in module.parameters(recurse=False)):
                    hooks.enter_context(module.register_forward_hook(keep, with_kwargs=True))
            total = self._log_probabilities().sum()
        edges = [edge for edge, *_ in calls]
        gradients: Any = grad(
            total, [*edges, total], allow_unused=True
        )  # grad() refuses an empty list
        self._calls = [
            (*call, gradient)
            for (_, *call), gradient in zip(calls, gradients, strict=False)
            if gradient is not None
        ]
        kept = Counter(
            own for module, *_ in self._calls for own in module.parameters(recurse=False)
        )
        uses = _uses_below(total.grad_fn)
        used = [(name, own) for name, own in model.named_parameters() if uses[own]]
        self._by_calls = {name: own for name, own in used if uses[own] == kept[own]}
        self.by_autograd = {name: own for name, own in used if uses[own] != kept[own]}

    @torch.enable_grad()
    def weighted(self, coefficients: Any) -> Generator[tuple[str, torch.Tensor]]:
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

    @torch.enable_grad()
    def along(self, directions: Mapping[str, torch.Tensor]) -> torch.Tensor:
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
        for scores, leaves in self._parts():
            each = torch.ones_like(scores, requires_grad=True)
            slopes = grad(scores, list(leaves.values()), each, create_graph=True)
            ways = zip(*(directions[name].to(slopes[0]) for name in leaves), strict=True)
            found = [grad(slopes, each, way, retain_graph=True)[0] for way in ways]
            products += torch.stack(found, dim=1)
        return products

    def _parts(self) -> Generator[tuple[torch.Tensor, Mapping[str, torch.Tensor]]]:
        """Yield scores[rollout], and the parameters for which their gradients are $s_i$."""
        for name, parameter in self._by_calls.items():
            leaf = _wide(parameter).detach().requires_grad_()
            scores: Any = 0
            for module, arguments, gradient in self._calls:
                if any(own is parameter for own in module.parameters(recurse=False)):
                    tensors = (*module.named_parameters(), *module.named_buffers())
                    values = {at: leaf if own is parameter else _wide(own) for at, own in tensors}
                    with _evaluating(module):
                        out = functional_call(module, values, tuple(map(_wide, arguments)))
                    scores += (out * gradient).flatten(1).sum(1)
            yield scores, {name: leaf}
        if self.by_autograd:
            with sdpa_kernel(SDPBackend.MATH):
                scores = self._log_probabilities()
            yield scores, self.by_autograd

    def _log_probabilities(self) -> torch.Tensor:
        """Return the log-probability of each rollout."""
        policy = getattr(self._model, "get_base_model", lambda: self._model)()
        accepted = inspect.signature(policy.forward).parameters
        columns = self._scored.any(0).nonzero()[:, 0]
        options = {
            "position_ids": (self._mask.cumsum(1) - 1).clamp(min=0),
            "logits_to_keep": columns,
        }
        with _evaluating(self._model):
            logits = self._model(
                input_ids=self._ids,
                attention_mask=self._mask,
                **{name: value for name, value in options.items() if name in accepted},
            ).logits
        if logits.shape[1] == self._ids.shape[1]:
            logits = logits[:, columns]
        targets = self._ids[:, columns + 1, None]
        found = (_wide(logits) / self._temperature).log_softmax(-1).gather(-1, targets)[..., 0]
        return torch.where(self._scored[:, columns], found, 0).sum(1)


@contextmanager
def _evaluating(model: torch.nn.Module) -> Generator[None]:
    """Set the model to evaluation mode meanwhile."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, flag in training.items():
            module.training = flag


def _uses_below(root: Any) -> Counter[Any]:
    """Count the edges that lead to each parameter in the graph below a node."""
    seen, uses, waiting = {root}, Counter[Any](), [root]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            uses[getattr(node, "variable", None)] += 1
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return uses


def _wide(value: Any) -> Any:
    """Return a tensor of real numbers in at least float32, and anything else as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(torch.promote_types(value.dtype, torch.float32))
    return value
