"""Data files: where they are found, how they are downloaded, and errors about wrong ones."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import lzma
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.archives import tar_gz_of, zip_of

from rlgates.experiments.tasks.data import files as data
from rlgates.experiments.tasks.data.files import File, archive_members, find_file, read_file
from rlgates.experiments.tasks.data.hub import HubDataset
from rlgates.experiments.tasks.sets import icu, images, music, reviews, speech, text

CONTENT = b"one two three\n" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _temporary_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in (data.DATA_VARIABLE, data.OFFLINE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves the files of `served`; those named "cut" end early."""

    served: dict[str, bytes]
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        content = self.served.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if "cut" in self.path else content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    handler = type("Served", (Handler,), {"served": {}, "requests": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}", handler
        http_server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_a_file_is_read_in_each_form(tmp_path: Path, suffix: str, pack: object) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    assert callable(pack)
    (folder / f"words.txt{suffix}").write_bytes(pack(CONTENT))
    assert read_file(File("set", "words.txt", DIGEST), tmp_path) == CONTENT
    assert (
        read_file(File("set", "words.txt", hashlib.md5(CONTENT).hexdigest()), tmp_path) == CONTENT
    )


def test_folders_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / name for name in ("given", "named", "cache/rlgates")]
    for place in places:
        (place / "set").mkdir(parents=True)
        (place / "set" / "words").write_text(place.name)
    file = File("set", "words")
    assert read_file(file) == b"rlgates"
    monkeypatch.setenv(data.DATA_VARIABLE, str(places[1]))
    assert read_file(file) == b"named"
    assert read_file(file, places[0]) == b"given"
    (places[0] / "set" / "words").unlink()
    assert read_file(file, places[0]) == b"rlgates", "the cache has what the folder lacks"
    with pytest.raises(FileNotFoundError, match="data_dir must name a folder"):
        read_file(file, tmp_path / "nowhere")
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="RLGATES_DATA must name a folder"):
        read_file(file)
    with pytest.raises(TypeError, match="data_dir must be a path or None, got 3"):
        read_file(file, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_truncated_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "set" / f"words{suffix}"
    path.parent.mkdir()
    packed = (gzip.compress if suffix == ".gz" else lzma.compress)(CONTENT)
    path.write_bytes(packed[:-10])
    with pytest.raises(ValueError, match="cannot be unpacked: it is truncated") as caught:
        read_file(File("set", "words", DIGEST), tmp_path)
    assert str(path) in str(caught.value)


def test_an_altered_file_is_named_with_both_digests(tmp_path: Path) -> None:
    path = tmp_path / "set" / "words"
    path.parent.mkdir()
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError, match="truncated or altered") as caught:
        read_file(File("set", "words", DIGEST), tmp_path)
    for part in (str(path), DIGEST, hashlib.sha256(CONTENT[:-1]).hexdigest()):
        assert part in str(caught.value)


def test_a_file_is_downloaded_once_and_checked(
    tmp_path: Path, server: tuple[str, type[Handler]]
) -> None:
    url, handler = server
    handler.served["/words.gz"] = gzip.compress(CONTENT)
    file = File("set", "words", DIGEST, (f"{url}/gone/words.gz", f"{url}/words.gz"))
    assert read_file(file) == CONTENT
    assert read_file(file) == CONTENT
    assert handler.requests == ["/gone/words.gz", "/words.gz"], "the second time it is in the cache"
    assert [path.name for path in (tmp_path / "cache/rlgates/set").iterdir()] == ["words.gz"]


@pytest.mark.parametrize(
    ("path", "content", "error", "message"),
    [
        ("/gone", None, FileNotFoundError, "answered 404"),
        (
            "/cut.gz",
            gzip.compress(CONTENT),
            FileNotFoundError,
            "was cut off: got .* bytes, expected",
        ),
        ("/words.gz", gzip.compress(b"others"), ValueError, f"expected {DIGEST}"),
        ("/words.gz", gzip.compress(CONTENT)[:-9], ValueError, "truncated or damaged"),
    ],
)
def test_a_bad_download_is_not_kept(
    tmp_path: Path,
    server: tuple[str, type[Handler]],
    path: str,
    content: bytes | None,
    error: type[Exception],
    message: str,
) -> None:
    url, handler = server
    if content is not None:
        handler.served[path] = content
    name = path.strip("/").removesuffix(".gz")
    with pytest.raises(error, match=message) as caught:
        read_file(File("set", name, DIGEST, (url + path,)))
    assert url + path in str(caught.value)
    assert not list((tmp_path / "cache/rlgates/set").iterdir())


def test_without_a_network_the_error_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = File("set", "words", DIGEST, ("http://127.0.0.1:9/words.gz",), hint="Ask the owner.")
    with pytest.raises(FileNotFoundError, match="cannot be reached") as caught:
        read_file(file, tmp_path)
    for part in (
        str(tmp_path / "set"),
        str(tmp_path / "cache" / "rlgates" / "set"),
        "words, words.gz, words.xz",
        data.DATA_VARIABLE,
        "http://127.0.0.1:9/words.gz",
        "Ask the owner.",
    ):
        assert part in str(caught.value)
    monkeypatch.setenv(data.OFFLINE_VARIABLE, "1")
    with pytest.raises(FileNotFoundError, match="RLGATES_OFFLINE is set"):
        read_file(file, tmp_path)


