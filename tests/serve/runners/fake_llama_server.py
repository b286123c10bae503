"""Stands for llama.cpp's `llama-server`: answers as its README documents, and computes nothing.

A token is a letter, its id the letter's code; 1 begins a text. An answer repeats its prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MARKER = "<__media__>"
KEY = os.environ.get("LLAMA_API_KEY", "")


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(None)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.answer(json.loads(self.rfile.read(length)))

    def answer(self, body: Any) -> None:
        if self.path != "/health" and self.headers["Authorization"] != f"Bearer {KEY}":
            return self.say({"error": {"code": 401, "message": "Invalid API Key"}}, 401)
        name = self.path.strip("/").replace("/", "_").replace("-", "_")
        known = getattr(self, f"on_{name}", None)
        if known is None:
            return self.say({"error": {"code": 404, "message": "File Not Found"}}, 404)
        found = known(body)
        if found is not None:
            self.say(found)

    def say(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def on_health(self, body: Any) -> Any:
        return {"status": "ok"}

    def on_props(self, body: Any) -> Any:
        return {
            "default_generation_settings": {"n_ctx": 64},
            "total_slots": 2,
            "modalities": {"vision": True, "audio": False},
            "media_marker": MARKER,
            "chat_template": "{{ messages }} {{ tools }}",
            "bos_token": "<s>",
        }

    def on_v1_models(self, body: Any) -> Any:
        meta = {"n_vocab": 256, "n_embd": 4, "n_params": 99, "size": 1234, "ftype": "Q4_K - Medium"}
        return {"data": [{"id": "x", "meta": meta | {"n_ctx_train": 128}}]}

    def on_tokenize(self, body: Any) -> Any:
        first = [1] if body["add_special"] else []
        return {"tokens": first + [ord(c) for c in body["content"]]}

    def on_detokenize(self, body: Any) -> Any:
        return {"content": "".join(chr(id) if id > 1 else "" for id in body["tokens"])}

    def on_apply_template(self, body: Any) -> Any:
        texts = []
        for message in body["messages"]:
            content = message["content"]
            if isinstance(content, list):
                content = "".join(part["text"] for part in content)
            texts.append(f"{message['role']}:{content};")
        return {"prompt": "".join(texts) + "".join(body.get("chat_template_kwargs", {}))}

    def on_embeddings(self, body: Any) -> Any:
        scale = 1 if body["embd_normalize"] == 2 else 5
        rows = [
            {"index": i, "embedding": [[0.6 * scale, 0.0, 0.8 * scale, 0.0]]}
            for i, _ in enumerate(body["content"])
        ]
        return rows[::-1]

    def on_v1_rerank(self, body: Any) -> Any:
        scores = [(i, len(text)) for i, text in enumerate(body["documents"])]
        scores.sort(key=lambda one: -one[1])
        return {"results": [{"index": i, "relevance_score": float(s)} for i, s in scores]}

    def on_completion(self, body: Any) -> None:
        prompt = body["prompt"]
        if isinstance(prompt, dict):
            items = prompt["multimodal_data"]
            prompt = [1, *(ord(c) for c in prompt["prompt_string"].replace(MARKER, "".join(items)))]
        if len(prompt) > 64:
            error = {"code": 400, "message": "the request exceeds the available context size"}
            error |= {"type": "exceed_context_size_error", "n_prompt_tokens": len(prompt)}
            error |= {"n_ctx": 64}
            return self.say({"error": error}, 400)
        if prompt[-1:] == [ord("!")]:
            os.kill(os.getpid(), signal.SIGKILL)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if body.get("return_progress"):
            step = {"total": len(prompt), "cache": 1, "processed": len(prompt), "time_ms": 5}
            self.send({"content": "", "tokens": [], "stop": False, "prompt_progress": step})
        ids = prompt[1:]
        most = body["n_predict"]
        cut = len(ids) if most < 0 else most
        for id in ids[:cut]:
            event: dict[str, Any] = {"content": chr(id), "tokens": [id], "stop": False}
            if body.get("n_probs"):
                one = {"id": id, "token": chr(id), "bytes": [id], "logprob": -0.5}
                event["completion_probabilities"] = [{**one, "top_logprobs": [one]}]
            self.send(event)
        stopped = "limit" if cut < len(ids) else "word" if body["stop"] else "eos"
        self.send(
            {
                "content": "",
                "tokens": [],
                "stop": True,
                "stop_type": stopped,
                "stopping_word": body["stop"][0] if stopped == "word" else "",
                "tokens_evaluated": len(prompt),
                "tokens_predicted": cut,
                "timings": {"cache_n": 1, "prompt_ms": 10.0, "predicted_ms": 20.0},
                "asked": {k: v for k, v in body.items() if k != "prompt"},
            }
        )
        self.wfile.write(b"0\r\n\r\n")

    def send(self, event: Any) -> None:
        data = f"data: {json.dumps(event)}\n\n".encode()
        for part in (data[:7], data[7:]):  # cut anywhere
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--model")
    given, _ = parser.parse_known_args()
    Handler.protocol_version = "HTTP/1.1"
    if "broken" in given.model:
        raise SystemExit(3)
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
