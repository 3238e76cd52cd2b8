"""The error shape of the API server: ``{"error": {"message", "type", "param", "code"}}``, as vLLM answers."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
        http: status code.
        message: what is wrong, with the value.
        kind: `type` in the answer; the status phrase when not given.
        param: the field that is wrong.
    """

    def __init__(self, http: int, message: str, kind: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.http = http
        self.message = message
        self.kind = kind or HTTPStatus(http).phrase
        self.param = param


def error_response(http: int, message: str, kind: str | None = None, param: str | None = None) -> JSONResponse:
    """The error shape."""
    error = {"message": message, "type": kind or HTTPStatus(http).phrase, "param": param, "code": http}
    return JSONResponse({"error": error}, http)


async def answer_api_error(_request: Request, error: Exception) -> Response:
    """For `ApiError`."""
    assert isinstance(error, ApiError)
    return error_response(error.http, error.message, error.kind, error.param)


async def answer_http_exception(_request: Request, error: Exception) -> Response:
    """For what the router itself refuses: no such path, wrong method. In FastAPI's own shape, which vLLM leaves as it is."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, dict(error.headers or {}))