def test_a_member_of_a_zip_archive(tmp_path: Path, server: tuple[str, type[Handler]]) -> None:
    url, handler = server
    handler.served["/words.zip"] = zip_of("inside/words.txt", CONTENT)
    file = File("set", "words", DIGEST, (f"{url}/words.zip",), "inside/words.txt")
    assert read_file(file) == read_file(file) == CONTENT
    assert len(handler.requests) == 1
    with pytest.raises(ValueError, match=r"is an archive without inside/others\.txt"):
        read_file(File("set", "others", "", (f"{url}/words.zip",), "inside/others.txt"))
    archive = tmp_path / "cache/rlgates/set/words.zip"
    archive.write_bytes(archive.read_bytes()[:50])
    with pytest.raises(ValueError, match="truncated or damaged"):
        read_file(file)


def lengths(archive: Path) -> bytes:
    return json.dumps({name: len(content) for name, content in archive_members(archive)}).encode()


def test_a_converted_archive_is_kept_with_its_digest(
    tmp_path: Path, server: tuple[str, type[Handler]]
) -> None:
    url, handler = server
    handler.served["/words.tar.gz"] = tar_gz_of({"../../evil": b"12", "/etc/evil": b"3"})
    file = File("set", "lengths", "", (f"{url}/words.tar.gz",), convert=lengths)
    assert json.loads(read_file(file)) == {"../../evil": 2, "/etc/evil": 1}
    assert read_file(file) == read_file(file)
    assert handler.requests == ["/words.tar.gz"]
    folder = tmp_path / "cache/rlgates/set"
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    assert found == ["lengths", "lengths.sha256", "words.tar.gz"], "members are not unpacked"
    assert not (tmp_path / "evil").exists()
    (folder / "lengths").write_text("{}")
    with pytest.raises(ValueError, match="truncated or altered"):
        read_file(file)


@pytest.mark.parametrize("kept", [0.3, 0.7, 0.99])
def test_a_truncated_archive_is_named(tmp_path: Path, kept: float) -> None:
    packed = tar_gz_of({f"{n}": hashlib.sha256(str(n).encode()).digest() * 9 for n in range(99)})
    path = tmp_path / "words.tar.gz"
    path.write_bytes(packed[: int(len(packed) * kept)])
    file = File("set", "lengths", "", ("https://nowhere.invalid/words.tar.gz",), convert=lengths)
    with pytest.raises(ValueError, match="truncated or damaged"):
        data.read_path(file, path)


def test_finding_downloads_nothing(tmp_path: Path, server: tuple[str, type[Handler]]) -> None:
    url, handler = server
    assert find_file(File("set", "words", "", (f"{url}/words",))) is None
    assert handler.requests == []


def test_a_digest_beside_a_file_does_not_replace_the_published_one(tmp_path: Path) -> None:
    path = tmp_path / "set" / "words"
    path.parent.mkdir()
    path.write_bytes(b"others")
    path.with_name("words.sha256").write_text(hashlib.sha256(b"others").hexdigest())
    with pytest.raises(ValueError, match=f"expected {DIGEST}"):
        read_file(File("set", "words", DIGEST), tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_without_a_published_digest_must_stay_as_it_was_first_read(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / "set" / f"words{suffix}"
    path.parent.mkdir()
    pack = gzip.compress if suffix else bytes
    path.write_bytes(pack(CONTENT))
    file = File("set", "words")
    assert read_file(file, tmp_path) == read_file(file, tmp_path) == CONTENT
    path.write_bytes(pack(CONTENT[:-1] + b"?"))
    with pytest.raises(
        ValueError, match=f"{path.name} is not .* {DIGEST}.* read at first"
    ) as error:
        read_file(file, tmp_path)
    kept = Path(str(error.value).rpartition("remove ")[2].removesuffix("."))
    kept.unlink()
    assert read_file(file, tmp_path) == CONTENT[:-1] + b"?"


def test_files_without_a_digest_are_listed() -> None:
    """The first paragraph about digests in docs/guides/tasks.md names them."""
    modules = (icu, images, music, reviews, speech, text)
    values = [value for module in modules for value in vars(module).values()]
    found = [
        file
        for value in values
        for one in (value.values() if isinstance(value, dict) else (value,))
        for file in (one.values() if isinstance(one, dict) else (one,))
        if isinstance(file, File)
    ]
    assert len(found) == 15
    without = {f"{file.folder}/{file.name}" for file in found if not file.digest}
    assert without == {
        *(f"wikitext103/wiki.{split}.tokens" for split in ("train", "valid", "test")),
        "cifar10/cifar10.npz",  # its images and labels are held against CIFAR_DIGESTS
        "speech_commands/sc10.npz",  # made of an archive that has one
    }


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zip"])
def test_nothing_is_decompressed_beyond_its_size(suffix: str, tmp_path: Path) -> None:
    bomb = bytes(2**25)
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
    packed = zip_of("words", bomb) if suffix == ".zip" else pack[suffix](bomb)
    path = tmp_path / "set" / f"words{suffix}"
    path.parent.mkdir()
    path.write_bytes(packed)
    url = ("https://nowhere.invalid/words.zip",) if suffix == ".zip" else ()
    file = File("set", "words", "", url, "words" if url else "", max_size=len(CONTENT))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not the published file: it is longer than 14,000"):
            data.read_path(file, path)
        # xz decompresses into a dictionary, 8 MiB by default.
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [2**16, 2**20 + 2**19])
def test_an_archive_is_not_decompressed_beyond_its_size(size: int, tmp_path: Path) -> None:
    path = tmp_path / "words.tar.gz"
    path.write_bytes(tar_gz_of({"a": bytes(size), "b": bytes(2**20)}))
    with pytest.raises(ValueError, match="is not the published archive: it is too long"):
        list(archive_members(path, max_size=2**20))
    assert [len(content) for _, content in archive_members(path)] == [size, 2**20]


def test_hub_data_sets_have_a_digest_or_a_revision() -> None:
    with pytest.raises(ValueError, match="needs a revision, or the file a digest"):
        File("set", "words", hub=HubDataset("someone/words", ("test",), bytes))
