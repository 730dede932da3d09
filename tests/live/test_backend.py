"""LlamaServerBackend and the reading of flags against real llama-servers of both builds."""

from __future__ import annotations

import socket
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import requests
from tests.live.routers import routing

from servers import BUILDS
from servers import Build
from servers import Flags
from servers import LlamaServer
from servers import smollm2
from servers import start
from servers import tiny_model
from toki.engine.events import SlotView
from toki.flags import ServerFlags
from toki.flags import local_process
from toki.flags import parse_flags
from toki.flags import process_flags
from toki.server import EMBED_BATCH
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import ServerError

pytestmark = pytest.mark.live

KEY = Auth("Bearer right")
FLAGS = Flags(
    n_parallel=2, n_ctx=1024, kv_unified=False, cache_ram_mib=8, api_key="right", api_prefix="/pre", swa_full=True
)
NOBODY = Auth()
PATIENCE = 60.0


@pytest.fixture(scope="module", params=BUILDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    build: Build = request.param
    saved = tmp_path_factory.mktemp("slots")
    with start(tiny_model(), replace(FLAGS, slot_save_path=str(saved)), build) as running:
        yield running


@pytest.fixture(scope="module")
def backend(server: LlamaServer) -> Iterator[LlamaServerBackend]:
    made = LlamaServerBackend(server.url)
    yield made
    made.close()


def test_props(backend: LlamaServerBackend) -> None:
    props = backend.props(KEY, PATIENCE)
    assert (props.total_slots, props.n_ctx, props.router, props.is_sleeping) == (2, 512, False, False)
    assert props.model == str(tiny_model())
    assert props.build
    assert props.media_marker.startswith("<__media")
    assert {"vision", "audio"} <= set(props.modalities)
    assert not any(props.modalities.values())
    assert backend.props(KEY, PATIENCE, model="any") == props  # one model ignores the name


def test_slots_before_and_after_use(backend: LlamaServerBackend) -> None:
    backend.cache_erase(0, KEY, PATIENCE)
    backend.cache_erase(1, KEY, PATIENCE)
    answer = backend.completion({"prompt": [70, 71, 72, 73], "n_predict": 1, "id_slot": 1}, KEY, PATIENCE)
    assert answer["id_slot"] == 1
    assert answer["timings"]["prompt_n"] == 4
    first, second = backend.slots(KEY, PATIENCE)
    assert (first.id, first.n_tokens, first.n_ctx) == (0, 0, 512)
    assert (second.id, second.busy, second.n_tokens, second.n_ctx) == (1, False, 4, 512)
    assert second.task >= 0


@pytest.mark.parametrize("build", BUILDS)
def test_a_slot_that_was_never_used(build: Build) -> None:
    with start(tiny_model(), Flags(n_parallel=1, n_ctx=512), build) as fresh:
        never = LlamaServerBackend(fresh.url)
        assert never.slots(NOBODY, PATIENCE) == (SlotView(0, busy=False, n_tokens=0, task=-1, n_ctx=512),)
        never.close()


def test_slots_are_saved_restored_and_erased(backend: LlamaServerBackend) -> None:
    backend.completion({"prompt": [70, 71, 72, 73], "n_predict": 1, "id_slot": 0}, KEY, PATIENCE)
    assert backend.cache_save(0, "file", KEY, PATIENCE)["n_saved"] == 4
    assert backend.cache_erase(0, KEY, PATIENCE)["n_erased"] == 4
    assert backend.slots(KEY, PATIENCE)[0].n_tokens == 0
    assert backend.cache_load(0, "file", KEY, PATIENCE)["n_restored"] == 4
    with pytest.raises(ServerError) as caught:
        backend.cache_save(0, "../file", KEY, PATIENCE)
    assert caught.value.status == 400


def test_templates_and_tokens(backend: LlamaServerBackend) -> None:
    text = backend.apply_template(b'{"messages": [{"role": "user", "content": "Hi \\u00e9"}]}', KEY, PATIENCE)
    assert "Hi é" in text
    ids = backend.tokenize(text, KEY, PATIENCE, add_special=True)
    assert ids.dtype == np.int32
    mixed = backend.tokenize(["AB", 5], KEY, PATIENCE, add_special=False)
    assert mixed.tolist() == [*backend.tokenize("AB", KEY, PATIENCE, add_special=False).tolist(), 5]
    with pytest.raises(ServerError) as caught:
        backend.apply_template(b'{"messages": 5}', KEY, PATIENCE)
    assert caught.value.status in (400, 500)
    with pytest.raises(ServerError) as caught:
        backend.tokenize("a\ud800", KEY, PATIENCE, add_special=False)
    assert caught.value.status in (400, 500)


def test_the_servers_own_tokens_are_the_same(backend: LlamaServerBackend) -> None:
    """The server counts a prompt as /tokenize does with both flags."""
    text = "ABC é 日本 <s> \n\n x"
    ids = backend.tokenize(text, KEY, PATIENCE, add_special=True)
    answer = backend.completion({"prompt": text, "n_predict": 1}, KEY, PATIENCE)
    again = backend.completion({"prompt": ids.tolist(), "n_predict": 1}, KEY, PATIENCE)
    assert answer["tokens_evaluated"] == len(ids)
    assert again["timings"]["cache_n"] == len(ids) - 1


@pytest.mark.parametrize("auth", [Auth(), Auth("Bearer wrong"), Auth(api_key="wrong")])
def test_a_wrong_key(backend: LlamaServerBackend, auth: Auth) -> None:
    with pytest.raises(ServerError, match="status 401") as caught:
        backend.slots(auth, PATIENCE)
    assert caught.value.status == 401


def test_the_other_key_header(backend: LlamaServerBackend) -> None:
    assert len(backend.slots(Auth(api_key="right"), PATIENCE)) == 2


@pytest.fixture
def router(tmp_path: Path) -> Iterator[str]:
    """A router that knows one model, which is not loaded yet."""
    with routing(f"[tiny]\nmodel = {tiny_model()}\nparallel = 1\nctx-size = 256\n", tmp_path) as url:
        yield url


def test_a_router_is_asked_for_a_model_but_never_made_to_load_it(router: str) -> None:
    backend = LlamaServerBackend(router)
    try:
        props = backend.props(NOBODY, PATIENCE)
        assert (props.router, props.total_slots, props.n_ctx) == (True, 0, 0)
        look_ups: list[Callable[[], object]] = [
            lambda: backend.props(NOBODY, PATIENCE, "tiny"),
            lambda: backend.slots(NOBODY, PATIENCE, "tiny"),
            lambda: backend.tokenize("A", NOBODY, PATIENCE, add_special=True, model="tiny"),
            lambda: backend.apply_template(
                b'{"model": "tiny", "messages": [{"role": "user", "content": "A"}]}', NOBODY, PATIENCE
            ),
            lambda: backend.completion({"model": "tiny", "prompt": "A", "n_predict": 1}, NOBODY, PATIENCE),
        ]
        for look_up in look_ups:
            with pytest.raises(ServerError) as caught:
                look_up()
            assert caught.value.status == 400
        assert requests.get(f"{router}/v1/models", timeout=5).json()["data"][0]["status"]["value"] == "unloaded"
        client = {"model": "tiny", "prompt": "A", "n_predict": 1}
        assert requests.post(f"{router}/completion", json=client, timeout=PATIENCE).status_code == 200
        for look_up in look_ups:
            look_up()
        assert backend.props(NOBODY, PATIENCE, "tiny").total_slots == 1
        assert parse_flags(backend.arguments(NOBODY, PATIENCE, "tiny"), {}) == ServerFlags(parallel=1, ctx=256)
        assert backend.arguments(NOBODY, PATIENCE, "other") == ()
    finally:
        backend.close()


def test_no_embeddings_here(server: LlamaServer) -> None:
    made = LlamaServerBackend(server.url, embed_url=server.url)
    with pytest.raises(ServerError, match="/v1/embeddings: status 501"):
        made.embed("text", KEY, PATIENCE)
    made.close()


def test_a_server_that_was_killed() -> None:
    with start(tiny_model(), Flags(n_parallel=1, n_ctx=512)) as running:
        made = LlamaServerBackend(running.url)
        made.props(NOBODY, PATIENCE)
        running.kill()
        with pytest.raises(ServerError) as caught:
            made.props(NOBODY, PATIENCE)
        made.close()
    assert caught.value.status is None


def test_the_flags_of_a_server_on_this_machine(server: LlamaServer) -> None:
    """Only llama-server's own process shows them; the other build runs inside Python."""
    process = local_process(server.url)
    if server.build == "skulk":
        assert process is not None
        assert process_flags(process) == ServerFlags(
            parallel=2, ctx=1024, kv_unified=False, cache_ram_mib=8, swa_full=True
        )
    else:
        assert process is None


def test_no_flags_of_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert local_process(f"http://127.0.0.1:{listener.getsockname()[1]}") is None


@pytest.mark.parametrize("build", BUILDS)
def test_embeddings_know_what_a_text_means(build: Build) -> None:
    flags = Flags(n_parallel=1, n_ctx=256, embeddings=True, pooling="mean")
    with start(smollm2(), flags, build) as running:
        made = LlamaServerBackend("http://127.0.0.1:1", embed_url=running.url)
        texts = ("A cat sleeps on the sofa.", "A kitten naps on the couch.", "Section 12: depreciation schedules.")
        cat, kitten, tax = (made.embed(text, NOBODY, PATIENCE) for text in texts)
        made.close()
    assert all(np.linalg.norm(vector) == pytest.approx(1, abs=1e-5) for vector in (cat, kitten, tax))
    assert cat @ kitten > cat @ tax


@pytest.mark.parametrize("build", BUILDS)
def test_a_long_text_is_embedded_in_segments_that_the_server_takes(build: Build) -> None:
    with start(tiny_model(), Flags(n_parallel=1, n_ctx=2048, embeddings=True, pooling="mean"), build) as running:
        made = LlamaServerBackend(running.url, embed_url=running.url)
        text = "The tax code changed depreciation schedules. " * 60
        assert len(made.tokenize(text, NOBODY, PATIENCE, add_special=True)) > EMBED_BATCH
        long, longer, other = (made.embed(each, NOBODY, PATIENCE) for each in (text, text + "Really.", text[::-1]))
        made.close()
    assert long @ longer > 0.99
    assert long @ longer > long @ other
