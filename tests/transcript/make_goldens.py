"""Writes goldens.json: transcripts by `generate` of transformers, with the Whisper of whispers.py.

pip install torch==2.13.0 transformers==5.23.0
PYTHONPATH=. python tests/transcript/make_goldens.py
"""

import json
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from ggmodel.workbench.golden.reference import layout
from tests.transcript.whispers import ASKED, CONFIG, IDS, LANGUAGES, sound, write


def prompt_ids(folder: Path, text: str | None) -> torch.Tensor | None:
    """As `get_prompt_ids` of transformers' processor, but the last tokens, as OpenAI's Whisper."""
    if text is None:
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(" " + text.strip(), add_special_tokens=False).ids
    most = CONFIG["max_target_positions"] // 2 - 1
    return torch.tensor([IDS["<|startofprev|>"], *ids[-most:]])


def main() -> None:
    tensors, _ = layout(CONFIG)
    made = {"tensors": tensors, "asked": {}}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), tensors)
        model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        extractor = WhisperFeatureExtractor.from_pretrained(folder)
        # In float64, as without torch; see tests/audio/make_goldens.py.
        extractor._torch_extract_fbank_features = extractor._np_extract_fbank_features
        for name, (seconds, options) in ASKED.items():
            long = {"truncation": False, "padding": "longest"} if seconds > 1 else {}
            features = extractor(
                sound(name), sampling_rate=16_000, return_tensors="pt", return_attention_mask=True,
                **long,
            )  # fmt: skip
            found = model.generate(
                features["input_features"].float(),
                attention_mask=features["attention_mask"],
                return_timestamps=options.get("timestamps", False),
                language=options.get("language"),
                task=options.get("task", "transcribe"),
                return_segments=True,
                prompt_ids=prompt_ids(Path(folder), options.get("prompt")),
                num_beams=1,
                do_sample=False,
            )
            made["asked"][name] = [
                [round(float(s["start"]), 3), round(float(s["end"]), 3), s["tokens"].tolist()]
                for s in found["segments"][0]
            ]
            if name == "short":
                (spoken,) = model.detect_language(features["input_features"].float()).tolist()
                made["language"] = next(c for c in LANGUAGES if IDS[f"<|{c}|>"] == spoken)
    text = json.dumps(made, indent=1)
    Path(__file__).with_name("goldens.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
