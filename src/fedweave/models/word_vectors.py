"""Texts as codes of pieces of words, and a model over their frozen vectors."""

from collections.abc import Iterable
from typing import Annotated

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.errors import BadInput, format_value
from fedweave.files import weights as files
from fedweave.models.base import ClientModel
from fedweave.models.registry import model
from fedweave.settings import Size

NO_PIECE = -1  # code behind the last piece of a text
VECTORS = "package:wordllama/weights/l2_supercat_256.safetensors"
TOKENIZER = "package:wordllama/tokenizers/l2_supercat_tokenizer_config.json"


@model("word_vectors")
class WordVectors(ClientModel):
    """Mean of the frozen vectors of the pieces of a text, a hidden layer with ReLU, and a linear head.

    Rows are codes of pieces [T], as `encode_texts` makes them; below 0 there is no piece. They must not be scaled.
    """

    head = ("fc",)

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        hidden: Annotated[Size, "width of the hidden layer"] = 64,
        weights: Annotated[str, "file with the vectors, a matrix of one row per code"] = "",
    ) -> None:
        super().__init__()
        if not weights:
            raise BadInput("model.weights", f"missing, the file of the vectors; for example weights: {VECTORS}")
        matrices = [value for value in files.read(weights).values() if value.ndim == 2]
        if len(matrices) != 1:
            raise BadInput(f"weights: {weights}", f"{len(matrices)} matrices, and one is needed, of the vectors")
        self.vectors = nn.Embedding.from_pretrained(matrices[0].float(), freeze=True)
        self.fc1, self.fc = nn.Linear(self.vectors.embedding_dim, hidden), nn.Linear(hidden, outputs)

    @property
    def codes(self) -> tuple[int, int]:
        return NO_PIECE, self.vectors.num_embeddings - 1

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Hidden layer [B, hidden] for codes [B, T]."""
        codes = x.flatten(1)
        real = codes >= 0
        vectors = self.vectors(codes.clamp(min=0).long()) * real[..., None]
        return F.relu(self.fc1(vectors.sum(1) / real.sum(1, keepdim=True).clamp(min=1)))


def encode_texts(texts: Iterable[str], length: int = 32, tokenizer: str = TOKENIZER) -> np.ndarray:
    """Codes of the first `length` pieces of each text, int64 [M, length]; -1 behind the last piece.

    Args:
        texts: M texts.
        length: at least 1.
        tokenizer: a file `tokenizer.json` of the package tokenizers; the default is that of wordllama.

    Raises:
        BadInput: a package is not installed, the file is no tokenizer, or a text is none.
    """
    try:
        from tokenizers import Tokenizer  # an optional extra
    except ImportError as error:
        raise BadInput("encode_texts", "needs wordllama, which is not installed; run: pip install wordllama") from error
    file = files.locate(tokenizer)
    try:
        reader = Tokenizer.from_file(str(file))
    except Exception as error:  # the package has one exception for all, without a name
        raise BadInput(f"tokenizer: {tokenizer}", f"cannot be read ({error}); name a file tokenizer.json") from error
    if isinstance(texts, str):
        raise BadInput("texts", f"{format_value(texts)} is one text; give a list of them")
    rows = [*texts]
    if wrong := [text for text in rows if not isinstance(text, str)]:
        raise BadInput("texts", f"{format_value(wrong[0])} is not a text; leave it out, or write ''")
    codes = np.full((len(rows), length), NO_PIECE, dtype=np.int64)
    for row, text in zip(codes, rows, strict=True):
        pieces = reader.encode(text, add_special_tokens=False).ids[:length]
        row[: len(pieces)] = pieces
    return codes
