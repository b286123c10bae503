"""Writes voxtral.json: transcription prompts by mistral_common and answers by transformers, with
the Voxtral of voxtrals.py.

pip install torch==2.13.0 transformers==5.23.0 mistral-common==1.13.1 soundfile soxr
PYTHONPATH=. python tests/transcript/make_voxtral.py
"""
# pyright: reportMissingImports=false

import json
import tempfile
from pathlib import Path

import torch
from transformers import (
    MistralCommonBackend,
    VoxtralForConditionalGeneration,
    VoxtralProcessor,
    WhisperFeatureExtractor,
)

from tests.transcript.voxtrals import ASKED, CONTEXT, FEATURES, sound, write


def main() -> None:
    made = {}
    with tempfile.TemporaryDirectory() as name:
        folder = write(Path(name))
        model = VoxtralForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        extractor = WhisperFeatureExtractor.from_pretrained(folder)
        # In float64, as without torch; see tests/audio/make_goldens.py.
        extractor._torch_extract_fbank_features = extractor._np_extract_fbank_features
        tokenizer = MistralCommonBackend(tokenizer_path=str(folder / "tekken.json"))
        processor = VoxtralProcessor(extractor, tokenizer)
        for case, (_, language) in ASKED.items():
            inputs = processor.apply_transcription_request(
                audio=[sound(case)],
                model_id="",
                language=language,
                sampling_rate=FEATURES["sampling_rate"],
                format=["WAV"],
                tokenize=True,
                return_dict=True,
                audio_kwargs={
                    "max_source_positions": FEATURES["nb_max_frames"],
                    "pad_to_multiple_of": FEATURES["n_samples"],
                },
            )
            prompt = inputs["input_ids"]
            found = model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                input_features=inputs["input_features"].float(),
                max_new_tokens=CONTEXT - prompt.shape[1],
                do_sample=False,
            )
            answer = found[0, prompt.shape[1] :].tolist()
            made[case] = {"prompt": prompt[0].tolist(), "answer": answer}
    text = json.dumps(made)
    Path(__file__).with_name("voxtral.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
