"""RankFeat: the energy of the logits without the rank-one part of the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes
from pipeline.shaping import ShapedEnergy, energy_of, head_over
from pipeline.views import Pooled, Tokens
from pipeline.views.rank_one import WithoutRankOne

__all__ = ["RankFeat"]


@value
class RankFeat:
    """Energy without the largest singular triplet: -log sum_c exp(f_c), f = W mean(X - s u v') + b.

    X (t, d) are the tokens of an image, s their largest singular value, u and v its singular
    vectors; W (k, d) and b (k,) a head over the mean of the tokens. Masked tokens are no rows of X.
    Nothing is fitted but an lda head. Where the two largest singular values are equal, which part
    is removed is arbitrary.

    Raises :class:`ConfigError` for a head without weights, or one over other features than the mean
    of the tokens, and :class:`DataError` for features without tokens.

    Reference: Song, Sebe and Wang 2022, "RankFeat: rank-1 feature removal for out-of-distribution
    detection", arXiv 2209.08590.
    Differs from the reference code: the last features alone. The paper averages their logits with
    those of the block before, whose features would have to pass the last block again. Float64, by
    eigenvectors of X X' or X' X, which power iteration only comes near.
    """

    paper: ClassVar[str] = "Song et al. 2022"
    formula: ClassVar[str] = "- logsumexp of the head on tokens without their rank-one part"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {}}

    head: Head = StoredHead()
    field: str = "features"

    def passes(self, schema: Schema) -> Passes[ShapedEnergy]:
        rest = WithoutRankOne(Tokens(self.field))
        rest.shape(schema)
        logits = yield from head_over(schema, self.head, Pooled("mean", self.field), "rankfeat")
        return energy_of(logits, rest)
