"""Writes sentences.json: what sentence-transformers and transformers compute for the folders of
`tests.convert.sentences`, and BGE-M3's heads by the formulas of FlagEmbedding's source.

    python -m tests.convert.make_sentences

It needs torch, transformers and sentence-transformers (with scikit-learn), which no test does.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert import sentences
from tests.convert.sentences import PAIRS, TEXTS

HERE = Path(__file__).parent


def rounded(values: Any) -> Any:
    """float32 as the shortest decimals that give it back."""
    array = np.asarray(values, np.float32)
    return json.loads(json.dumps(array.tolist(), default=float))


def embedders(folder: Path) -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

    made: dict[str, Any] = {}
    for name, write in sentences.EMBEDDERS.items():
        model = SentenceTransformer(str(write(folder / name)), device="cpu")
        named = {"prompt_name": "query"} if "query" in model.prompts else {}
        made[name] = {
            "plain": rounded(model.encode(TEXTS, batch_size=1)),
            "query": rounded(model.encode(TEXTS, batch_size=1, **named)),
            "prompt": rounded(model.encode(TEXTS, batch_size=1, prompt="fox ")),
            "document": rounded(model.encode_document(TEXTS, batch_size=1)),
            "short": rounded(
                model.encode(TEXTS, batch_size=1, truncate_dim=5, normalize_embeddings=True)
            ),
            "most": model.max_seq_length,
            "width": model.get_embedding_dimension(),
            "similarity": rounded(model.similarity(model.encode(TEXTS), model.encode(TEXTS))),
        }
        kinds = ("cosine", "dot", "euclidean", "manhattan")
        rows = model.encode(TEXTS)
        for kind in kinds:
            model.similarity_fn_name = kind
            made[name][kind] = rounded(model.similarity_pairwise(rows, rows[::-1].copy()))
    return made


def rankers(folder: Path) -> dict[str, Any]:
    from sentence_transformers import CrossEncoder  # pyright: ignore[reportMissingImports]

    made: dict[str, Any] = {}
    cases = {
        "sigmoid": sentences.cross_encoder(folder / "sigmoid"),
        "identity": sentences.cross_encoder(folder / "identity", "linear.Identity"),
        "three": sentences.cross_encoder(folder / "three", None, 3),
        "tied": sentences.logit_score(folder / "tied"),
        "untied": sentences.logit_score(folder / "untied", tied=False),
    }
    for name, path in cases.items():
        model = CrossEncoder(str(path), device="cpu")
        made[name] = {"predict": rounded(model.predict(PAIRS, batch_size=1))}
        if name == "three":
            made[name]["softmax"] = rounded(model.predict(PAIRS, batch_size=1, apply_softmax=True))
        else:
            query, documents = PAIRS[0][0], [document for _, document in PAIRS]
            made[name]["rank"] = model.rank(query, documents, batch_size=1, return_documents=True)
    return made


def reranker(folder: Path) -> list[float]:
    """The probability of "yes" as Qwen3-Reranker's model card computes it."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM, AutoTokenizer  # pyright: ignore[reportMissingImports]

    from ggmodel.convert.behind import RERANKER_TEMPLATE

    path = str(sentences.qwen3(folder / "Qwen3-Reranker-tiny", closing=False))
    tokenizer, model = (
        AutoTokenizer.from_pretrained(path),
        AutoModelForCausalLM.from_pretrained(path).eval(),
    )
    yes, no = tokenizer.convert_tokens_to_ids("yes"), tokenizer.convert_tokens_to_ids("no")
    scores: list[float] = []
    for query, document in PAIRS:
        text = RERANKER_TEMPLATE.format(query=query, document=document)
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0, -1]
        pair = torch.stack([logits[no], logits[yes]])
        scores.append(torch.nn.functional.log_softmax(pair, dim=0)[1].exp().item())
    return rounded(scores)


def classifier(folder: Path) -> Any:
    """The scores of a decoder's head for whole texts."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import (  # pyright: ignore[reportMissingImports]
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    path = str(sentences.classifier(folder / "classifier"))
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    with torch.no_grad():
        each = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS]
    return rounded([one.tolist() for one in each])


def heads(folder: Path) -> dict[str, Any]:
    """FlagEmbedding's inference/embedder/encoder_only/m3.py, on transformers' hidden states."""
    import torch  # pyright: ignore[reportMissingImports]
    from safetensors.numpy import load_file
    from transformers import AutoModel, AutoTokenizer  # pyright: ignore[reportMissingImports]

    path = sentences.further_heads(folder / "heads")
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    parts = {n: load_file(path / f"{n}.safetensors") for n in ("sparse_linear", "colbert_linear")}
    special = {tokenizer.cls_token_id, tokenizer.sep_token_id}
    special |= {tokenizer.pad_token_id, tokenizer.unk_token_id}
    made: dict[str, Any] = {"sparse": [], "tokens": []}
    for text in TEXTS:
        encoded = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model(**encoded).last_hidden_state[0].numpy().astype(np.float64)
        weights = states @ parts["sparse_linear"]["weight"].T + parts["sparse_linear"]["bias"]
        best: dict[str, float] = {}
        for token, weight in zip(encoded["input_ids"][0].tolist(), weights[:, 0], strict=True):
            if token not in special and weight > best.get(str(token), 0):
                best[str(token)] = float(np.float32(weight))
        rows = states[1:] @ parts["colbert_linear"]["weight"].T + parts["colbert_linear"]["bias"]
        rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
        made["sparse"].append(best)
        made["tokens"].append(rounded(rows))
    tokens = [np.array(rows) for rows in made["tokens"]]
    made["colbert"] = [float((tokens[0] @ d.T).max(-1).sum() / len(tokens[0])) for d in tokens]
    first = made["sparse"][0]
    made["lexical"] = [sum(w * d.get(t, 0) for t, w in first.items()) for d in made["sparse"]]
    return made


def labellers(folder: Path) -> dict[str, Any]:
    from transformers import pipeline  # pyright: ignore[reportMissingImports]

    made: dict[str, Any] = {}
    for family in ("bert", "roberta", "distilbert", "electra", "modernbert"):
        texts = sentences.SHORT if family == "roberta" else TEXTS
        path = str(sentences.labels_tokens(folder / f"labels-{family}", family))
        made[family] = {}
        for way in ("none", "simple"):
            run = pipeline("token-classification", path, aggregation_strategy=way, device="cpu")
            found = [run(text) for text in texts]
            for entities in found:
                for one in entities:
                    one["score"] = float(one["score"])
            made[family][way] = found
    return made


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_in:
        folder = Path(made_in)
        results = {
            "embedders": embedders(folder),
            "rankers": rankers(folder),
            "reranker": reranker(folder),
            "classifier": classifier(folder),
            "heads": heads(folder),
            "labellers": labellers(folder),
        }
    (HERE / "sentences.json").write_text(json.dumps(results) + "\n")
