"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from epd_router.mock import replies, tokenizer
from epd_router.mock.context import CURRENT
from epd_router.mock.media import Preprocessing, load
from epd_router.mock.prompt import parts, plain, render, turns

if TYPE_CHECKING:
    from epd_router.mock.engine import Engine


def add_routes(app: web.Application, engine: Engine) -> None:
    """Add both paths."""

    async def tokenize(request: web.Request) -> web.Response:
        """Media are expanded to their placeholders."""
        body = CURRENT.get().body
        if "messages" in body:
            chat = turns(body)
            items = await load(parts(chat), Preprocessing(body, engine.config), engine.config, engine.session)
            ids = render(chat, items, generation=body.get("add_generation_prompt", True)).ids
        else:
            ids = plain(body.get("prompt"))[0].ids
        texts = tokenizer.token_strings(ids) if body.get("return_token_strs") else None
        return replies.whole({"count": len(ids), "max_model_len": engine.config.max_model_len, "tokens": ids, "token_strs": texts})

    async def detokenize(request: web.Request) -> web.Response:
        return replies.whole({"prompt": tokenizer.decode(CURRENT.get().body.get("tokens") or [])})

    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/detokenize", detokenize)
