"""Files of requests, in the format of OpenAI's batches: answered here, or by replicas on Ray."""

from .files import Answers, Requests
from .local import answer_here

__all__ = ["Answers", "Requests", "answer_here"]
