"""Ordered codes of any encoder and decoder: VND-AE in a training loop of one's own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Normal

from vnd._text import check_known, nearest, on_one_line
from vnd.distributions import OrderedMixture, OrderedNormal
from vnd.functional import to_float32
from vnd.methods.base import Terms
from vnd.methods.codes import Code, branching, can_look, masked, repeated, shortest_within
from vnd.methods.vnd_ae import VNDAE
from vnd.models.encoder_decoder import EncoderDecoder
from vnd.nn.predict import evaluating

AT_ONCE = 1024  # codes decoded in one pass


class OrderedCode(nn.Module):
    r"""Turn a variational auto-encoder into one whose code is ordered, and as long as each input needs: VND-AE.

    $$\mathcal L = -\log p(x \mid z ∘ h) + κ\, \mathrm{KL}, \qquad
      \mathrm{KL} = \mathrm{KL}[q(z \mid x) ‖ p(z)] + \sum_i P(z_i = 1 \mid x)\, κ_i$$

    in nats of an input, a mean over the batch. Any encoder gives the features, of which linear heads make means, scales
    and keep logits of $q(z, h \mid x)$, an `OrderedNormal`; any decoder takes the code, (B, `latent_dim`), dropped
    dimensions being zeros. What else it trains, and how an encoder's own means and a decoder of feature maps are taken,
    say `vnd.methods.VNDAE`, whose loss this is, and `EncoderDecoder`. Paper: Sec. 4.1, App. A.5.

    Train all parameters by `loss` in a loop of your own. The temperature τ of the gates is a buffer: to anneal it,
    `code.temperature.fill_(0.5)`. All other calls run in evaluation mode, without gradient, and leave the modes as they
    were. It is saved as other modules are, by its `state_dict`, or by `vnd.save`.

    Args:
        encoder, decoder: The modules, which are trained where they are; or methods of one, as `vae.encode`.
        example: Inputs, (B, …), on the device of the modules; both are run on them once.
        latent_dim: Dimensions of the longest code; None for as many as the encoder gives.
        likelihood: p(x | h), of what the decoder gives: "gaussian" of deviation `likelihood_std`, "bernoulli" of
            probabilities, "bernoulli_logits"; a function from it to a `torch.distributions.Distribution`; or one from
            it and x to log-likelihoods, (B,) or of each number.
        likelihood_std: σ of "gaussian"; 1 if not given.
        temperature: τ at first.
        tell_length: Tell the decoder how long a code is.
        validate_args: Look for values that cannot be: NaN, and inputs that the likelihood does not allow. Compiled code
            does not look.
        options: Those of `vnd.methods.VNDAE`: `base`, `prior_length`, `initial_logit`, `fractions`, `decodes` …

    Shape: inputs (B, …) of any shape; codes (B, b) with b ≤ `latent_dim`.

    >>> encoder, decoder = nn.Linear(6, 16), nn.Linear(4, 6)
    >>> x = torch.rand(32, 6)
    >>> code = OrderedCode(encoder, decoder, x, latent_dim=4, likelihood_std=0.1)
    >>> loss = code.loss(x, progress=0.5)  # half of the training is done
    >>> loss.backward()
    >>> code.encode(x, length=2)[:, 2:].count_nonzero().item()
    0
    >>> code.reconstruct(x, length="posterior").shape, code.sample(3).shape
    (torch.Size([32, 6]), torch.Size([3, 6]))
    """

    temperature: Tensor

    def __init__(
        self,
        encoder: nn.Module | Callable[..., Any],
        decoder: nn.Module | Callable[..., Any],
        example: Tensor,
        latent_dim: int | None = None,
        *,
        likelihood: Literal["gaussian", "bernoulli", "bernoulli_logits"] | Callable[..., Any] = "gaussian",
        likelihood_std: float | None = None,
        temperature: float = 1.0,
        tell_length: bool = False,
        validate_args: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        if not 0 < temperature < math.inf:
            raise ValueError(f"OrderedCode: temperature must be finite and greater than 0; got {temperature}")
        known = [field.name for field in fields(VNDAE)]
        for name in options:
            if name not in known:
                raise ValueError(
                    f"OrderedCode: unknown option {name!r}{nearest(name, known)} Known: {', '.join(known)}"
                )
        if likelihood_std is not None and likelihood != "gaussian":
            raise ValueError(f"OrderedCode: likelihood_std is of the likelihood gaussian; got it with {likelihood!r}")
        std = 1.0 if likelihood_std is None else likelihood_std
        try:
            self.likelihood, self._joint = _likelihood(likelihood, std)
            self.method = VNDAE(likelihood_std=std, **options)
            self.network = EncoderDecoder(
                encoder, decoder, example, latent_dim, self.method.heads, tell_length, isinstance(likelihood, str)
            )
        except ValueError as error:
            raise ValueError(f"OrderedCode: {error}") from error
        self._named = likelihood if isinstance(likelihood, str) else None
        self._validate = validate_args
        self.method.start_long(self.network.heads["keep_logits"])
        self.register_buffer("temperature", torch.tensor(float(temperature), device=self.network.device))

    @property
    def latent_dim(self) -> int:
        """Dimensions of the longest code."""
        return self.network.dimensions

    @property
    def base(self) -> int:
        """Dimensions of the shortest code."""
        return self.method.base

    @property
    def prior(self) -> OrderedNormal:
        """The prior over codes: standard normal dimensions, lengths by `prior_length`."""
        if self.method.prior != "normal":
            raise ValueError(f"OrderedCode: a prior of {self.method.prior} dimensions is no distribution; use kl(x)")
        logits = self.method.prior_chain(self.latent_dim, self.network.device).keep_logits
        loc = torch.zeros(self.latent_dim, device=logits.device)
        return OrderedNormal(loc, torch.ones_like(loc), logits, self.temperature, validate_args=False)

    def posterior(self, x: Tensor) -> OrderedNormal:
        """The distribution over codes of each input, batch shape (B,), with gradient and in the mode that is set."""
        code = self._code(x)
        checked = self._validate and can_look(code.loc)
        return OrderedNormal(code.loc, code.scale, code.heads["keep_logits"], self.temperature, checked)

    def kl(self, x: Tensor, length: int | Tensor | None = None) -> Tensor:
        """Exact KL of each input's codes from the prior, lengths included, in nats, (B,); or of codes of a length."""
        code = self._code(x)
        return self.method.rate(code) if length is None else self._cut(self.method.cost_of(code), length).sum(1)

    def loss(self, x: Tensor, kl_weight: float | Tensor = 1.0, progress: float | Tensor = 1.0) -> Tensor:
        """The negative bound on the likelihood in nats of an input, a mean over the batch; see `terms`."""
        return self.terms(x, kl_weight, progress).total

    def terms(self, x: Tensor, kl_weight: float | Tensor = 1.0, progress: float | Tensor = 1.0) -> Terms:
        r"""The loss, and its parts: `nll`, `rate`, the least rate that lengths could have, the mean length drawn.

        Args:
            x: Inputs, (B, …).
            kl_weight: κ.
            progress: Share of the training that is done, in [0, 1]: with it all lengths come first, and the learned
                ones have their say by and by (`all_lengths_until`). If not given, as at the end. A tensor where the
                loss is compiled, so that it is compiled once.
        """
        if not isinstance(progress, Tensor) and not 0 <= progress <= 1:
            raise ValueError(f"OrderedCode: progress must lie in [0, 1]; got {progress}")
        if not isinstance(kl_weight, Tensor) and not 0 <= kl_weight < math.inf:
            raise ValueError(f"OrderedCode: kl_weight must be 0 or more; got {kl_weight}")
        self._check_inputs(x)

        def misfit(codes: Tensor) -> Tensor:
            return -self._log_likelihood(self.network.decode(codes), repeated(x, len(codes)))

        bound = self.method.bound(self._code(x), misfit, self.temperature, progress)
        total = bound.misfit + kl_weight * bound.rate
        if self._validate and can_look(total) and not total.isfinite():
            raise ValueError(
                f"OrderedCode: the loss must be finite; got {bound.misfit.item():.4g} nats of what the decoder gave, "
                f"and a rate of {bound.rate.item():.4g}"
            )
        parts = {"nll": bound.misfit, **bound.parts}
        return Terms(total, {name: value.detach() for name, value in parts.items()})

    def forward(self, x: Tensor) -> Tensor:
        """Decode the means of all dimensions, with gradient and in the mode that is set."""
        return self._mean(self.network.decode(self._code(x).loc))

    @torch.no_grad()
    def lengths(self, x: Tensor, error: float | None = None) -> Tensor:
        """Dimensions that each input needs, (B,): the median of its posterior, or the least within an error.

        Args:
            x: Inputs, (B, …).
            error: Mean squared error of a number of x; an input that no length brings within it has all dimensions.
        """
        self._check_inputs(x)
        with evaluating(self):
            code = self._code(x)
            if error is None:
                return self.method.lengths(code)
            if isinstance(error, bool) or not 0 < error < math.inf:
                raise ValueError(f"OrderedCode: error must be finite and greater than 0; got {error}")

            def apart(rows: Tensor, codes: Tensor) -> Tensor:
                decoded = self._mean(self.network.decode(codes))
                if decoded.shape != x[rows].shape:
                    raise ValueError(
                        f"OrderedCode: error needs a decoder whose means have the shape of the inputs, "
                        f"{tuple(x[rows].shape)}; got {tuple(decoded.shape)}"
                    )
                return (to_float32(x[rows]) - decoded).square().flatten(1).mean(1)

            return shortest_within(apart, code.loc, error, self.method.base)

    @torch.no_grad()
    def encode(
        self, x: Tensor, length: int | Tensor | Literal["posterior"] | None = None, error: float | None = None
    ) -> Tensor:
        """The mean codes of inputs, (B, latent_dim), with zeros beyond their lengths.

        Args:
            x: Inputs, (B, …).
            length: A number, a tensor (B,), or "posterior" for the median of each input's posterior; None for all.
            error: In place of it, the mean squared error that each code is the shortest within; see `lengths`.
        """
        if error is not None and length is not None:
            raise ValueError(f"OrderedCode: give length or error, one of the two; got {length!r} and {error}")
        if error is not None or (isinstance(length, str) and length == "posterior"):
            length = self.lengths(x, error)
        self._check_inputs(x)
        with evaluating(self):
            return self._cut(self._code(x).loc, length)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The means of the likelihood for codes (…, b) with b ≤ `latent_dim`, whose missing dimensions are zeros.

        Of a likelihood without a mean its mode; of a function of x too, what the decoder gives.
        """
        if not isinstance(codes, Tensor) or not codes.is_floating_point() or codes.ndim < 2:
            got = f"{codes.dtype} of shape {tuple(codes.shape)}" if isinstance(codes, Tensor) else type(codes).__name__
            raise ValueError(f"OrderedCode: codes must be floating-point numbers (…, b); got {got}")
        with evaluating(self):
            decoded = [self._mean(self.network.decode(part)) for part in codes.flatten(0, -2).split(AT_ONCE)]
        found: Tensor = torch.cat(decoded).unflatten(0, codes.shape[:-1])
        return found

    def reconstruct(
        self, x: Tensor, length: int | Tensor | Literal["posterior"] | None = None, error: float | None = None
    ) -> Tensor:
        """Decode the mean codes of inputs; length and error as in `encode`."""
        return self.decode(self.encode(x, length, error))

    @torch.no_grad()
    def draw(self, count: int, length: int | Tensor | None = None, density: OrderedMixture | None = None) -> Tensor:
        """Codes from the prior, or from a fitted density, (count, latent_dim), with zeros beyond their lengths.

        Args:
            count: How many.
            length: A number or a tensor (count,); None to draw it too.
            density: What `fit_density` gave.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"OrderedCode: count must be a whole number of at least 1; got {count!r}")
        if density is not None:
            codes = density.sample((count,), whole=length is not None).to(self.network.device)
        else:
            codes = self.method.draw(self.network, count, None if length is None else self.latent_dim)
        return self._cut(codes, length)

    def sample(self, count: int, length: int | Tensor | None = None, density: OrderedMixture | None = None) -> Tensor:
        """Decode codes of `draw`: the means of the likelihood, without its noise."""
        return self.decode(self.draw(count, length, density))

    def branches(self, depth: int, first: float = 0.0, side: float = 1.5) -> list[Tensor]:
        """Codes of a tree, (2^l, latent_dim) of length `base` + l at level l = 0 … `depth`; see `branching`.

        Args:
            depth: Levels below the root.
            first: The one value of the first dimensions, those of the base.
            side: Of each later dimension, left and right of 0.
        """
        size, base = self.latent_dim, self.method.base
        if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= size - base:
            raise ValueError(f"OrderedCode: depth must lie in 0 … {size - base}; got {depth!r}")
        levels = branching(depth, base, first, side)
        return [nn.functional.pad(level, (0, size - level.size(1))).to(self.network.device) for level in levels]

    @torch.no_grad()
    def fit_density(self, batches: Tensor | Iterable[Any], components: int = 10, seed: int = 0) -> OrderedMixture:
        r"""Fit a Gaussian mixture to the codes of inputs after training, of which each component has its lengths.

        $$p(h_{\le b}, b) = \sum_k w_k\, r_k(b)\, \mathcal N(h_{\le b};\ m_k, S_k), \qquad
          r_k(b) ∝ \sum_x P(k \mid h_x)\, q(b \mid x)$$

        fitted to one draw $h_x$ of all dimensions for each input, by scikit-learn (extra `density`). Where the codes of
        all inputs together are not as the prior, `sample(…, density=…)` is more like them. The bound does not know it.

        Args:
            batches: Inputs (N, …), or batches of them; of tuples the first entry.
            components: Number of Gaussians.
            seed: Of the draws and of the fit.
        """
        try:
            from sklearn.mixture import GaussianMixture
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "fit_density needs scikit-learn; pip install 'variational-nested-dropout[density]'"
            ) from None
        draws, lengths = list[Tensor](), list[Tensor]()
        with evaluating(self):
            for batch in (batches,) if isinstance(batches, Tensor) else batches:
                for x in (batch[0] if isinstance(batch, tuple | list) else batch).split(AT_ONCE):
                    self._check_inputs(x)
                    posterior = self.posterior(x)
                    noise = torch.randn(posterior.loc.shape, generator=torch.Generator().manual_seed(seed + len(draws)))
                    draws.append((posterior.loc + posterior.scale * noise.to(posterior.loc)).double().cpu())
                    lengths.append(posterior.gate.length_log_probs.exp().double().cpu())
        codes, probs = torch.cat(draws or [torch.zeros(0, 1)]), torch.cat(lengths or [torch.zeros(0, 1)])
        if isinstance(components, bool) or not isinstance(components, int) or not 1 <= components <= len(codes) / 2:
            raise ValueError(
                f"OrderedCode: components must be at least 1, and at most half of the {len(codes)} inputs; "
                f"got {components!r}"
            )
        mixture = GaussianMixture(components, random_state=seed).fit(codes.numpy())
        shares = torch.from_numpy(mixture.predict_proba(codes.numpy()))
        weights, means, covariances = (
            torch.from_numpy(value) for value in (mixture.weights_, mixture.means_, mixture.covariances_)
        )
        log_lengths = (shares.T @ probs / shares.sum(0)[:, None]).log()
        tril = torch.linalg.cholesky(covariances)
        return OrderedMixture(weights.log().float(), means.float(), tril.float(), log_lengths.float())

    def _code(self, x: Tensor) -> Code:
        try:
            code = self.method.code_of(self.network.encode(x))
        except ValueError as error:
            raise ValueError(f"OrderedCode: {error}") from error
        if self._validate and can_look(x):
            for name, value in (
                ("means", code.loc),
                ("scales", code.scale),
                ("keep logits", code.heads["keep_logits"]),
            ):
                bad = ~value.isfinite()
                if bad.any():
                    where = tuple(bad.nonzero()[0].tolist())
                    raise ValueError(
                        f"OrderedCode: the {name} of the encoder must be finite; got {value[where].item()} at {where}"
                    )
        return code

    def _cut(self, codes: Tensor, length: int | Tensor | str | None) -> Tensor:
        """Codes (B, latent_dim) with zeros beyond a length, or each beyond its own."""
        if length is None:
            return codes
        base, most = self.method.base, codes.size(1)
        wanted = (
            f"OrderedCode: length must be a whole number in {base} … {most}, one for each of {len(codes)}, or posterior"
        )
        whole = isinstance(length, int) and not isinstance(length, bool)
        if isinstance(length, Tensor) and length.ndim < 2:
            whole = not length.is_floating_point() and length.dtype != torch.bool and length.numel() in (1, len(codes))
        if not whole:
            got = f"{length.dtype} of shape {tuple(length.shape)}" if isinstance(length, Tensor) else repr(length)
            raise ValueError(f"{wanted}; got {got}")
        given = torch.as_tensor(length, device=codes.device)
        if not bool(((given >= base) & (given <= most)).all()):
            raise ValueError(f"{wanted}; got {int(given.min())} … {int(given.max())}")
        return masked(codes, given.expand(len(codes)))

    def _log_likelihood(self, decoded: Tensor, x: Tensor) -> Tensor:
        """Log-likelihood of each input, (B,), given what the decoder gave."""
        decoded, x = to_float32(decoded), to_float32(x) if x.is_floating_point() else x
        if self._joint:
            found = self.likelihood(decoded, x)
        else:
            distribution = self._distribution(decoded)
            shape = distribution.batch_shape + distribution.event_shape
            if shape != x.shape:
                raise ValueError(f"OrderedCode: the likelihood must be of inputs {tuple(x.shape)}; got {tuple(shape)}")
            try:
                found = distribution.log_prob(x)
            except ValueError as error:  # whose words are on many lines
                low, high = x.aminmax()
                raise ValueError(
                    f"OrderedCode: inputs must be in the support of {type(distribution).__name__}; "
                    f"got {float(low):.4g} … {float(high):.4g}"
                ) from error
        if not isinstance(found, Tensor) or found.shape[:1] != x.shape[:1]:
            got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ValueError(f"OrderedCode: the likelihood must give {len(x)} log-likelihoods, one an input; got {got}")
        return to_float32(found) if found.ndim == 1 else to_float32(found).flatten(1).sum(1)

    def _distribution(self, decoded: Tensor) -> Distribution:
        if self._named == "bernoulli" and self._validate and can_look(decoded):
            low, high = decoded.detach().aminmax()
            if low < 0 or high > 1:
                raise ValueError(
                    f"OrderedCode: the decoder must give probabilities for bernoulli; got {float(low):.4g} … "
                    f"{float(high):.4g}; of logits the likelihood is bernoulli_logits"
                )
        try:
            distribution = self.likelihood(decoded)
        except ValueError as error:
            raise ValueError(
                f"OrderedCode: the likelihood cannot take what the decoder gave: {_line(error)}"
            ) from error
        if not isinstance(distribution, Distribution):
            raise ValueError(
                f"OrderedCode: the likelihood must be a torch Distribution, or a function of two; "
                f"got a {type(distribution).__name__}"
            )
        return distribution

    def _mean(self, decoded: Tensor) -> Tensor:
        """Mean of the likelihood, or else its mode."""
        if self._joint:
            return decoded
        distribution = self._distribution(to_float32(decoded))
        if self._named:
            return distribution.mean
        for name in ("mean", "mode"):
            try:
                found: Tensor = getattr(distribution, name)
            except NotImplementedError:
                continue
            if found.isfinite().all():
                return found
        kind = type(distribution).__name__
        raise ValueError(f"OrderedCode: the likelihood must have a mean or a mode that is finite; got a {kind}")

    def _check_inputs(self, x: Tensor) -> None:
        """Refuse inputs that the likelihood does not allow, and say what they are."""
        if not isinstance(x, Tensor) or x.ndim < 2 or not x.numel():
            got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ValueError(f"OrderedCode: inputs must be a batch (B, …); got {got}")
        if self._named and not x.is_floating_point():
            raise ValueError(f"OrderedCode: inputs must be floating-point numbers; got {x.dtype}")
        if self._validate and x.is_floating_point() and can_look(x):
            low, high = (float(value) for value in x.detach().aminmax())
            shares = self._named in ("bernoulli", "bernoulli_logits")
            least, most = (0.0, 1.0) if shares else (-math.inf, math.inf)
            if not (least <= low <= high <= most and math.isfinite(low) and math.isfinite(high)):
                allowed = "lie between 0 and 1" if shares else "be finite"
                raise ValueError(f"OrderedCode: inputs must {allowed}; got {low:.4g} … {high:.4g}")


