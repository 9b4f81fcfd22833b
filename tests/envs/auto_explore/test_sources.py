"""Sources of repositories: folders, git, packages and archives; nothing of what is fetched is run or leads out."""

from __future__ import annotations

import hashlib
import io
import os
import re
import socket
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.foreign import child_environment
from reflectrl.envs.auto_explore.sources import ArchiveLimits, fetch, fetch_all, unpack


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with two commits."""
    settings = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    names = {f"GIT_{who}_{what}": "a@b.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for name, value in {**settings, **names}.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "origin" / "coffee shop.git"
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    for text in ("old", "new"):
        (folder / "README.md").write_text(text)
        git(folder, "add", "README.md")
        git(folder, "commit", "--quiet", "-m", text)
    return folder


def test_folders_are_used_as_they_are_under_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "a" / "docs", tmp_path / "b" / "docs", tmp_path / "été", tmp_path / "my shop!"]
    for folder in folders:
        folder.mkdir(parents=True)
    names = fetch_all([str(folder) for folder in folders], tmp_path / "into")
    assert names == dict(zip(("docs", "docs-2", "t", "my-shop"), folders, strict=True))
    with pytest.raises(InvalidInput, match="docs"):
        fetch_all([str(folders[0])] * 2, tmp_path / "into")
    for same in (
        ["company:nano", "company:nano:0"],
        [str(folders[0]), f"{folders[0]}/"],
        [str(folders[0]), f"{folders[1]}/../../a/docs"],
    ):
        with pytest.raises(InvalidInput, match="given twice"):
            fetch_all(same, tmp_path / "made")
    with pytest.raises(InvalidInput, match="home folder"):
        fetch("~nobody-of-this-name/shop", tmp_path)
    monkeypatch.chdir(tmp_path / "my shop!")
    assert fetch(".", tmp_path / "into") == ("my-shop", Path())
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize(
    "source",
    ["", "no/such/folder", "ftp://example.org/a.git", "https://example.org/page", "x::y"]
    + ["git+--upload-pack=touch mark", "git+ext::sh -c touch% mark", "git+ssh://-oProxyCommand=mark/a", "git+"]
    + ["git@-oProxyCommand=mark:a", "git@example.org:-a", "git+no/such/folder"]
    + ["pypi:", "pypi:-r", "pypi:shop @ https://example.org/a.zip", "pypi:./shop", "pypi:shop>=1"]
    + ["company:nan", "company:nano:x", "company:nano:", "company:nano:-1"],
)
def test_what_is_no_source_is_refused_before_git_or_pip_sees_it(tmp_path: Path, source: str) -> None:
    fact = source.rpartition(":")[2] if "company" in source else source
    with pytest.raises(InvalidInput, match=re.escape(repr(fact))):
        fetch(source, tmp_path / "into")
    assert list(tmp_path.iterdir()) == []


def test_git_brings_the_last_commit_without_its_history(origin: Path, tmp_path: Path) -> None:
    for source, name in ((f"git+file://{origin}", "coffee-shop"), (f"git+{origin}", "coffee-shop-2")):
        assert fetch(source, tmp_path / "into") == (name, tmp_path / "into" / name)
        assert [(file.name, file.read_text()) for file in (tmp_path / "into" / name).iterdir()] == [
            ("README.md", "new")
        ]
    assert sorted(folder.name for folder in (tmp_path / "into").iterdir()) == ["coffee-shop", "coffee-shop-2"]


def test_git_runs_no_hook_and_fetches_neither_submodules_nor_large_files(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (origin / ".gitattributes").write_text("*.md filter=lfs\n")
    git(origin, "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(origin), "inner")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "-m", "inner")
    mark, hooks = tmp_path / "mark", tmp_path / "template" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (hooks / "post-checkout").chmod(0o755)
    config = tmp_path / "config"
    config.write_text(f'[core]\nhooksPath = {hooks}\n[filter "lfs"]\nsmudge = "echo $GIT_LFS_SKIP_SMUDGE"\n')
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(hooks.parent))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    git(tmp_path, "clone", str(origin), "plain")
    assert mark.exists()
    mark.unlink()
    _, path = fetch(f"git+{origin}", tmp_path / "into")
    assert list((path / "inner").iterdir()) == []
    assert (path / "README.md").read_text() == "1\n"
    assert not mark.exists()


@pytest.mark.parametrize(
    "source", ["https://me:secret@127.0.0.1:9/shop.git", "git+https://127.0.0.1:9/shop.git?secret"]
)
def test_what_git_cannot_fetch_is_named_without_its_secrets(source: str, tmp_path: Path) -> None:
    with pytest.raises(WorkFailed) as failure:
        fetch(source, tmp_path / "into")
    assert "https://127.0.0.1:9/shop.git' could not" in str(failure.value)
    assert "secret" not in str(failure.value)


def test_git_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = f"git+http://127.0.0.1:{silent.getsockname()[1]}/shop.git"
        with pytest.raises(WorkFailed, match=r"shop\.git.* 0\.5 "):
            fetch(source, tmp_path / "into", timeout_s=0.5)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorkFailed, match="'git'"):
        fetch("git@example.org:shop.git", tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


BACKEND = """
import pathlib
pathlib.Path({mark!r}).touch()
"""
"""A build backend that shows that it was imported."""


@dataclass
class Shop:
    """The source archive of a package, with an index on this machine that holds it."""

    archive: Path
    mark: Path
    """A file that the package's build backend makes."""
    sha256: str
    """Hash of the archive as the index gives it; empty for none."""
    url: str = ""
    page: str = ""
    """What the index says of the package instead; empty for its archive with the hash."""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    package, archive, mark = tmp_path / "tinyshop-1.0", tmp_path / "links" / "tinyshop-1.0.tar.gz", tmp_path / "mark"
    (package / "src").mkdir(parents=True)
    (package / "backend.py").write_text(BACKEND.format(mark=str(mark)))
    (package / "src" / "shop.py").write_text("")
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(package, "tinyshop-1.0")
    shop = Shop(archive, mark, hashlib.sha256(archive.read_bytes()).hexdigest())

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages = {
                "/simple/tinyshop/": (shop.page or f'<a href="/{archive.name}#sha256={shop.sha256}">it</a>').encode(),
                f"/{archive.name}": archive.read_bytes(),
            }
            self.send_response(200 if self.path in pages else 404)
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
            self.end_headers()
            self.wfile.write(pages.get(self.path, b""))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shop.url = f"http://127.0.0.1:{server.server_port}/simple"
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        for name, value in {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": shop.url}.items():
            monkeypatch.setenv(name, value)
        yield shop
        server.shutdown()


@pytest.mark.slow
def test_a_package_is_its_source_archive_of_which_no_code_runs(shop: Shop, tmp_path: Path) -> None:
    name, path = fetch("pypi:tinyshop==1.0", tmp_path / "into")
    assert (name, path) == ("tinyshop", tmp_path / "into" / "tinyshop")
    assert sorted(file.name for file in path.iterdir()) == ["backend.py", "pyproject.toml", "src"]
    assert [folder.name for folder in (tmp_path / "into").iterdir()] == ["tinyshop"]
    assert not shop.mark.exists()


@pytest.mark.slow
def test_a_package_may_be_in_a_folder_of_the_user(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(WorkFailed, match="PIP_NO_INDEX"):
        fetch("pypi:tinyshop", tmp_path / "into")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{shop.archive.parent} {tmp_path / 'gone'}")
    assert fetch("pypi:tinyshop", tmp_path / "into") == ("tinyshop", tmp_path / "into" / "tinyshop")
    assert shop.archive.exists()
    assert not shop.mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sha256", "requirement", "fact"),
    [
        ("0" * 64, "tinyshop", "differs from the file whose hash the index gives"),
        ("", "tinyshop", "has no SHA-2 hash at http://127.0.0.1"),
        (None, "tinyshop==2.0", "correct the name or the version"),
        (None, "othershop", "correct the name or the version"),
    ],
)
def test_another_file_than_the_one_that_the_index_names_is_not_used(
    shop: Shop, tmp_path: Path, sha256: str | None, requirement: str, fact: str
) -> None:
    shop.sha256 = shop.sha256 if sha256 is None else sha256
    with pytest.raises(WorkFailed, match=fact):
        fetch(f"pypi:{requirement}", tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", ['<a href="{file}#egg=tinyshop-9">', '<base href="{folder}/"><a href="{name}">'])
def test_an_index_on_a_server_names_no_file_of_this_machine(shop: Shop, tmp_path: Path, page: str) -> None:
    file = shop.archive
    os.mkfifo(file.with_name("pipe.tar.gz"))
    for each in (file, file.with_name("pipe.tar.gz"), Path("/dev/zero")):
        shop.page = page.format(file=each.as_uri(), folder=each.parent.as_uri(), name=f"{each.name}#egg=tinyshop-9")
        with pytest.raises(WorkFailed, match="by its index, which is not read"):
            fetch("pypi:tinyshop", tmp_path / "into")


@pytest.mark.slow
def test_an_index_on_this_machine_may_name_its_files(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "mirror" / "simple" / "tinyshop"
    index.mkdir(parents=True)
    (index / "index.html").write_text(f'<a href="{shop.archive.as_uri()}">{shop.archive.name}</a>')
    monkeypatch.setenv("PIP_INDEX_URL", index.parent.as_uri())
    assert fetch("pypi:tinyshop", tmp_path / "into")[0] == "tinyshop"


def test_programs_of_others_do_not_see_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    given = child_environment(TMPDIR="/large")
    assert (given["PIP_INDEX_URL"], given["PATH"], given["TMPDIR"]) == (
        "https://mirror.example/simple",
        os.environ["PATH"],
        "/large",
    )
    assert not {"OPENAI_API_KEY", "PYTHONPATH"} & given.keys()


def tar_with(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def zip_with(path: Path, name: str, content: bytes = b"x") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("shop/0.md", "x")
        file.writestr(name, content)
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, *, size: int = 1, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, size if kind == tarfile.REGTYPE else 0
    return member


def test_an_archive_unpacks_without_links(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    members = (
        entry("shop/a.md"),
        entry("shop/etc", tarfile.SYMTYPE, link="/etc"),
        entry("shop/hard", tarfile.LNKTYPE, link="shop/a.md"),
        entry("shop/out", tarfile.SYMTYPE, link=str(tmp_path / "outside")),
        entry("shop/out/b.md"),
    )
    root = unpack(tar_with(tmp_path / "a.tar.gz", *members), tmp_path / "into")
    assert root == tmp_path / "into" / "shop"
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["a.md", "out", "out/b.md"]
    assert list((tmp_path / "outside").iterdir()) == []
    root = unpack(zip_with(tmp_path / "a.zip", "a.md"), tmp_path / "two")
    assert root == tmp_path / "two"  # an archive without a folder of its own
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["a.md", "shop", "shop/0.md"]


def test_hostile_members_of_an_archive_are_refused(tmp_path: Path) -> None:
    def refused(archive: Path, fact: str, limits: ArchiveLimits | None = None) -> None:
        with pytest.raises(InvalidInput, match=fact):
            unpack(archive, tmp_path / f"into {archive.name}", limits)
        archive.unlink()

    for number, (name, kind) in enumerate(
        [
            ("shop/../../x", tarfile.REGTYPE),
            ("/x", tarfile.REGTYPE),
            ("shop/null", tarfile.CHRTYPE),
            ("shop/pipe", tarfile.FIFOTYPE),
        ]
    ):
        refused(tar_with(tmp_path / f"{number}.tar.gz", entry("shop/a.md"), entry(name, kind)), f"'{name}'")
    for number, name in enumerate(("../x", "/x")):
        refused(zip_with(tmp_path / f"{number}.zip", name), f"'{name}'")
    small, few = ArchiveLimits(bytes=1_000_000), ArchiveLimits(members=10)
    large = tar_with(tmp_path / "large.tar.gz", entry("shop/a.md"), entry("shop/b.md", size=5_000_000))
    refused(large, "'shop/b.md'", small)
    refused(tar_with(tmp_path / "many.tar.gz", *(entry(f"shop/{n}.md") for n in range(11))), "'shop/10.md'", few)
    refused(zip_with(tmp_path / "bomb.zip", "shop/a.md", bytes(5_000_000)), "'shop/a.md'", small)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"a.md", *(f"{n}.md" for n in range(10))}
    assert {path.name[:4] for path in tmp_path.iterdir()} == {"into"}


@pytest.mark.parametrize("cut", [0, 10, 60])
def test_a_damaged_archive_is_named(tmp_path: Path, cut: int) -> None:
    archive = tar_with(tmp_path / "a.tar.gz", entry("shop/a.md", size=10_000))
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(WorkFailed, match=r"a\.tar\.gz"):
        unpack(archive, tmp_path / "into")
