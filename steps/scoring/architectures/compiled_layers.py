"""Compile the layers of a packed model, so that a GPU runs few kernels between matrix products.

Norms, rotations, activations and residuals of a layer are then a few kernels of Triton (inductor;
Ansel et al. 2024, *PyTorch 2*). Attention stays outside of them: its layout is another one in every
pack, and to compile it would mean to compile it again for most packs. The number of tokens is a
symbol of the compiled code, and layers share it. So it is compiled once, during the first steps:
with gradients, and without for evaluations.

Of the head, the products stay what they are. The softmax and its gradient become kernels that pass
over the logits once or twice: for a small model with a large vocabulary, to move the logits takes
longer than to compute them.

What a compiled layer keeps for its backward is the compiler's choice: about what selective
checkpointing keeps, as it computes again what it can fuse.
"""

from functools import partial
from types import MethodType

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from steps.models.activation_checkpointing import checkpoint_activations
from steps.models.config import ActivationCheckpointing
from steps.scoring.attention import PACKED, packed_attention
from steps.scoring.head import compile_softmax
from steps.shared.matmul import is_by_onednn

_compiled = partial(torch.compile, dynamic=True)


def compile_layers(model: PreTrainedModel, how: ActivationCheckpointing) -> None:
    """Compile each layer of a `model` that is packed, and the softmax of its head; with full
    checkpointing (`how`), a layer keeps its input only.

    What the compiler keeps of models before it in this process is dropped: after eight models of
    other sizes it would compile no more, and round otherwise than in a new process.
    """
    torch.compiler.reset()
    ALL_ATTENTION_FUNCTIONS.register(PACKED, torch.compiler.disable(packed_attention))
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            _use_own_products(layer)
            layer.forward = _compiled(layer.forward)
    compile_softmax(model, _compiled)
    if how is ActivationCheckpointing.full:
        checkpoint_activations(model, how)


def _use_own_products(layer: nn.Module) -> None:
    """Give linear layers PyTorch's products: inductor takes oneDNN's with constant weights only. As
    methods, since a layer with functions of its own would be compiled apart from all others."""
    for module in layer.modules():
        if is_by_onednn(module):
            plain = nn.Linear if isinstance(module, nn.Linear) else Conv1D
            module.forward = MethodType(plain.forward, module)
