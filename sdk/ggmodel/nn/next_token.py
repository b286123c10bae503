"""Heads for multi-token prediction (MTP)."""

from __future__ import annotations

from ..ml import Tensor
from ..model import Batch, LayerMemory, Module, gguf
from .decoder import PreNormLayer
from .layers import Linear, RMSNorm


class NextToken(Module):
    """Drafts the token after the next one: norm(layer(project([norm(e), norm(h)]))), of the
    embedding e of the next token and the hidden state h that the model chose it by (arXiv
    2412.19437, section 2.2). The model's own head makes logits of it.

    A model has one in a field `mtp`, with `numbers="mtp_numbers"`: in files it stands behind all
    layers. A subclass annotates `layer`, a layer with attention.
    """

    embedding_norm: RMSNorm = gguf("nextn.enorm", hf="enorm", shape=("width",))
    hidden_norm: RMSNorm = gguf("nextn.hnorm", hf="hnorm", shape=("width",))
    project: Linear = gguf("nextn.eh_proj", hf="eh_proj", shape=("twice_width", "width"))
    layer: PreNormLayer = gguf(hf="")
    norm: RMSNorm = gguf("nextn.shared_head_norm", hf="shared_head.norm", shape=("width",))

    def forward(self, e: Tensor, h: Tensor, batch: Batch, cache: LayerMemory) -> Tensor:
        """
        Args:
            e: F32 [width, n], embeddings of the tokens behind those that h belongs to.
            h: F32 [width, n], hidden states after the model's last norm, or of this head itself.
            batch: has the positions of e.

        Returns:
            F32 [width, n], hidden states.
        """
        x = self.project(self.embedding_norm(e).concat(self.hidden_norm(h), 0))
        return self.norm(self.layer(x, batch, cache, None))
