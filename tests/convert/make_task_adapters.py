"""Make tests/convert/adapters/tasks.npy: embeddings of a checkpoint with an adapter for each task.

float32 [1 + tasks, texts, 2 · width]: without an adapter, then with each; rows are the mean of all
tokens' and the first token's. transformers computes them from weights that hold the change. Needs
torch and transformers. From the root of the repository:

    python -m tests.convert.make_task_adapters
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ggmodel.workbench.golden import uniform
from tests.golden.files import Embeddings, checkpoint, load_embeddings

FILE = Path(__file__).parent / "adapters" / "tasks.npy"
TASKS = {
    "retrieval.query": "Represent the query for retrieving evidence documents: ",
    "retrieval.passage": "Represent the document for retrieval: ",
    "separation": "",
    "classification": "",
    "text-matching": "",
}
RANK, ALPHA = 4, 2


def golden() -> Embeddings:
    return load_embeddings("jina_bert_v3", "published")


def config() -> dict[str, Any]:
    """The config.json of jina-embeddings-v3 as its authors published it, in small."""
    made = dict(golden().config)
    base = made.pop("rope_parameters")["rope_theta"]
    return {
        **made,
        "architectures": ["XLMRobertaModel"],
        "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.X"},
        "model_type": "xlm-roberta",
        "position_embedding_type": "rotary",
        "rotary_emb_base": base,
        "lora_adaptations": list(TASKS),
        "lora_alpha": ALPHA,
        "lora_dropout_p": 0.0,
        "lora_main_params_trainable": False,
        "lora_rank": RANK,
        "load_trained_adapters": True,
        "matryoshka_dimensions": [32, 64],
        "task_instructions": TASKS,
        "truncate_dim": None,
        "use_flash_attn": True,
    }


def changed(name: str) -> bool:
    """Whether the checkpoint has matrices for a weight."""
    return name.endswith(".weight") and "norm" not in name and name != "emb_ln.weight"


def matrices(name: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """A and B of a weight [out, in] or of an embedding [rows, width], for all tasks."""
    n, (rows, width) = len(TASKS), shape
    each = ((n, rows, RANK), (n, RANK, width)), ((n, RANK, width), (n, rows, RANK))
    a, b = each["_embeddings." not in name]
    return uniform(f"{name}.lora_A", a) / 4, uniform(f"{name}.lora_B", b) / 4


def published(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights under the names that the authors' code gives them, with all adapters."""
    tensors: dict[str, np.ndarray] = {}
    for name, w in weights.items():
        if not changed(name):
            tensors[f"roberta.{name}"] = w
            continue
        at = f"roberta.{name.removesuffix('.weight')}.parametrizations.weight"
        tensors[f"{at}.original"] = w
        tensors[f"{at}.0.lora_A"], tensors[f"{at}.0.lora_B"] = matrices(name, w.shape)
    return tensors


def write_folder(folder: Path) -> Path:
    """A checkpoint as its authors published it, without a tokenizer."""
    checkpoint(folder, config(), published(golden().weights()))
    return folder


def merged(task: int) -> dict[str, np.ndarray]:
    """The weights with the change for a task, by the definition of the authors' code."""
    weights = dict(golden().weights())
    for name, w in weights.items():
        if changed(name):
            a, b = (m[task].astype(np.float64) for m in matrices(name, w.shape))
            product = a @ b if "_embeddings." in name else b @ a
            weights[name] = (w + ALPHA / RANK * product).astype(np.float32)
    return weights


def main() -> None:
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModel  # pyright: ignore[reportMissingImports]

    rows = []
    for weights in (dict(golden().weights()), *(merged(task) for task in range(len(TASKS)))):
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint(Path(scratch) / "model", golden().config, weights)
            model = AutoModel.from_pretrained(
                Path(scratch) / "model", dtype=torch.float32, attn_implementation="eager"
            ).eval()
        with torch.no_grad():
            states = [model(torch.tensor([ids])).last_hidden_state[0] for ids in golden().texts]
        rows.append([torch.cat([s.mean(0), s[0]]).numpy() for s in states])
    np.save(FILE, np.array(rows, np.float32))
    print(float(((rows[0] - golden().vectors) ** 2).mean() / (golden().vectors ** 2).mean()))


if __name__ == "__main__":
    main()
