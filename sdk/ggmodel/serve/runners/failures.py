"""Errors on their way from one process to another."""

from __future__ import annotations

import logging

from ... import errors
from ...errors import Error
from ..requests import Failure

log = logging.getLogger("ggmodel.serve")


def failure_of(error: BaseException) -> Failure:
    """An error as the client is told; one that is none of ggmodel's is a defect, and is logged."""
    if isinstance(error, Error):
        return Failure(type(error).__name__, str(error))
    log.error("a request failed with a defect of ggmodel", exc_info=error)
    return Failure("Error", f"ggmodel failed with {type(error).__name__}: {str(error)[:400]}")


def error_of(failure: Failure) -> Error:
    """The error that a process told."""
    kind = getattr(errors, failure.error, Error)
    known = isinstance(kind, type) and issubclass(kind, Error)
    return (kind if known else Error)(failure.message)