def _gaussian(decoded: Tensor, std: float) -> Normal:
    return Normal(decoded, std, validate_args=False)


def _bernoulli(decoded: Tensor) -> Bernoulli:
    return Bernoulli(probs=decoded, validate_args=False)


def _bernoulli_logits(decoded: Tensor) -> Bernoulli:
    return Bernoulli(logits=decoded, validate_args=False)


def _likelihood(given: Any, std: float) -> tuple[Callable[..., Any], bool]:
    """A likelihood as a function of what the decoder gives, or of that and x, and whether it is of both."""
    if isinstance(given, str):
        named: dict[str, Callable[..., Any]] = {
            "gaussian": partial(_gaussian, std=std),
            "bernoulli": _bernoulli,
            "bernoulli_logits": _bernoulli_logits,
        }
        check_known("likelihood", given, named)
        return named[given], False
    if not callable(given):
        raise ValueError(f"likelihood must be a word or a function of what the decoder gives; got {given!r}")
    takes = inspect.signature(given.forward if isinstance(given, nn.Module) else given).parameters.values()
    places = [one for one in takes if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    count = sum(one.default is one.empty for one in places)
    if isinstance(given, type) and issubclass(given, Distribution) and count != 1:
        raise ValueError(
            f"likelihood must take what the decoder gives alone, and {given.__name__} takes more; give a function"
        )
    if count not in (1, 2):
        raise ValueError(
            f"likelihood must be a function of what the decoder gives, or of that and x; got {count} arguments"
        )
    return given, count == 2


def _line(error: BaseException) -> str:
    return on_one_line(error)[:160]
