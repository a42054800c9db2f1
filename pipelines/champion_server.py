"""The champion of a life over HTTP: `GET /health`, and `POST /predict` with rows as the source has them."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pandas as pd
import uvicorn
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel, Field

from fedweave.errors import BadInput
from fedweave.lifecycle.answering import ServedChampion
from fedweave.lifecycle.roles import Deployed

LOG_SECONDS = 60.0  # between two files of the log


class PredictionRequest(BaseModel):
    """A request."""

    rows: list[dict[str, Any]] = Field(min_length=1, description="rows as the source has them; they need no label")


class PredictionResponse(BaseModel):
    """An answer: a prediction for each row, in their order."""

    predictions: list[Any]
    probabilities: list[dict[str, float]] | None = Field(description="of each class; null where numbers are predicted")
    method: str
    version: int = Field(description="number of the newest delivery that the models were trained on")
    data: str = Field(description="digest of the deliveries up to that one")
    logged: int = Field(description="rows that are kept until their label comes")
    warnings: list[str] = Field(description="values that may be misread, such as a number in another unit")


def make_app(served: ServedChampion) -> FastAPI:
    """The server of a life."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        writer = asyncio.create_task(_write_log(served))
        yield
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer
        if served.log is not None:
            served.log.write()

    # The pages of FastAPI load scripts from another host.
    app = FastAPI(title=f"fedweave: {served.life.folder}", lifespan=lifespan, docs_url=None, redoc_url=None)

    @app.get("/health")
    def health(response: Response) -> dict[str, Any]:
        """Whose models answer; 503 if the champion cannot be loaded or the log cannot be written."""
        deployed, _ = served.champion()
        problem = served.problem or (served.log.problem if served.log else "")
        response.status_code = 503 if problem else 200
        return {"status": problem or "ok", **_about(deployed)}

    @app.post("/predict")
    def predict(request: PredictionRequest) -> PredictionResponse:
        """Predictions of the champion; 422 with one line for rows that it does not know."""
        try:
            answers = served.answer(_as_table(request.rows))
        except BadInput as error:
            raise HTTPException(422, str(error)) from error
        return PredictionResponse(
            predictions=answers.predictions,
            probabilities=answers.probabilities,
            logged=answers.logged,
            warnings=answers.warnings,
            **_about(answers.deployed),
        )

    return app


def _as_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A table of rows. pandas would fill in a column that only some rows have, and the model would not miss it.

    Raises:
        BadInput: rows with different columns, or a value that is a list or an object.
    """
    for number, row in enumerate(rows):
        if differing := {*row} ^ {*rows[0]}:
            problem = f"{min(differing)!r} is in this row or in row 0 alone; give every row all columns, or null"
            raise BadInput(f"row {number}", problem)
        for name, value in row.items():
            if isinstance(value, list | dict):
                raise BadInput(f"row {number}", f"{name!r} is {value!r}; give a text or a number")
    return pd.DataFrame(rows)


async def _write_log(served: ServedChampion) -> None:
    while served.log is not None:
        await asyncio.sleep(LOG_SECONDS)
        await asyncio.to_thread(served.log.write)


def _about(deployed: Deployed) -> dict[str, Any]:
    return {"method": deployed.method, "version": deployed.version, "data": deployed.data}


def serve(served: ServedChampion, host: str, port: int) -> None:
    """Answer until Ctrl-C or SIGTERM.

    Raises:
        BadInput: the port is taken, or the address is none of this machine.
    """
    config = uvicorn.Config(make_app(served), host=host, port=port, log_level="warning")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # who reads the address below may ask at once, and waits for the server
        listener = socket.create_server((host, port), family=family, backlog=config.backlog)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", error)).partition(" (")[0]  # the rest repeats the address
        raise BadInput("--port", f"{port} of {host} cannot be used ({reason}); choose another") from error
    deployed, _ = served.champion()
    print(
        f"{served.life.folder}: {deployed.method} of version {deployed.version} answers on "
        f"http://{host}:{listener.getsockname()[1]}; Ctrl-C ends it",
        flush=True,
    )
    uvicorn.Server(config).run(sockets=[listener])
